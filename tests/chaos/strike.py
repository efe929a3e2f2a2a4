"""What is done to a run from outside. Each strike says whether there was still something to strike."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from supervisor.protocol.lock import lock_holder
from supervisor.protocol.paths import RunPaths
from supervisor.sensors.mounts import SHARED_MEMORY
from supervisor.supervise.snapshots import OWNER_NAME

Supervisor = subprocess.Popen[str]
KILLS_BOTH = ("kill_both", "lose_power")
NEEDS_A_NEW_SUPERVISOR = ("kill_supervisor", *KILLS_BOTH, "stop_and_go_on")


def _trainer(run_dir: Path) -> int | None:
    return lock_holder(RunPaths(run_dir).trainer_lock)


def _signal_trainer(run_dir: Path, number: int) -> bool:
    pid = _trainer(run_dir)
    if not pid:
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def kill(run_dir: Path, supervisor: Supervisor, attempt: int) -> bool:
    return _signal_trainer(run_dir, signal.SIGKILL)


def terminate(run_dir: Path, supervisor: Supervisor, attempt: int) -> bool:
    return _signal_trainer(run_dir, signal.SIGTERM)


def freeze(run_dir: Path, supervisor: Supervisor, attempt: int) -> bool:
    return _signal_trainer(run_dir, signal.SIGSTOP)


def damage_newest_and_kill(run_dir: Path, supervisor: Supervisor, attempt: int) -> bool:
    if not _signal_trainer(run_dir, signal.SIGSTOP):
        return False
    checkpoints = sorted(RunPaths(run_dir).checkpoints().glob("step-*"))
    for path in checkpoints[-1:]:
        adapter = path / "adapter_model.safetensors"
        data = bytearray(adapter.read_bytes())
        data[len(data) // 2] ^= 1
        adapter.write_bytes(data)
    return _signal_trainer(run_dir, signal.SIGKILL)


def kill_supervisor(run_dir: Path, supervisor: Supervisor, attempt: int) -> bool:
    supervisor.kill()
    supervisor.wait()
    return True


def kill_both(run_dir: Path, supervisor: Supervisor, attempt: int) -> bool:
    kill_supervisor(run_dir, supervisor, attempt)
    return _signal_trainer(run_dir, signal.SIGKILL)


def lose_power(run_dir: Path, supervisor: Supervisor, attempt: int) -> bool:
    """Both die and shared memory is gone; what a power loss does to unsynced files is not tried here."""
    done = kill_both(run_dir, supervisor, attempt)
    for place in shared_memory_of(run_dir):
        shutil.rmtree(place)
    return done


def shared_memory_of(run_dir: Path) -> list[Path]:
    """The folders of the run's snapshots."""
    owners = SHARED_MEMORY.glob(f"*/{OWNER_NAME}")
    return [owner.parent for owner in owners if json.loads(owner.read_bytes())["run_dir"] == str(run_dir)]


def stop_and_go_on(run_dir: Path, supervisor: Supervisor, attempt: int) -> bool:
    supervisor.send_signal(signal.SIGTERM)
    return supervisor.wait() == 3


STRIKES: dict[str, Callable[[Path, Supervisor, int], bool]] = {
    action.__name__: action
    for action in (
        kill,
        terminate,
        freeze,
        damage_newest_and_kill,
        kill_supervisor,
        kill_both,
        lose_power,
        stop_and_go_on,
    )
}


def living(run_dir: Path) -> list[str]:
    """Processes that name the run directory in their environment or command line, zombies included."""
    needle = os.fsencode(run_dir)
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        if int(place.name) == os.getpid():
            continue
        try:
            words = (place / "environ").read_bytes() + (place / "cmdline").read_bytes()
            state = (place / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if needle + b"/" in words or needle + b"\0" in words:
            command = (words.rpartition(b"\0\0")[2] or words[-200:]).replace(b"\0", b" ").decode(errors="replace")
            found.append(f"{place.name} ({state}) {command[-120:]}")
    return found


def end_everything(run_dir: Path, supervisor: Supervisor) -> None:
    """After a run that went wrong: nothing of it may disturb the next one."""
    supervisor.kill()
    supervisor.wait()
    for entry in living(run_dir):
        os.kill(int(entry.split()[0]), signal.SIGKILL)
    time.sleep(0.2)
