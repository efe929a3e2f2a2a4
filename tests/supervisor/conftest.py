"""The scripted kind of job becomes an installed one for the tests: its metadata lies beside it."""

import sys
from pathlib import Path

STAND_INS = str(Path(__file__).parents[1] / "stand_ins")
if STAND_INS not in sys.path:
    sys.path.insert(0, STAND_INS)
