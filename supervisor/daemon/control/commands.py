"""The commands that ask the daemon, and those that look at a run wherever it is: their arguments.

Light, like every module that ``mens-sup --help`` imports.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path

from supervisor.command_line import add_json, at_least_one

Adder = Callable[[str, str], argparse.ArgumentParser]
"""Makes the parser of a command from its name and what it does."""

_RUN = "a run's folder, or its id or name in the daemon's queue"


def add_commands(add: Adder) -> None:
    _add_queue(add)
    _add_schedule(add)
    _add_looking(add)


def _add_queue(add: Adder) -> None:
    submit = add("submit", "queue a job with the daemon, which runs it by itself")
    submit.description = (
        "Queue CONFIG, of any kind of job, with the daemon, which checks it first as `mens-sup validate` does and "
        "keeps it as it is now. Exit code 0: queued; 2: bad configuration, no daemon, or the daemon will not do it."
    )
    submit.epilog = (
        "examples:  mens-sup submit sft.yaml    mens-sup submit eval.yaml --after sft    "
        "mens-sup submit urgent.yaml --priority 10 --set train.max_steps=200"
    )
    submit.add_argument("config", metavar="CONFIG", type=Path, help="YAML file that the daemon can read, too")
    submit.add_argument(
        "--after",
        metavar="RUN",
        action="append",
        default=[],
        help="start only when this entry, by its id or name, has completed; may be repeated",
    )
    submit.add_argument(
        "--priority", metavar="N", type=_priority, default=0, help="higher ones go first, -1000 to 1000 (0)"
    )
    submit.add_argument("--name", metavar="NAME", help="its name in the queue (that of the configuration)")
    submit.add_argument("--run-dir", metavar="DIR", type=Path, help="the run's folder (a new one of the daemon's)")
    submit.add_argument(
        "--set",
        dest="sets",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override a key, for example train.max_steps=20; may be repeated",
    )
    submit.add_argument(
        "--accept-change", metavar="KEY", action="append", default=[], help="as of `mens-sup run`; may be repeated"
    )
    submit.add_argument("--max-attempts", metavar="N", type=int, help="as of `mens-sup run`")
    submit.add_argument("--authorize-hours", metavar="H", type=float, help="as of `mens-sup run`")
    submit.add_argument("--force-overfit", action="store_true", help="as of `mens-sup run`")
    add_json(submit)
    _does(submit, "queue_commands", "submit")

    queue = add("queue", "list the daemon's queue, in the order of its ids")
    queue.add_argument("--all", dest="whole", action="store_true", help="everything that ended, too (the last 10)")
    add_json(queue)
    _does(queue, "queue_commands", "queue")

    for name, what in (
        ("cancel", "take a job out of the queue; a running one saves a checkpoint and ends"),
        ("pause", "hold a job back; a running one saves a checkpoint and ends"),
        ("resume", "put a paused job into the queue again; it goes on from its checkpoint"),
    ):
        act = add(name, what)
        act.add_argument("run", metavar="ID", help=_RUN)
        act.set_defaults(action=name)
        add_json(act)
        _does(act, "queue_commands", "act")


def _add_schedule(add: Adder) -> None:
    schedule = add("schedule", "submit a job again and again, at set times")
    actions = schedule.add_subparsers(metavar="ACTION", required=True)
    added = actions.add_parser("add", help="submit JOB at every time that the cron line names", allow_abbrev=False)
    added.description = "Submit JOB at every time that the cron line names, in the daemon's time zone."
    added.epilog = 'example:  mens-sup schedule add nightly.yaml --cron "0 2 * * *"'
    added.add_argument("config", metavar="JOB", type=Path, help="YAML file; read anew each time")
    added.add_argument(
        "--cron", metavar="LINE", required=True, help="minute hour day-of-month month day-of-week, such as '0 2 * * *'"
    )
    add_json(added)
    _does(added, "queue_commands", "schedule_add")
    listed = actions.add_parser("list", help="list the schedules and when each is due", allow_abbrev=False)
    listed.description = "List the schedules and when each is due."
    add_json(listed)
    _does(listed, "queue_commands", "schedule_list")
    removed = actions.add_parser("remove", help="submit it no more; what is queued stays", allow_abbrev=False)
    removed.description = "Submit the job of a schedule no more; what is queued stays."
    removed.add_argument("schedule", metavar="ID", help="as `mens-sup schedule list` says it")
    _does(removed, "queue_commands", "schedule_remove")


def _add_looking(add: Adder) -> None:
    watch = add("watch", "follow a run as it goes, until it ends")
    watch.description = (
        "Follow a run as it goes, until it ends: a live screen in a terminal, plain lines elsewhere. Keys: q leaves "
        "the view, l shows log lines, s stops the run with a checkpoint, p pauses one of the daemon's queue and "
        "lets it go on. Leaving, by q or Ctrl-C, never touches the run. Exit code as of `mens-sup run`, 0 after q."
    )
    watch.add_argument("run", metavar="RUN", nargs="?", help=f"{_RUN} (the newest)")
    watch.add_argument("--no-live", action="store_true", help="plain lines even in a terminal")
    _does(watch, "run_commands", "watch")

    logs = add("logs", "print what a run's program has written")
    logs.description = (
        "Print what the program of a run's newest attempt has written to its standard output, then what it has written "
        "to its standard error (where those of a command of kind command both are); with -f, as they come."
    )
    logs.add_argument("run", metavar="RUN", nargs="?", help=f"{_RUN} (the newest)")
    logs.add_argument("-f", "--follow", action="store_true", help="go on, also with later attempts, until the run ends")
    logs.add_argument("--attempt", metavar="N", type=at_least_one, help="of this attempt")
    logs.add_argument("--only", choices=("stdout", "stderr"), help="one of the two")
    logs.add_argument("-n", "--lines", metavar="N", type=at_least_one, help="only the last N lines of each")
    _does(logs, "run_commands", "logs")

    report = add("report", "write a run's page: how it went, drawn, in one file that needs no network")
    report.epilog = "examples:  mens-sup report runs/sft-20261130-012030 --open    mens-sup report 12 --out page.html"
    report.add_argument("run", metavar="RUN", nargs="?", help=f"{_RUN} (the newest)")
    report.add_argument(
        "--out", metavar="FILE", type=Path, help="where to write it, - for standard output (report.html in RUN)"
    )
    report.add_argument("--open", dest="show", action="store_true", help="show it in a browser")
    _does(report, "run_commands", "report")


def _does(parser: argparse.ArgumentParser, module: str, function: str) -> None:
    """Import what does it only when it is done."""

    def command(options: argparse.Namespace) -> int:
        code: int = getattr(importlib.import_module(f"supervisor.daemon.control.{module}"), function)(options)
        return code

    parser.set_defaults(command=command)


def _priority(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 1001
    if not -1000 <= number <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from -1000 to 1000")
    return number


