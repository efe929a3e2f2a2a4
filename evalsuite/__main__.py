"""``python -m evalsuite``: one attempt of an evaluation, told by the file that $MENS_ATTEMPT names. No torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rft.attempt_program import run_program
from supervisor.protocol.attempt import AttemptSpec, ExitReport
from trainer.reporting import Reporter


def main() -> int:
    return run_program(_attempt, "mens-sup eval run BENCH.yaml --model BASE --out DIR")


def _attempt(spec: AttemptSpec, reporter: Reporter) -> ExitReport:
    # Imported here: a missing package must still leave an exit report.
    from evalsuite.attempt import evaluate
    from evalsuite.config import EvalSections
    from rft.effective import read_effective_as

    return evaluate(read_effective_as(Path(spec.effective_config), EvalSections), spec, reporter)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is stored and closed: no thread of a judge that still waits may hold up the end
