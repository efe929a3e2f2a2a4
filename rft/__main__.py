"""``python -m rft``: one attempt of a job, told by the file that $MENS_ATTEMPT names. No torch."""

from __future__ import annotations

import os
import sys
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
from trainer.errors import classify, one_paragraph
from trainer.last_words import leave_report, report_of, say
from trainer.reporting import Reporter
from trainer.stacks import show_stacks


def main() -> int:
    path = os.environ.get(SPEC_VARIABLE)
    if not path:
        say(f"{SPEC_VARIABLE} is not set; start jobs with: mens-sup rft run JOB.yaml")
        return EXIT_CODES[ExitKind.CONFIG_ERROR]
    spec = read_spec(Path(path))
    paths = RunPaths(Path(spec.run_dir))
    lock = FileLock(paths.trainer_lock)
    try:
        lock.acquire()
        reporter = Reporter(spec)
        show_stacks(paths.attempt(spec.attempt).stacks)
    except LockHeldError as error:
        say(f"another process ({error.owner}) works on {paths.root}")
        return EXIT_CODES[ExitKind.PROGRAM_ERROR]
    except OSError as error:
        say(f"the run directory {paths.root} cannot be written: {one_paragraph(error)}")
        return EXIT_CODES[classify(error)]
    try:
        return leave_report(paths.attempt(spec.attempt).exit_report, _attempt(spec, reporter))
    finally:
        lock.release()


def _attempt(spec: AttemptSpec, reporter: Reporter) -> ExitReport:
    try:
        # Imported here: a missing package must still leave an exit report.
        from rft.effective import read_effective
        from rft.parts import PARTS
        from rft.run import run_attempt

        effective = read_effective(Path(spec.effective_config))
        return run_attempt(effective.sections, spec, reporter, effective.stop_grace_seconds, PARTS)
    except Exception as error:  # noqa: BLE001  # whatever ends an attempt goes into its exit report
        return report_of(error, reporter)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is stored and closed: no thread of a judge that still waits may hold up the end
