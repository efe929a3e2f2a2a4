"""Every defect of the audits, put back, is seen by its test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from mutants import MUTANTS
from run import PROJECT, mutated

RUNNER = PROJECT / "tests" / "mutants" / "run.py"


# proves TRN-1 to TRN-15, DAT-1 to DAT-6: a mutant whose text is gone proves nothing any more
def test_every_text_is_found_and_every_test_is_there() -> None:
    assert [mutant.name for mutant in MUTANTS if mutated(mutant) is None] == []
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 30
    for mutant in MUTANTS:
        file, _, test = mutant.test.partition("::")
        assert f"def {test.partition('[')[0]}(" in (PROJECT / file).read_text(encoding="utf-8"), mutant.name


# proves TRN-1 to TRN-15, DAT-1 to DAT-6
@pytest.mark.slow
def test_every_mutant_is_killed() -> None:
    done = subprocess.run([sys.executable, str(RUNNER)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
