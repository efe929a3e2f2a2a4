"""Programs that cannot outlive whoever started them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from rft.samplers.kept import Kept

CAP_SECONDS = 300.0
ESCAPING = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(3600)
    os._exit(0)
print("started", flush=True)
while True:
    time.sleep(0.05)
    if os.path.exists(sys.argv[1] + ".end"):
        sys.exit(7)
"""
OWNER = """
import sys, time
from pathlib import Path
from rft.samplers.kept import Kept
kept = Kept([sys.executable, "-S", sys.argv[1], sys.argv[2]], {}, Path(sys.argv[3]))
time.sleep(3600)
"""


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + CAP_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    """One that leaves a grandchild in a session of its own and tells its pid in the file ``far``."""
    script = tmp_path / "escaping.py"
    script.write_text(ESCAPING)
    return [sys.executable, "-S", str(script), str(tmp_path / "far")]


def far_pid(folder: Path) -> int:
    until(lambda: (folder / "far").exists() and (folder / "far").read_text())
    return int((folder / "far").read_text())


# proves RFT-4: a job that is ended leaves no sampler behind
def test_closing_ends_everything_that_was_started(program: list[str], tmp_path: Path) -> None:
    kept = Kept(program, {}, tmp_path / "log")
    far = far_pid(tmp_path)
    until(lambda: kept.pid)
    pid = kept.pid
    assert pid is not None and not gone(pid) and not gone(far)
    assert kept.ended() is None
    kept.close()
    assert gone(pid) and gone(far)
    kept.close()


def test_owner_killed_ends_everything_that_was_started(program: list[str], tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, *program[2:], str(tmp_path / "log")])
    far = far_pid(tmp_path)
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    until(lambda: gone(far))


def test_keeper_killed_takes_the_program_with_it(program: list[str], tmp_path: Path) -> None:
    kept = Kept(program, {}, tmp_path / "log")
    far_pid(tmp_path)
    until(lambda: kept.pid)
    assert kept.pid is not None
    kept._keeper.kill()
    until(lambda: gone(kept.pid or 0) and kept.ended())
    assert kept.ended() == "was ended together with its keeper"
    kept.close()
    os.kill(int((tmp_path / "far").read_text()), signal.SIGKILL)  # nobody is left to do it


def test_how_it_ended_and_what_it_said_last(program: list[str], tmp_path: Path) -> None:
    (tmp_path / "log").write_text("of an earlier one\n")
    kept = Kept(program, {}, tmp_path / "log")
    far = far_pid(tmp_path)
    until(lambda: kept.tail() == ("started",))
    (tmp_path / "far.end").touch()
    until(kept.ended)
    assert kept.ended() == "ended with exit code 7"
    assert gone(far), "what it left behind is ended as well"
    kept.close()

    (tmp_path / "far").unlink()
    (tmp_path / "far.end").unlink()
    kept = Kept(program, {}, tmp_path / "log")
    far_pid(tmp_path)
    until(lambda: kept.pid)
    os.kill(kept.pid or 0, signal.SIGKILL)
    assert kept.ended(patience=60) == "was ended by SIGKILL"
    kept.close()


def test_term_comes_first_and_kill_after_the_grace(tmp_path: Path) -> None:
    polite = "import signal,sys,time\nsignal.signal(15, lambda *_: (print('bye', flush=True), sys.exit(0)))\n"
    kept = Kept([sys.executable, "-S", "-c", polite + "print('up', flush=True)\ntime.sleep(3600)"], {}, tmp_path / "a",
                grace=CAP_SECONDS)  # fmt: skip
    until(lambda: kept.tail() == ("up",))
    kept.close()
    assert kept.tail() == ("up", "bye")
    deaf = "import signal,time\nsignal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(3600)"
    kept = Kept([sys.executable, "-S", "-c", deaf], {}, tmp_path / "b", grace=0.2)
    until(lambda: kept.tail() == ("up",))
    pid = kept.pid
    kept.close()
    assert pid is not None and gone(pid)
