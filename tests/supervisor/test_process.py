import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scripted_runs import alive, wait_for

from supervisor.process.adopted import AdoptedProcess
from supervisor.process.identity import identity_of
from supervisor.process.leftovers import end_leftovers, processes_of, subreaper
from supervisor.process.signals import SignalQueue
from supervisor.process.spawn import ExitStatus, TrainerProcess, spawn_trainer
from supervisor.process.stop import Stopper, StopPlan, stop_trainer


def spawn(tmp_path: Path, script: str, **environment: str) -> TrainerProcess:
    command = [sys.executable, "-c", script]
    return spawn_trainer(command, {**os.environ, **environment}, tmp_path / "out", tmp_path / "err")


# proves SUP-9: bounded patience, each signal once, hurry goes straight to the kill
@pytest.mark.parametrize(
    ("times", "hurry_from", "expected"),
    [
        ([0, 1, 9, 10, 11, 13, 99], None, ["SIGTERM", None, None, "SIGABRT", None, "SIGKILL", None]),
        ([0, 1, 2, 3], 2, ["SIGTERM", None, "SIGKILL", None]),
        ([0, 60], None, ["SIGTERM", "SIGKILL"]),
    ],
)
def test_stop_plan(times: list[float], hurry_from: float | None, expected: list[str | None]) -> None:
    stopper = Stopper(StopPlan(grace_seconds=10, abort_seconds=3, kill_seconds=30), 0)
    sent = [stopper.next_signal(now, hurry_from is not None and now >= hurry_from) for now in times]
    assert [number.name if number else None for number in sent] == expected


def test_a_process_that_survives_sigkill_is_called_stuck() -> None:
    stopper = Stopper(StopPlan(grace_seconds=1, abort_seconds=1, kill_seconds=30), 0)
    assert not stopper.stuck(1000)
    assert stopper.next_signal(5) is signal.SIGKILL
    assert not stopper.stuck(35)
    assert stopper.stuck(35.1)


def test_spawn_gives_a_session_of_its_own_logs_and_the_status(tmp_path: Path) -> None:
    script = (
        "import os, sys; print(os.getsid(0) == os.getpid(), sys.stdin.read() == ''); sys.stderr.write('e'); sys.exit(7)"
    )
    process = spawn(tmp_path, script)
    wait_for(process.ended)
    process.send(signal.SIGTERM)
    assert process.reap() == ExitStatus(7, None)
    assert (tmp_path / "out").read_text() == "True True\n"
    assert (tmp_path / "err").read_text() == "e"


def test_a_signalled_process_says_so(tmp_path: Path) -> None:
    process = spawn(tmp_path, "import time; time.sleep(60)")
    process.send(signal.SIGKILL)
    wait_for(process.ended)
    assert str(process.reap()) == "signal SIGKILL"


# proves SUP-9: no orphan, not even one with a session of its own, and no zombie
def test_a_double_forked_daemon_is_found_killed_and_reaped(tmp_path: Path) -> None:
    script = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        open(os.environ['PID_FILE'], 'w').write(str(os.getpid()))\n"
        "        time.sleep(600)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    spec, pid_file = tmp_path / "attempt.json", tmp_path / "pid"
    with subreaper():
        process = spawn(tmp_path, script, MENS_ATTEMPT=str(spec), PID_FILE=str(pid_file))
        wait_for(process.ended)
        process.reap()
        daemon = int(wait_for(lambda: pid_file.exists() and pid_file.read_text()))
        assert processes_of(spec) == [daemon]
        assert processes_of(tmp_path / "other.json") == []
        assert end_leftovers(spec) == [daemon]
        assert not Path(f"/proc/{daemon}").exists()


def test_signals_are_queued_and_wake_the_sleeper() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with SignalQueue() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        started = time.monotonic()
        signals.wait(60)
        assert time.monotonic() - started < 30
        assert sorted(signals.take()) == [signal.SIGINT, signal.SIGTERM]
        assert signals.take() == []
    assert signal.getsignal(signal.SIGTERM) is before


# proves SUP-9, SUP-10: somebody else's child is stopped within bounds, also one that is halted (SIGSTOP)
@pytest.mark.parametrize(
    ("deaf", "halted", "took"),
    [(False, False, signal.SIGTERM), (False, True, signal.SIGTERM), (True, False, signal.SIGKILL)],
)
def test_a_stranger_is_stopped(tmp_path: Path, deaf: bool, halted: bool, took: signal.Signals) -> None:
    ignore = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGABRT, signal.SIG_IGN);" if deaf else ""
    )
    script = f"import signal, time, pathlib; {ignore} pathlib.Path({str(tmp_path / 'up')!r}).touch(); time.sleep(600)"
    stranger = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    try:
        wait_for((tmp_path / "up").exists)
        if halted:
            stranger.send_signal(signal.SIGSTOP)
        identity = identity_of(stranger.pid)
        assert identity is not None
        process = AdoptedProcess(identity)
        stopper = Stopper(StopPlan(10 if halted else 0.3, 0.3), time.monotonic())
        with SignalQueue() as signals:
            stop_trainer(process, stopper, signals, lambda: False)
        assert stopper.sent is took
        assert not alive(stranger.pid)
        process.reap()
    finally:
        stranger.kill()
        stranger.wait()
