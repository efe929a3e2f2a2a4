"""The scripted kind of job becomes an installed one for the tests: its metadata lies beside it."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

STAND_INS = str(Path(__file__).parents[1] / "stand_ins")
if STAND_INS not in sys.path:
    sys.path.insert(0, STAND_INS)


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Any]:
    """Makes a run of the scripted trainer under supervisors of its own: ``supervised(*faults, **sections)``."""
    from supervised import Supervised

    made: list[Supervised] = []

    def make(*faults: dict[str, Any], **sections: dict[str, Any]) -> Supervised:
        made.append(Supervised(tmp_path, *faults, **sections))
        return made[-1]

    yield make
    for one in made:
        one.clear()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The final adapter of the scripted trainer's run that nothing disturbs."""
    from scripted_runs import config, final_adapter, run

    place = tmp_path_factory.mktemp("undisturbed") / "run"
    run(config(), place)
    return final_adapter(place)


@pytest.fixture
def sleeper() -> Iterator[Callable[[], int]]:
    """Starts a process that sleeps; the pid."""
    made: list[subprocess.Popen[bytes]] = []

    def make() -> int:
        made.append(subprocess.Popen(["sleep", "600"]))
        return made[-1].pid

    yield make
    for process in made:
        process.kill()
        process.wait()


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    """In place of /dev/shm."""
    place = tmp_path / "memory"
    place.mkdir()
    return place
