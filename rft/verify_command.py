"""``mens-sup rft verify`` and ``mens-sup rft check-tasks``: judging without sampling. Light; imports when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path

EXIT_JUDGED = 0
EXIT_NOT_ALL = 1
"""verify: some rows have no verdict, because the judge failed on them. check-tasks: some tasks are not fit."""


def add_verify(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    what = "judge completions that somebody has made, without a model"
    parser = actions.add_parser(
        "verify",
        help=what,
        description=(
            f"{what[0].upper()}{what[1:]}. Rows of the candidates are JSON objects with task_id and completion. "
            "Exit code 0: every row has a verdict, whichever; 1: the judge itself failed on some; 2: bad input."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("--tasks", required=True, help="humaneval, or a JSONL file of tasks")
    parser.add_argument("--candidates", required=True, type=Path, metavar="FILE", help="JSONL file of completions")
    parser.add_argument(
        "--verifier", type=Path, metavar="SPEC", help="YAML file with name and settings; by default what the tasks name"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the verdicts there, as JSONL")
    parser.add_argument(
        "--json", dest="as_json", action="store_true", help="one JSON object per row, then none for the summary"
    )
    _add_judging(parser)
    parser.set_defaults(command=_verify)


def add_check_tasks(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    what = "judge the tasks of a job before anything is sampled"
    parser = actions.add_parser(
        "check-tasks",
        help=what,
        description=(
            f"{what[0].upper()}{what[1:]}: gold answers must be accepted, empty ones must not. Exit code 0: all are "
            "fit; 1: some are not; 2: bad input."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("job", type=Path, metavar="JOB", help="YAML file of a job of kind rft")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="KEY=VALUE", help="change the job")
    parser.add_argument("--json", dest="as_json", action="store_true", help="one JSON object per task")
    parser.set_defaults(command=_check_tasks)


def _add_judging(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=_count, metavar="N", help="rows judged at a time; by default one per core")
    parser.add_argument(
        "--isolation",
        choices=("bubblewrap", "none"),
        default="bubblewrap",
        help="none runs completions unprotected, as you; every verdict says so",
    )
    parser.add_argument("--cache", action="store_true", help="use and keep verdicts in the user's cache")


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def _verify(options: argparse.Namespace) -> int:
    from rft.verify import Request, verify

    request = Request(
        options.tasks,
        options.candidates,
        options.verifier,
        options.out,
        options.as_json,
        options.workers,
        options.isolation,
        options.cache,
    )
    return EXIT_JUDGED if verify(request) else EXIT_NOT_ALL


def _check_tasks(options: argparse.Namespace) -> int:
    from rft.check_tasks import check_job

    return EXIT_JUDGED if check_job(options.job, options.sets, options.as_json) else EXIT_NOT_ALL


def add_actions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    add_verify(actions)
    add_check_tasks(actions)
