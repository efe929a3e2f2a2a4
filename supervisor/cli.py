"""``mens-sup``: the command line.

Every command imports what it needs when it runs, so that ``status`` answers at once; argparse for
the same reason (typer brings pydantic and would more than double the time). Bad input ends in a
paragraph on standard error and an exit code, never in a traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.command_line import Parser, add_json, at_least_one, give_examples
from supervisor.examples import EXAMPLES
from supervisor.problems import InputError

if TYPE_CHECKING:
    from supervisor.config import LoadedConfig
    from supervisor.state import Outcome
    from supervisor.view.screen import View
    from supervisor.view.steering import OwnRun

EXIT_COMPLETED = 0
EXIT_GAVE_UP = 1
EXIT_BAD_INPUT = 2
EXIT_STOPPED = 3
EXIT_INTERRUPTED = 130
RUNS = Path("runs")


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point of ``mens-sup``; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    given, trainer_command = _split_command(given)
    options = _parser(given[:1]).parse_args(given)
    options.trainer_command = trainer_command
    try:
        code: int = options.command(options)
        if sys.stdout is not None:
            sys.stdout.flush()
    except InputError as error:
        _complain(str(error))
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return EXIT_GAVE_UP
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _complain(f"{place}{error.strerror or error}")
        return EXIT_GAVE_UP
    return code


def run(options: argparse.Namespace) -> int:
    """Supervise a run to its end."""
    config, directory = _what_to_run(options.config, options.run_dir, options.sets, options.trainer_command)
    from supervisor.state import Outcome
    from supervisor.supervise import RunRequest, supervise
    from supervisor.view.screen import open_view
    from supervisor.view.steering import OwnRun

    request = RunRequest(
        config,
        directory,
        options.max_attempts,
        tuple(options.accept_change),
        options.authorize_hours,
        options.force_overfit,
    )
    own = OwnRun()
    with open_view(directory, live=not options.no_live, steering=own) as view:
        outcome = supervise(request, view)
        while outcome is Outcome.STOPPED and own.paused and _goes_on(own, view):
            outcome = supervise(RunRequest(None, directory, options.max_attempts), view)
    _leave_report(directory)
    if outcome is Outcome.COMPLETED:
        outcome = _judge(config, directory)
    try:
        _say_outcome(directory, outcome)
    except OSError:  # nobody is reading; the exit code still tells
        _discard_output()
    codes = {
        Outcome.COMPLETED: EXIT_COMPLETED,
        Outcome.STOPPED: EXIT_STOPPED,
        Outcome.FAILED_CONFIG: EXIT_BAD_INPUT,
    }
    return codes.get(outcome, EXIT_GAVE_UP)


def _goes_on(own: OwnRun, view: View) -> bool:
    """Wait while the run is paused: True when it is to go on, False when it is to end here."""
    from supervisor.process.signals import SignalQueue

    own.at_rest = True
    with SignalQueue() as signals:
        while own.paused:
            view()
            if view.left or own.ended or signals.take():
                return False
            view.wait(0.5)
    return True


def _judge(config: LoadedConfig | None, directory: Path) -> Outcome:
    """The outcome of a completed run after its gates, if it has any: stopped when they were."""
    from supervisor.config import load_config
    from supervisor.state import Outcome

    own = (config or load_config(directory / "run.yaml", preflight=False)).own
    if not own.gates:
        return Outcome.COMPLETED
    from supervisor.gates import run_gates

    judged = run_gates(directory, own.gates, own.notify)
    _leave_report(directory)
    return Outcome.COMPLETED if judged else Outcome.STOPPED


def _leave_report(directory: Path) -> None:
    """RUN/report.html. What the run came to stands whether there is a page about it or not."""
    from supervisor.protocol.events import EventLog
    from supervisor.protocol.paths import RunPaths
    from supervisor.report import write_report

    try:
        write_report(directory)
    except (InputError, OSError, ValueError) as error:
        with contextlib.suppress(OSError):
            EventLog(RunPaths(directory).events, "supervisor").append("warning", f"no report was written: {error}")


def status(options: argparse.Namespace) -> int:
    """Say how a run stands."""
    from supervisor.daemon.control.run_commands import render, status_of

    found = status_of(options.run)
    _print_json(found) if options.as_json else print(render(found))
    return 0


def list_checkpoints(options: argparse.Namespace) -> int:
    """List checkpoints without reading their files."""
    from supervisor.checkpoint_report import list_report, render_report

    entries = list_report(options.run_dir)
    _print_json([entry.plain() for entry in entries]) if options.as_json else print(render_report(entries))
    return 0


def verify_checkpoints(options: argparse.Namespace) -> int:
    """Check every file of every checkpoint; 1 when one that isn't in quarantine is bad."""
    from supervisor.checkpoint_report import render_report, verify_report

    entries = verify_report(options.run_dir)
    _print_json([entry.plain() for entry in entries]) if options.as_json else print(render_report(entries))
    return 1 if any(entry.faults and not entry.quarantined for entry in entries) else 0


def diagnose(options: argparse.Namespace) -> int:
    """Say why a program died, from its log."""
    from supervisor.diagnosis.from_log import diagnose_log, plain, render
    from supervisor.view.text import clean

    found = diagnose_log(options.log, options.exit_code, options.signal, options.kernel_log)
    _print_json(plain(found)) if options.as_json else print(clean(render(found), lines=True))
    return 0


def validate(options: argparse.Namespace) -> int:
    """Check a configuration and the files that it names."""
    from supervisor.config import load_config

    loaded = load_config(options.config, options.sets)
    if options.as_json:
        sections = loaded.sections.model_dump(mode="json")
        _print_json({"kind": loaded.kind.name, "name": loaded.own.name, "sections": sections})
    else:
        print(f"{options.config}: good, kind {loaded.kind.name}, run name {loaded.own.name}")
    return 0


def schema(options: argparse.Namespace) -> int:
    """Print the JSON schema of a configuration."""
    from supervisor.config import installed_kind, json_schema

    _print_json(json_schema(installed_kind(options.kind)))
    return 0


def doctor(options: argparse.Namespace) -> int:
    """Say what is missing on this machine; 1 when a check failed."""
    from supervisor.doctor import Verdict, examine, render

    checks = examine(RUNS)
    _print_json([check.plain() for check in checks]) if options.as_json else print(render(checks))
    return EXIT_GAVE_UP if any(check.verdict is Verdict.FAIL for check in checks) else 0


def metrics(options: argparse.Namespace) -> int:
    """Print the metrics of the runs in a folder, or leave them to the node exporter."""
    from supervisor.metrics import MetricsSource, write_textfile

    text = MetricsSource(options.runs).text()
    if options.out is None:
        print(text, end="")
    else:
        write_textfile(options.out, text)
    return 0


def completion(options: argparse.Namespace) -> int:
    """Print a script that completes `mens-sup` in a shell."""
    try:
        import shtab
    except ImportError:
        raise InputError("shtab, which writes the script, is not installed. pip install shtab") from None
    print(shtab.complete(_parser([]), shell=options.shell))
    return 0


def _parser(first: list[str]) -> Parser:
    """The parser; ``first`` is the first argument: the commands of other packages are imported only when needed."""
    parser = Parser(
        prog="mens-sup",
        description="Fine-tuning that finishes by itself: launch, watch, diagnose, relieve, relaunch.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    to_run = _command(commands, "run", run, "train CONFIG to the end, relaunching after failures")
    to_run.usage = "mens-sup run [OPTIONS] CONFIG | mens-sup run [OPTIONS] -- COMMAND [ARGUMENT ...]"
    to_run.description = (
        "Train CONFIG, or run any other trainer's COMMAND, to the end, relaunching after failures. "
        "Exit code 0: completed; 1: gave up; "
        "2: bad configuration or unusable run directory; 3: stopped on request, go on with --run-dir."
    )
    to_run.add_argument("config", metavar="CONFIG", type=Path, nargs="?", help="YAML file; optional with --run-dir")
    to_run.add_argument(
        "--max-attempts", metavar="N", type=at_least_one, help="attempts of this call, instead of limits.max_attempts"
    )
    to_run.add_argument(
        "--run-dir", metavar="DIR", type=Path, help="the run's folder, new or to be continued (runs/NAME-TIMESTAMP)"
    )
    _add_sets(to_run)
    to_run.add_argument(
        "--accept-change",
        metavar="KEY",
        action="append",
        default=[],
        help="continue although KEY differs from what the run began with; may be repeated",
    )
    to_run.add_argument(
        "--authorize-hours", metavar="H", type=_hours, help="the run may take H hours in all, beyond limits.max_hours"
    )
    to_run.add_argument(
        "--force-overfit", action="store_true", help="train although the data would be passed over more than 4 times"
    )
    to_run.add_argument("--no-live", action="store_true", help="plain lines even in a terminal")

    to_status = _command(commands, "status", status, "say how a run stands")
    to_status.add_argument(
        "run", metavar="RUN", nargs="?", help="a run's folder, or its id or name in the daemon's queue (the newest)"
    )
    add_json(to_status)

    checkpoints = commands.add_parser("checkpoints", help="list a run's checkpoints, or verify every file of them")
    actions = checkpoints.add_subparsers(metavar="ACTION", required=True)
    for name, action, what in (
        ("list", list_checkpoints, "list the checkpoints of all lineages, and those in quarantine"),
        ("verify", verify_checkpoints, "check every file of every checkpoint; exit code 1 when one is bad"),
    ):
        to_look = _command(actions, name, action, what)
        to_look.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="a run's folder")
        add_json(to_look)

    to_diagnose = _command(commands, "diagnose", diagnose, "say why a program died, from the log of any trainer")
    to_diagnose.add_argument("log", metavar="LOG", help="its log (stderr, or everything); - reads standard input")
    to_diagnose.add_argument("--exit-code", metavar="N", type=int, help="its exit code, such as 1 or 137")
    to_diagnose.add_argument("--signal", metavar="SIG", help="the signal that ended it, such as SIGKILL")
    to_diagnose.add_argument("--kernel-log", metavar="FILE", type=Path, help="the kernel's log of that time (`dmesg`)")
    add_json(to_diagnose)

    to_validate = _command(commands, "validate", validate, "check a configuration and the files that it names")
    to_validate.add_argument("config", metavar="CONFIG", type=Path, help="YAML file")
    _add_sets(to_validate)
    to_validate.add_argument(
        "--json", dest="as_json", action="store_true", help="the job's own sections as resolved, as JSON"
    )

    to_schema = _command(commands, "schema", schema, "print the JSON schema of a configuration, for editors")
    to_schema.add_argument("--kind", default="sft", help="kind of job (sft, command)")

    to_doctor = _command(commands, "doctor", doctor, "say what is missing on this machine, and how to get it")
    to_doctor.description = (
        "Look at Python, GPU and driver, torch and bitsandbytes, memory, disk, control group, systemd, the sandbox and "
        "the environment of vLLM. Each line is ok, warn or FAIL, with a remedy. Exit code 1 when a check failed."
    )
    add_json(to_doctor)

    to_measure = _command(commands, "metrics", metrics, "print metrics of runs in Prometheus' text format")
    to_measure.add_argument("--runs", metavar="DIR", type=Path, default=RUNS, help="where the runs lie (runs)")
    to_measure.add_argument(
        "--out", metavar="FILE", type=Path, help="replace FILE.prom instead, for the node exporter's textfile collector"
    )

    to_complete = _command(commands, "completion", completion, "print a script that completes mens-sup in a shell")
    to_complete.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell")
    from supervisor.daemon.control.commands import add_commands

    add_commands(lambda name, what: _parser_of(commands, name, what))
    give_examples(parser, EXAMPLES)
    if first and first[0] in commands.choices:
        return parser
    from supervisor.subcommands import load_subcommand, subcommand_names

    for name in subcommand_names():
        subcommand = load_subcommand(name)
        added = _parser_of(commands, name, subcommand.help)
        subcommand.add_arguments(added)
        give_examples(added, {**subcommand.examples, "": EXAMPLES.get(name, subcommand.examples.get("", ""))})
    return parser


def _command(
    commands: argparse._SubParsersAction[Parser], name: str, action: object, what: str
) -> Parser:
    parser = _parser_of(commands, name, what)
    parser.set_defaults(command=action)
    return parser


def _parser_of(commands: argparse._SubParsersAction[Parser], name: str, what: str) -> Parser:
    return commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.", allow_abbrev=False)


def _add_sets(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        dest="sets",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override a key, for example train.max_steps=20; may be repeated",
    )


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of hours above 0")
    return hours


def _split_command(arguments: list[str]) -> tuple[list[str], list[str] | None]:
    """What stands before `--` and, for `mens-sup run -- COMMAND`, the command after it."""
    if arguments[:1] != ["run"] or "--" not in arguments:
        return arguments, None
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _what_to_run(
    config: Path | None, run_dir: Path | None, sets: list[str], command: list[str] | None = None
) -> tuple[LoadedConfig | None, Path]:
    """The configuration (None: as the run directory has it) and the run directory."""
    from supervisor.config import load_command, load_config

    if command is not None:
        if config is not None or not command:
            raise InputError("Give either a configuration or, after --, the command to supervise.")
        loaded = load_command(command, sets)
        return loaded, run_dir or _new_run_dir(loaded.own.name)
    if run_dir is None:
        if config is None:
            raise InputError("Name a configuration, or an existing run with --run-dir.")
        loaded = load_config(config, sets)
        return loaded, _new_run_dir(loaded.own.name)
    from supervisor.state import Outcome
    from supervisor.supervise.opening import stored_run

    known = stored_run(run_dir)
    preflight = known is None or known.outcome is not Outcome.COMPLETED  # who has trained needs no data any more
    if config is not None:
        return load_config(config, sets, preflight=preflight), run_dir
    if not (run_dir / "run.yaml").is_file():
        raise InputError(f"{run_dir} holds no run (no run.yaml). Name a configuration to start one there.")
    if not sets:
        return None, run_dir
    overrides = known.overrides if known else {}
    return load_config(run_dir / "run.yaml", sets, overrides=overrides, preflight=preflight), run_dir


def _new_run_dir(name: str) -> Path:
    import time

    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidate, number = RUNS / stem, 2
    while candidate.exists():
        candidate, number = RUNS / f"{stem}-{number}", number + 1
    return candidate


def _say_outcome(directory: Path, outcome: Outcome) -> None:
    from supervisor.protocol.paths import RunPaths
    from supervisor.state import Outcome, read_state
    from supervisor.view.text import clean

    state = read_state(RunPaths(directory).state)
    explanation = clean(state.explanation, lines=True) if state else ""
    text = f"{directory}: {outcome.value.replace('_', ' ')}. {explanation}".rstrip()
    print(text, flush=True) if outcome in (Outcome.COMPLETED, Outcome.STOPPED) else _complain(text)


def _discard_output() -> None:
    """The reader is gone: what is still buffered must not be tried again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_json(value: object) -> None:
    import json

    print(json.dumps(value, indent=2))


def _complain(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
