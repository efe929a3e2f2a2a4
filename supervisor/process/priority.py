"""Making a process give way to others, in a way that can be taken back."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

GIVE_WAY = 15
"""Nice value of a process that shall only use what others leave."""
_CAP_SYS_NICE = 23


def give_way(pid: int) -> Callable[[], None]:
    """Lower the priority of a process that has just been started; what is returned restores it for all its threads.

    Nice values weigh only against the same session where the kernel groups sessions for scheduling (autogroup), and
    there the group's own counts against others: both are lowered. An ordinary user may not raise a nice value again
    that he lowered, but that of a session's group. What cannot be restored is not changed.
    """
    undo: list[Callable[[], None]] = []
    group = Path(f"/proc/{pid}/autogroup")
    if _leads_session(pid) and _write(group, GIVE_WAY):
        undo.append(lambda: _restore(group))
    before = os.getpriority(os.PRIO_PROCESS, pid)
    if before < GIVE_WAY and _may_raise_to(before):
        os.setpriority(os.PRIO_PROCESS, pid, GIVE_WAY)
        undo.append(lambda: _set_all(pid, before))

    def restore() -> None:
        for each in undo:
            each()

    return restore


def _leads_session(pid: int) -> bool:
    """Is the session its own? Otherwise its scheduling group is that of others as well."""
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def _may_raise_to(nice: int) -> bool:
    if resource.getrlimit(resource.RLIMIT_NICE)[0] >= 20 - nice:
        return True
    status = Path("/proc/self/status").read_text()
    effective = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> _CAP_SYS_NICE & 1)


def _set_all(pid: int, nice: int) -> None:
    """Nice values belong to threads, and those that were started meanwhile inherited the low one."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return
    for thread in threads:
        try:
            os.setpriority(os.PRIO_PROCESS, int(thread), nice)
        except ProcessLookupError:
            continue


def _restore(group: Path) -> None:
    for _ in range(30):  # the kernel refuses (EAGAIN) a change within a tenth of a second of another one
        if _write(group, 0):
            return
        time.sleep(0.01)


def _write(group: Path, nice: int) -> bool:
    try:
        group.write_text(f"{nice}\n")
    except OSError:  # no such scheduling groups here, or too soon, or gone meanwhile: the caller does without
        return False
    return True
