"""Control groups that bound memory and processes of a whole sandbox, where this user may make them."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.sensors.cgroup import Hierarchy, group_folder

_CONTROLLERS = ("memory", "pids")
_LEFT_BEHIND_SECONDS = 48 * 3600.0
_ENTER = 'for place in $PLACES; do echo $$ > "$place" || exit 125; done; unset PLACES; exec "$@"'
_PATIENCE_SECONDS = 2.0


@dataclass
class Group:
    """``folders`` of one group by controller, empty where there is none."""

    folders: dict[str, Path] = field(default_factory=dict)
    _kills_before: int = 0

    @property
    def limits_memory(self) -> bool:
        return "memory" in self.folders

    def limit(self, memory_bytes: int, processes: int) -> None:
        """Raises OSError."""
        if folder := self.folders.get("memory"):
            if (folder / "memory.max").exists():
                (folder / "memory.max").write_text(str(memory_bytes))
                _write_if_there(folder / "memory.swap.max", "0")
            else:
                both = folder / "memory.memsw.limit_in_bytes"
                if both.exists():
                    both.write_text("-1")
                (folder / "memory.limit_in_bytes").write_text(str(memory_bytes))
                _write_if_there(both, str(memory_bytes))
        if folder := self.folders.get("pids"):
            (folder / "pids.max").write_text(str(processes))
        self._kills_before = self._kills()

    def entering(self, command: Sequence[str]) -> list[str]:
        """``command``, started inside the group. It ends with 125 when it cannot enter."""
        if not self.folders:
            return list(command)
        places = sorted({str(folder / "cgroup.procs") for folder in self.folders.values()})
        return ["/bin/sh", "-c", f'PLACES="{" ".join(places)}"; {_ENTER}', "sh", *command]

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has killed a process of the group for memory since the limit was set, or this asked."""
        before, self._kills_before = self._kills_before, self._kills()
        return self._kills_before > before

    def _kills(self) -> int:
        folder = self.folders.get("memory")
        if folder is None:
            return 0
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(FileNotFoundError):
                found = re.search(r"^oom_kill (\d+)$", (folder / name).read_text(), re.MULTILINE)
                if found:
                    return int(found[1])
        return 0


class Groups:
    """Lends groups, one to each sandbox at a time; makes none where this user may not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._mark = os.urandom(6).hex()
        self._parents: dict[str, Path] | None = None
        self._idle: list[Group] = []
        self._all: list[Group] = []

    @property
    def limit_memory(self) -> bool:
        """Whether a group that was made here bounds memory."""
        return any(group.limits_memory for group in self._all)

    @contextlib.contextmanager
    def borrow(self, memory_bytes: int, processes: int, wanted: bool = True) -> Iterator[Group]:
        group = self.take(memory_bytes, processes) if wanted else Group()
        try:
            yield group
        finally:
            self.give_back(group)

    def take(self, memory_bytes: int, processes: int) -> Group:
        """A group without processes, with these limits; one without folders where none can be made."""
        with self._lock:
            if self._parents is None:
                self._parents = _parents()
            group = self._idle.pop() if self._idle else self._made()
        try:
            group.limit(memory_bytes, processes)
        except OSError:  # delegated in part only: limits of each process remain
            with self._lock:
                self._parents = {}
                self._all.remove(group)
            for folder in set(group.folders.values()):
                _remove(folder)
            return Group()
        return group

    def give_back(self, group: Group) -> None:
        if group.folders:
            with self._lock:
                self._idle.append(group)

    def close(self) -> None:
        with self._lock:
            for group in self._all:
                for folder in set(group.folders.values()):
                    _remove(folder)
            self._all.clear()
            self._idle.clear()

    def _made(self) -> Group:
        assert self._parents is not None
        number = next(self._numbers)
        folders: dict[str, Path] = {}
        for controller, parent in self._parents.items():
            folder = parent / f"mens-judge-{self._mark}-{number}"
            with contextlib.suppress(OSError):
                folder.mkdir()
                folders[controller] = folder
        group = Group(folders)
        if folders:
            self._all.append(group)
        return group


def _parents() -> dict[str, Path]:
    """Folders in which this user may make groups, by controller."""
    try:
        groups = Path("/proc/self/cgroup").read_text()
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return {}
    found: dict[str, Path] = {}
    for controller in _CONTROLLERS:
        for folder in _candidates(controller, groups, mounts):
            if os.access(folder, os.W_OK | os.X_OK) and os.access(folder / "cgroup.procs", os.W_OK):
                found[controller] = folder
                _remove_left_behind(folder)
                break
    return found


def _candidates(controller: str, groups: str, mounts: str) -> Iterator[Path]:
    """Own group of version 1; of version 2 the own group or the one above, if it hands the controller on."""
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        for mount in mounts.splitlines():
            before, _, after = mount.partition(" - ")
            kind, _, options = after.split(" ", 2)
            root, top = before.split(" ")[3:5]
            if controllers:
                if controller in controllers.split(",") and kind == "cgroup" and controller in options.split(","):
                    yield group_folder(path, Hierarchy(1, top, root))
            elif kind == "cgroup2":
                own = group_folder(path, Hierarchy(2, top, root))
                for folder in (own, own.parent):
                    try:
                        handed_on = (folder / "cgroup.subtree_control").read_text().split()
                    except OSError:
                        continue
                    if controller in handed_on:
                        yield folder


def _remove_left_behind(parent: Path) -> None:
    """Groups of jobs that were killed; one that is in use can't be removed."""
    for folder in parent.glob("mens-judge-*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _LEFT_BEHIND_SECONDS:
                folder.rmdir()


def _remove(folder: Path) -> None:
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > until:
                return  # removed by the next job that works here
            time.sleep(0.01)


def _write_if_there(path: Path, text: str) -> None:
    if path.exists():
        path.write_text(text)
