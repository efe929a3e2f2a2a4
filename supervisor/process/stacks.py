"""Where a process that does not move stands: its Python stacks, if it can show them, and what the kernel knows."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from supervisor.process.identity import parse_stat, read_stat
from supervisor.redact import hide_secrets

DUMP_SIGNAL = signal.SIGUSR1
"""A trainer that has created ``stacks.txt`` and catches this signal writes the stacks of all its threads there."""
DUMP_SECONDS = 3.0
QUIET_SECONDS = 0.2
FRAMES = 6
THREADS = 64
_TICKS = os.sysconf("SC_CLK_TCK")
_HEAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+")
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]*)", line (?P<line>\S+) in (?P<function>.*)$')
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting in the kernel, not to be interrupted",
    "T": "stopped by a signal (SIGSTOP)",
    "t": "stopped by a debugger",
    "Z": "ended",
    "I": "idle",
}


def state_words(state: str) -> str:
    """A process state of ``/proc`` in words."""
    return _STATES.get(state, state)


def catches(pid: int, number: int) -> bool:
    """Has the process a handler for the signal? If not, the signal would end it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    found = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


def capture(pids: Sequence[int], stacks: Path, ranks: Mapping[int, int] | None = None) -> str:
    """Everything about where these processes stand, as text; what the trainer itself writes stays in ``stacks``.

    The first of ``pids`` is the trainer, ``ranks`` are those that train with it. The rest is appended to the file, so
    that one file holds it all.
    """
    told = _own_stacks(pids[0], stacks) if pids else ""
    for pid, rank in (ranks or {}).items():
        _append(stacks, f"--- rank {rank}, process {pid}:\n")
        _own_stacks(pid, stacks)
    text = "".join(kernel_view(pid) for pid in pids)
    _append(stacks, text)
    return told


def _append(path: Path, text: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)


def _own_stacks(pid: int, stacks: Path) -> str:
    """What the process adds to ``stacks`` on our signal; empty when it can't."""
    stat = read_stat(pid)
    if stat is None or stat.state in "TtZX" or not stacks.exists() or not catches(pid, DUMP_SIGNAL):
        return ""
    before = stacks.stat().st_size
    try:
        os.kill(pid, DUMP_SIGNAL)
    except (ProcessLookupError, PermissionError):
        return ""
    size, changed = before, time.monotonic()
    deadline = changed + DUMP_SECONDS
    while time.monotonic() < deadline:
        time.sleep(0.02)
        if (now := stacks.stat().st_size) != size:
            size, changed = now, time.monotonic()
        elif size > before and time.monotonic() - changed > QUIET_SECONDS:
            break
    with open(stacks, "rb") as file:
        file.seek(before)
        return file.read().decode(errors="replace")


def kernel_view(pid: int) -> str:
    """The threads of a process as the kernel sees them: name, state, CPU seconds, what they wait in."""
    command = hide_secrets(_read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ").strip())
    lines = [f"--- process {pid}: {command[:300]}"]
    threads = _threads(pid)
    if not threads:
        return f"{lines[0]} (gone)\n"
    for thread in threads[:THREADS]:
        stat = parse_stat(thread / "stat")
        if stat is None:
            continue
        name, waits = _read(thread / "comm").strip(), _read(thread / "wchan").strip()
        cpu = f"{stat.cpu_ticks / _TICKS:.1f} s of CPU"
        place = f", in {waits}" if waits not in ("", "0") else ""
        lines.append(f"thread {thread.name} ({name}): {state_words(stat.state)}{place}; {cpu}")
    if len(threads) > THREADS:
        lines.append(f"... and {len(threads) - THREADS} more threads")
    return "\n".join(lines) + "\n"


def main_frames(dump: str) -> tuple[str, ...]:
    """The innermost frames of the main thread in a dump of ``faulthandler``, which shows it last."""
    frames: list[str] = []
    for line in dump.splitlines():
        if _HEAD.match(line):
            frames = []
        elif found := _FRAME.match(line):
            frames.append(f"{found['function']} ({found['file']}:{found['line']})")
    return tuple(frames[:FRAMES])


def busy_seconds(pid: int) -> float | None:
    """Time for which threads of a process that now live have used a core or waited for one; None when it is gone.

    The waiting counts, so that a spinning process on a crowded machine does not look asleep.
    """
    stat = read_stat(pid)
    if stat is None:
        return None
    total, known = 0, False
    for thread in _threads(pid):
        figures = _read(thread / "schedstat").split()
        if len(figures) >= 2:
            total, known = total + int(figures[0]) + int(figures[1]), True
    return total / 1e9 if known else stat.cpu_ticks / _TICKS


def moved_bytes(pid: int) -> int | None:
    """Bytes that a process has read and written, through the page cache or not; None when that cannot be seen."""
    try:
        text = Path(f"/proc/{pid}/io").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    figures = dict(re.findall(r"^(\w+): (\d+)$", text, re.MULTILINE))
    return sum(int(figures.get(name, 0)) for name in ("rchar", "wchar", "read_bytes"))


def _threads(pid: int) -> list[Path]:
    """The folders of a process's threads, oldest first; empty when it is gone."""
    try:
        return sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda entry: int(entry.name))
    except (FileNotFoundError, ProcessLookupError):
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # gone meanwhile, or nothing that we may know
        return ""
