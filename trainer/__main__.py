"""``python -m trainer``: one attempt, told by the file that $MENS_ATTEMPT names.

Ends with an exit report and the matching exit code whatever happens that Python can see. With launch.processes above 1
it starts a process for each rank instead (see launcher.py), of which this is then one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from supervisor.protocol.attempt import (
    EXIT_CODES,
    SPEC_VARIABLE,
    AttemptSpec,
    ExitKind,
    ExitReport,
    read_spec,
)
from supervisor.protocol.lock import FileLock, LockHeldError
from supervisor.protocol.paths import RunPaths
from supervisor.protocol.standby import await_job
from trainer.base_names import is_local
from trainer.errors import classify, evidence_lines, one_paragraph
from trainer.last_words import end_at_once, leave_report, report_of, say
from trainer.launcher import Place, end_with_launcher, own_place, run_ranks
from trainer.reporting import INTERRUPTIBLE, Reporter, SilentReporter
from trainer.stacks import show_stacks
from trainer.warm import OFFLINE, get_ready, hide_gpus, start_afresh_if_imported_otherwise


def main(end: Callable[[int], object] = int) -> int:
    """``end``: called with the exit code when the attempt ended while it was still loading."""
    await_job(get_ready)
    path = os.environ.get(SPEC_VARIABLE)
    if not path:
        print(f"{SPEC_VARIABLE} is not set; start trainings with: mens-sup run CONFIG", file=sys.stderr)  # noqa: T201
        return EXIT_CODES[ExitKind.CONFIG_ERROR]
    spec = read_spec(Path(path))
    paths = RunPaths(Path(spec.run_dir))
    if (place := own_place()) is not None:
        end_with_launcher()
        return _rank(spec, paths, place, end)
    lock = FileLock(paths.trainer_lock)
    try:
        lock.acquire()
        if spec.processes > 1:
            return _ranks(spec, paths)
        reporter = Reporter(spec)
        show_stacks(paths.attempt(spec.attempt).stacks)
    except LockHeldError as error:
        say(f"another trainer (process {error.owner}) works on {paths.root}")
        return EXIT_CODES[ExitKind.PROGRAM_ERROR]
    except OSError as error:
        say(f"the run directory {paths.root} cannot be written: {one_paragraph(error)}")
        return EXIT_CODES[classify(error)]
    try:
        code = leave_report(paths.attempt(spec.attempt).exit_report, _attempt(spec, reporter))
        if reporter.phase in INTERRUPTIBLE:
            end(code)
        return code
    finally:
        lock.release()


def _ranks(spec: AttemptSpec, paths: RunPaths) -> int:
    try:
        return run_ranks(spec)
    except OSError as error:
        message = f"the {spec.processes} processes cannot be started: {one_paragraph(error)}"
        say(message)
        report = ExitReport(classify(error), message, evidence=evidence_lines(error))
        return leave_report(paths.attempt(spec.attempt).exit_report, report)


def _rank(spec: AttemptSpec, paths: RunPaths, place: Place, end: Callable[[int], object]) -> int:
    """One of several processes: rank 0 reports, and each says in a file of its own how it ended."""
    files = paths.attempt(spec.attempt)
    try:
        reporter = Reporter(spec) if place.rank == 0 else SilentReporter(spec)
        show_stacks(files.stacks)
    except OSError as error:
        message = f"the run directory {paths.root} cannot be written: {one_paragraph(error)}"
        say(message)
        return leave_report(files.rank_report(place.rank), ExitReport(classify(error), message))
    code = leave_report(files.rank_report(place.rank), _attempt(spec, reporter, place))
    if reporter.phase in INTERRUPTIBLE:
        end(code)
    return code


def _attempt(spec: AttemptSpec, reporter: Reporter, place: Place | None = None) -> ExitReport:
    try:
        # Imported here: a broken torch or a missing package must still leave an exit report.
        from trainer.effective import read_effective

        sections, document = read_effective(Path(spec.effective_config))
        if sections.device == "cpu":
            hide_gpus()
        if is_local(sections.model.base):
            # Read by huggingface_hub at import: nothing here may wait for a network that isn't needed.
            os.environ.setdefault(OFFLINE, "1")
        start_afresh_if_imported_otherwise()
        from trainer.run import run_attempt

        return run_attempt(sections, document, spec, reporter, place)
    except Exception as error:  # noqa: BLE001  # whatever ends an attempt goes into its exit report
        return report_of(error, reporter)


if __name__ == "__main__":
    sys.exit(main(end_at_once))
