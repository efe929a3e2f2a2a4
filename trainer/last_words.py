"""How an attempt ends whatever happens that Python can see: its exit report, the matching exit code, a word on stderr.

Shared by all programs that speak the run directory's contract. No torch.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from supervisor.protocol.attempt import EXIT_CODES, ExitReport, write_exit_report
from trainer.errors import StopRequestedError, TrainerError, classify, evidence_lines, one_paragraph
from trainer.reporting import INTERRUPTIBLE, STOPPED_LOADING, Reporter


def say(text: str) -> None:
    """Print to stderr.log, which may lie on the very disk that is full; the exit code must survive that."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)  # noqa: T201


def leave_report(path: Path, report: ExitReport) -> int:
    """Write the report and return its exit code."""
    try:
        write_exit_report(path, report)
    except OSError as error:
        # No room for the report: the exit code still says what it would have said.
        say(f"no exit report could be written: {one_paragraph(error)}")
    return EXIT_CODES[report.kind]


def report_of(error: Exception, reporter: Reporter) -> ExitReport:
    """What ended an attempt, as its report; said on stderr as well, with a traceback where the cause is not known."""
    if reporter.stop_requested and reporter.phase in INTERRUPTIBLE:
        # An import makes of it an error of its own, often one that doesn't name the request to stop any more.
        error = StopRequestedError(STOPPED_LOADING)
    known = isinstance(error, TrainerError)
    say(one_paragraph(error) if known else "".join(traceback.format_exception(error)))
    return ExitReport(
        classify(error),
        one_paragraph(error),
        step=reporter.step,
        phase=reporter.phase.name.lower(),
        # The message of a known end says it all; where in our code it was raised helps nobody.
        evidence=() if known else evidence_lines(error),
    )


def end_at_once(code: int) -> NoReturn:
    """End without the interpreter's own tidying up.

    For an attempt that was torn off in the middle of an import or of loading: threads and destructors of half-made
    libraries may wait there for ever, and what is to be known has been written.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)
