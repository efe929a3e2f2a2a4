import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_runs import wait_for

import supervisor.process.priority
from supervisor.process.priority import GIVE_WAY, give_way

THREADED = "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); print(1, flush=True)"

FORKED = """
import os, sys
if os.fork() == 0:
    print(os.getpid(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True, text=True)
    yield child
    child.kill()
    child.wait()


def group_nice(pid: int) -> int:
    return int(Path(f"/proc/{pid}/autogroup").read_text().rpartition(" ")[2])


# proves SUP-12: where nice values can be raised again, every thread gets its own back
@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user may not raise a nice value")
def test_nice_is_lowered_and_restored_for_every_thread() -> None:
    child = subprocess.Popen([sys.executable, "-c", THREADED], stdout=subprocess.PIPE, text=True)
    try:
        before = os.getpriority(os.PRIO_PROCESS, child.pid)
        restore = give_way(child.pid)
        assert child.stdout is not None
        child.stdout.readline()
        threads = [int(name) for name in os.listdir(f"/proc/{child.pid}/task")]
        assert [os.getpriority(os.PRIO_PROCESS, thread) for thread in threads] == [GIVE_WAY, GIVE_WAY]
        restore()
        assert [os.getpriority(os.PRIO_PROCESS, thread) for thread in threads] == [before, before]
    finally:
        child.kill()
        child.communicate()


# proves SUP-12: nice values do not count between sessions that the kernel schedules as groups, so both are lowered
@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user may not raise a nice value")
@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="no scheduling groups of sessions here")
def test_a_session_of_its_own_gives_way_in_both_ways(process: subprocess.Popen[str]) -> None:
    before = os.getpriority(os.PRIO_PROCESS, process.pid)
    restore = give_way(process.pid)
    assert (os.getpriority(os.PRIO_PROCESS, process.pid), group_nice(process.pid)) == (GIVE_WAY, GIVE_WAY)
    restore()
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == before
    wait_for(lambda: restore() is None and group_nice(process.pid) == 0)


# proves SUP-12: in the session of others, their group is left alone
@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="no scheduling groups of sessions here")
def test_the_group_of_others_is_not_touched() -> None:
    leader = subprocess.Popen(
        [sys.executable, "-c", FORKED], start_new_session=True, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert leader.stdout is not None
    member = int(leader.stdout.readline())
    give_way(member)
    assert group_nice(leader.pid) == group_nice(member) == 0
    leader.communicate()


# proves SUP-12: an ordinary user's standby gives way by its session's scheduling group, which may be raised again
@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="no scheduling groups of sessions here")
def test_without_the_right_the_sessions_group_gives_way(
    process: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor.process.priority, "_may_raise_to", lambda nice: False)
    before = os.getpriority(os.PRIO_PROCESS, process.pid)
    restore = give_way(process.pid)
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == before
    assert group_nice(process.pid) == GIVE_WAY
    wait_for(lambda: restore() is None and group_nice(process.pid) == 0)


def test_one_that_has_ended_is_no_trouble(process: subprocess.Popen[str]) -> None:
    restore = give_way(process.pid)
    process.kill()
    process.wait()
    restore()
