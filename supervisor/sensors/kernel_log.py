"""Lines of the kernel log that explain why a run died."""

from __future__ import annotations

import os
import re
from pathlib import Path

from supervisor.sensors.snapshot import KernelEvent, Unknown

KEPT_EVENTS = 200
_RECORD_BYTES = 8192
"""The kernel hands out one whole record per read, or EINVAL when it doesn't fit."""

_PREFIX = re.compile(
    r"^(?:<\d+>)?\s*(?:\d+,\d+,(?P<micros>\d+),[^;]*;|\[\s*(?P<seconds>\d+\.\d+)\](?:\[[^\]]*\])?\s?|"
    r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} [^\]]*\]\s?|.{0,80}? kernel: (?:\[\s*(?P<journal>\d+\.\d+)\]\s?)?)"
)
_OOM_VICTIM = re.compile(r"(?:Killed process|[Oo]ut of memory: Kill process|oom_reaper: reaped process) (?P<pid>\d+)")
_XID = re.compile(r"NVRM: Xid \((?P<device>[^)]*)\): (?P<code>\d+)(?:, pid=?'?(?P<pid>\d+))?")
_IO = re.compile(
    r"I/O error|Buffer I/O|critical (?:medium|target|space allocation) error|EXT4-fs error|EXT4-fs warning.*error|"
    r"XFS \([^)]*\):.*(?:error|[Cc]orruption|Shutting down)|BTRFS (?:error|critical)|Remounting filesystem read-only|"
    r"re-mounted.* ro\b|nvme\S*: .*(?:timeout|controller is down|Device not ready)|ata\S*: .*failed command|"
    r"nfs: server \S+ not responding"
)
_CRASH = re.compile(
    r"\[(?P<pid>\d+)\]: segfault at|"
    r"traps: \S+\[(?P<trap>\d+)\] (?:general protection|trap (?:invalid opcode|divide error|int3))"
)
_HUNG = re.compile(r"task \S.*:(?P<pid>\d+) blocked for more than \d+ seconds")


def kernel_event(line: str) -> KernelEvent | None:
    """A line of /dev/kmsg, dmesg or journalctl as an event; None for what does not matter to a run."""
    prefix = _PREFIX.match(line)
    text = line[prefix.end() :].strip() if prefix else line.strip()
    seconds = _seconds(prefix) if prefix else None
    if match := _OOM_VICTIM.search(text):
        return KernelEvent("oom_kill", text, seconds, pid=int(match["pid"]))
    if match := _XID.search(text):
        pid = None if match["pid"] is None else int(match["pid"])
        return KernelEvent("xid", text, seconds, pid=pid, code=int(match["code"]))
    if _IO.search(text):
        return KernelEvent("io_error", text, seconds)
    if match := _CRASH.search(text):
        return KernelEvent("crash", text, seconds, pid=int(match["pid"] or match["trap"]))
    if match := _HUNG.search(text):
        return KernelEvent("hung_task", text, seconds, pid=int(match["pid"]))
    return None


def _seconds(prefix: re.Match[str]) -> float | None:
    if prefix["micros"]:
        return int(prefix["micros"]) / 1e6
    value = prefix["seconds"] or prefix["journal"]
    return float(value) if value else None


def past_events(since: float, path: Path = Path("/dev/kmsg")) -> tuple[KernelEvent, ...] | Unknown:
    """What the kernel still has in its log from ``since`` (seconds since boot) on; nothing without a time."""
    log = KernelLog(path)
    log.restart(from_start=True)
    found = log.read()
    log.close()
    if isinstance(found, Unknown):
        return found
    return tuple(event for event in found if event.seconds is not None and event.seconds >= since)


class KernelLog:
    """Follows /dev/kmsg from the moment of :meth:`restart`, without ever waiting for it."""

    def __init__(self, path: Path = Path("/dev/kmsg")) -> None:
        self._path = path
        self._fd = -1
        self._problem: Unknown | None = Unknown("the kernel log has not been opened yet")
        self._events: list[KernelEvent] = []

    def restart(self, *, from_start: bool = False) -> None:
        """Forget what was found; from now on only new lines count, or with ``from_start`` all that the kernel has."""
        self.close()
        self._events = []
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_SET if from_start else os.SEEK_END)
        except OSError as error:
            self.close()
            self._problem = Unknown(f"the kernel log cannot be read: {error.strerror}")
            return
        self._problem = None

    def read(self) -> tuple[KernelEvent, ...] | Unknown:
        """The events since :meth:`restart`, the latest 200 of them."""
        while self._problem is None:
            try:
                record = os.read(self._fd, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:  # older lines were overwritten before we came; the next read goes on after them
                continue
            except OSError as error:
                self._problem = Unknown(f"the kernel log cannot be read any more: {error.strerror}")
                break
            if not record:
                break
            event = kernel_event(record.decode(errors="replace").partition("\n")[0])
            if event is not None:
                self._events = [*self._events, event][-KEPT_EVENTS:]
        return self._problem if self._problem is not None and not self._events else tuple(self._events)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._problem = Unknown("the kernel log is closed")
