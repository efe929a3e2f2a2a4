"""``python -m rft``: one attempt of a job, told by the file that $MENS_ATTEMPT names. No torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rft.attempt_program import run_program
from supervisor.protocol.attempt import AttemptSpec, ExitReport
from trainer.reporting import Reporter


def main() -> int:
    return run_program(_attempt, "mens-sup rft run JOB.yaml")


def _attempt(spec: AttemptSpec, reporter: Reporter) -> ExitReport:
    # Imported here: a missing package must still leave an exit report.
    from rft.effective import read_effective
    from rft.parts import PARTS
    from rft.run import run_attempt

    effective = read_effective(Path(spec.effective_config))
    return run_attempt(effective.sections, spec, reporter, effective.stop_grace_seconds, PARTS)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is stored and closed: no thread of a judge that still waits may hold up the end
