"""``python -m rft``: one attempt of a job, told by the file that $MENS_ATTEMPT names. No torch."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from pathlib import Path

from supervisor.protocol.attempt import (
    EXIT_CODES,
    SPEC_VARIABLE,
    AttemptSpec,
    ExitKind,
    ExitReport,
    read_spec,
    write_exit_report,
)
from supervisor.protocol.lock import FileLock, LockHeldError
from supervisor.protocol.paths import RunPaths
from trainer.errors import TrainerError, classify, evidence_lines, one_paragraph
from trainer.reporting import Reporter
from trainer.stacks import show_stacks


def main() -> int:
    path = os.environ.get(SPEC_VARIABLE)
    if not path:
        _say(f"{SPEC_VARIABLE} is not set; start jobs with: mens-sup rft run JOB.yaml")
        return EXIT_CODES[ExitKind.CONFIG_ERROR]
    spec = read_spec(Path(path))
    paths = RunPaths(Path(spec.run_dir))
    lock = FileLock(paths.trainer_lock)
    try:
        lock.acquire()
        reporter = Reporter(spec)
        show_stacks(paths.attempt(spec.attempt).stacks)
    except LockHeldError as error:
        _say(f"another process ({error.owner}) works on {paths.root}")
        return EXIT_CODES[ExitKind.PROGRAM_ERROR]
    except OSError as error:
        _say(f"the run directory {paths.root} cannot be written: {one_paragraph(error)}")
        return EXIT_CODES[classify(error)]
    try:
        report = _attempt(spec, reporter)
        with contextlib.suppress(OSError):  # no room for the report: the exit code still says it
            write_exit_report(paths.attempt(spec.attempt).exit_report, report)
        return EXIT_CODES[report.kind]
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
        known = isinstance(error, TrainerError)
        _say(one_paragraph(error) if known else "".join(traceback.format_exception(error)))
        return ExitReport(
            classify(error),
            one_paragraph(error),
            step=reporter.step,
            phase=reporter.phase.name.lower(),
            evidence=() if known else evidence_lines(error),
        )


def _say(text: str) -> None:
    """Print to stderr.log, which may lie on the very disk that is full; the exit code must survive that."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is stored and closed: no thread of a judge that still waits may hold up the end
