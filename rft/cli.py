"""``mens-sup rft``: the command line. Light: what is heavy is imported, or started as a process, when it runs."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.command_line import at_least_one
from supervisor.problems import InputError
from supervisor.subcommands import Subcommand

if TYPE_CHECKING:
    from rft.export import Guard
    from rft.standing import Standing

ELSEWHERE = ("rft.verify_command", "rft.groups_command")
"""Modules with further actions: ``add_actions(actions)``."""


def run_command(options: argparse.Namespace) -> int:
    """Sample under the supervisor, in this very process: it becomes `mens-sup run`."""
    from rft.job_file import SUPERVISOR
    from supervisor.yaml_source import read_yaml

    if options.config is not None:
        document, lines = read_yaml(options.config)
        if document.get("kind") != "rft":
            line = f":{lines['kind']}" if "kind" in lines else ""
            raise InputError(
                f"{options.config}{line}: kind is {document.get('kind', 'sft')}, not rft. Write `kind: rft` into a job "
                "for sampling; anything else is started by `mens-sup run`."
            )
    if options.dry_run:
        return _dry_run(options)
    sys.stdout.flush()
    sys.stderr.flush()
    return os.execv(sys.executable, [*SUPERVISOR, "run", *_run_arguments(options)])


def _run_arguments(options: argparse.Namespace) -> list[str]:
    arguments = [] if options.config is None else [str(options.config)]
    for flag, value in (
        ("--max-attempts", options.max_attempts),
        ("--run-dir", options.run_dir),
        ("--authorize-hours", options.authorize_hours),
    ):
        if value is not None:
            arguments.append(f"{flag}={value}")
    arguments += [f"--set={each}" for each in options.sets]
    arguments += [f"--accept-change={each}" for each in options.accept_change]
    if options.no_live:
        arguments.append("--no-live")
    return arguments


def _dry_run(options: argparse.Namespace) -> int:
    from rft.estimate import estimate, render_estimate
    from rft.job_file import load_job
    from rft.parts import PARTS
    from rft.samplers.renderer import close_renderers
    from rft.samplers.sampler import SamplerLostError, SamplerUnusableError
    from rft.speed import known_speed
    from rft.tasks.load import LoadReport
    from trainer.errors import TrainerError

    if options.config is None:
        raise InputError("Name the job's file: mens-sup rft run JOB.yaml --dry-run.")
    sections = load_job(options.config, options.sets)
    try:
        render = None if sections.sampler.type == "openai" else PARTS.render(sections.sampler)
        count = None if render is None else lambda task: len(render(task))
        report = LoadReport()
        found = estimate(sections, PARTS.load_tasks(sections, report), count, known_speed(sections.sampler))
    except (TrainerError, SamplerUnusableError, SamplerLostError) as error:
        raise InputError(str(error)) from None
    finally:
        close_renderers()
    for sentence in report.sentences():
        _say(sentence)
    _print(json.dumps(found.plain(), indent=2) if options.as_json else render_estimate(found))
    return 0


def status_command(options: argparse.Namespace) -> int:
    from rft.status import read_status, render_status

    status = read_status(options.run_dir, options.pass_at)
    _print(json.dumps(status, indent=2) if options.as_json else render_status(status))
    return 0


def export_command(options: argparse.Namespace) -> int:
    from rft.export import export

    manifest = export(options.run_dir, options.out, _guard)
    if options.as_json:
        _print(json.dumps(manifest, indent=2))
        return 0
    left_out = ", ".join(f"{reason} {count}" for reason, count in manifest["left_out"].items())
    _print(
        f"{options.out}: {manifest['rows']} rows"
        + (f"; left out: {left_out}" if left_out else "")
        + ("" if manifest["complete"] else "; the job is not complete")
        + f".\nTrain on it with data.sources: [{{path: {options.out}}}] and data.metadata_fields: [provenance]."
    )
    if manifest["unprotected"]:
        _say("warning: some answers were judged with isolation none; their rows say so.")
    return 0


def _guard(found: Standing) -> Guard:
    """Against the benches that the job names: tasks with an item of theirs were left out, answers are looked at now."""
    from rft.tasks.leakage import Leakage

    return Leakage.of(found.sections.tasks.exclude_benches).items_in


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)

    to_run = _action(actions, "run", "sample, judge and keep, under the same supervision as a training")
    to_run.add_argument("config", metavar="JOB", type=Path, nargs="?", help="YAML file; optional with --run-dir")
    to_run.add_argument("--dry-run", action="store_true", help="say tasks, tokens, hours and money; sample nothing")
    to_run.add_argument("--json", dest="as_json", action="store_true", help="with --dry-run: JSON on standard output")
    to_run.add_argument("--max-attempts", metavar="N", help="attempts of this call, instead of limits.max_attempts")
    to_run.add_argument("--run-dir", metavar="DIR", type=Path, help="the run's folder, new or to be continued")
    to_run.add_argument(
        "--set", dest="sets", metavar="KEY=VALUE", action="append", default=[], help="override a key; may be repeated"
    )
    to_run.add_argument(
        "--accept-change", metavar="KEY", action="append", default=[], help="continue although KEY differs from before"
    )
    to_run.add_argument("--authorize-hours", metavar="H", help="the run may take H hours in all")
    to_run.add_argument("--no-live", action="store_true", help="plain lines even in a terminal")
    to_run.set_defaults(command=run_command)

    to_status = _action(actions, "status", "say how a job stands: counts by source and verdict, spend, time to go")
    to_status.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="the run's folder")
    to_status.add_argument(
        "--pass-at", metavar="K", type=at_least_one, help="pass@K as well, of a job whose budget is not adaptive"
    )
    to_status.add_argument("--json", dest="as_json", action="store_true", help="JSON on standard output")
    to_status.set_defaults(command=status_command)

    to_export = _action(actions, "export", "write the accepted answers as a corpus that training reads")
    to_export.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="the run's folder, also while it runs")
    to_export.add_argument("--out", metavar="FILE", type=Path, required=True, help="the corpus, such as corpus.jsonl")
    to_export.add_argument("--json", dest="as_json", action="store_true", help="the manifest on standard output")
    to_export.set_defaults(command=export_command)

    for name in ELSEWHERE:
        if find_spec(name) is not None:
            importlib.import_module(name).add_actions(actions)


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, what: str
) -> argparse.ArgumentParser:
    return actions.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.", allow_abbrev=False)



def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


EXAMPLES = {
    "run": """
mens-sup rft run configs/rft/quickstart.yaml --dry-run
mens-sup rft run configs/rft/quickstart.yaml --run-dir runs/rft
""",
    "status": "mens-sup rft status runs/rft --json",
    "export": "mens-sup rft export runs/rft --out corpus.jsonl",
    "groups": "mens-sup rft groups configs/rft/quickstart.yaml --out groups.jsonl",
    "verify": "mens-sup rft verify --tasks humaneval --candidates completions.jsonl --out verdicts.jsonl",
    "check-tasks": "mens-sup rft check-tasks configs/rft/quickstart.yaml",
}
RFT = Subcommand("rejection sampling: sample, judge, keep what is right", _add_arguments, EXAMPLES)
