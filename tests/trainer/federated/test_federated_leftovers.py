"""What a killed serve or join has left."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.protocol.marked import marked
from trainer.federated.leftovers import alone, end_marked

POLITE = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {POLITE}"


def _start(program: str, mark: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", program], env={"MENS_TEST_MARK": mark}, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    return process


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    mark = str(tmp_path)
    processes = [_start(POLITE, mark), _start(STUBBORN, mark), _start(POLITE, f"{mark}2")]
    yield processes
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


# proves FED-1 (no orphans: what was left is ended, by force if need be, and nobody else's is)
def test_what_was_left_is_ended_and_nothing_else(tmp_path: Path, three: list[subprocess.Popen[str]]) -> None:
    polite, stubborn, others = three
    assert marked("MENS_TEST_MARK", str(tmp_path)) == sorted([polite.pid, stubborn.pid])
    assert end_marked("MENS_TEST_MARK", str(tmp_path), 0.5) == 2
    assert (polite.wait(), stubborn.wait(), others.poll()) == (-15, -9, None)
    assert end_marked("MENS_TEST_MARK", str(tmp_path), 0.5) == 0


# proves FED-1 (two of the same would end each other's processes: the second is refused)
def test_a_second_one_is_refused(tmp_path: Path) -> None:
    with alone(tmp_path / "serve.lock", "this federation"):
        taking = (
            "import pathlib, sys\nfrom trainer.federated.leftovers import alone\n"
            "with alone(pathlib.Path(sys.argv[1]), 'this federation'):\n    pass"
        )
        second = subprocess.run(
            [sys.executable, "-c", taking, tmp_path / "serve.lock"], capture_output=True, text=True, check=False
        )
    assert f"this federation runs already, as process {os.getpid()}" in second.stderr
    with alone(tmp_path / "serve.lock", "this federation"):
        pass
