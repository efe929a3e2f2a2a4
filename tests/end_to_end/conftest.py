import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "stand_ins"))

from real_runs import QUICK, log_of, run


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of QUICK, never disturbed. Do not write into it."""
    place = tmp_path_factory.mktemp("undisturbed") / "run"
    assert run(place, QUICK) == 0, log_of(place).read_text()
    return place
