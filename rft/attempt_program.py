"""One attempt of a job as a program: told by the file that $MENS_ATTEMPT names, holds the lock, leaves a report."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rft.samplers.renderer import close_renderers
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

Attempt = Callable[[AttemptSpec, Reporter], ExitReport]


def run_program(attempt: Attempt, how_to_start: str) -> int:
    """The exit code. Whatever ``attempt`` raises goes into the exit report; it imports what may be missing itself."""
    path = os.environ.get(SPEC_VARIABLE)
    if not path:
        say(f"{SPEC_VARIABLE} is not set; start jobs with: {how_to_start}")
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
        return leave_report(paths.attempt(spec.attempt).exit_report, _reported(attempt, spec, reporter))
    finally:
        close_renderers()
        lock.release()


def _reported(attempt: Attempt, spec: AttemptSpec, reporter: Reporter) -> ExitReport:
    try:
        return attempt(spec, reporter)
    except Exception as error:  # noqa: BLE001  # whatever ends an attempt goes into its exit report
        return report_of(error, reporter)
