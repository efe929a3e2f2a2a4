"""Memory control groups, version 1 and 2: limit, use and kills of the trainer's own group."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from supervisor.sensors.snapshot import CgroupReading, Unknown

_NO_LIMIT = 1 << 62
"""Version 1 writes "no limit" as a huge number of bytes."""


@dataclass(frozen=True)
class MemoryCgroup:
    """Where the memory group of a process lies: ``top`` is the hierarchy's mount point."""

    version: int
    top: Path
    folder: Path


@dataclass(frozen=True)
class Hierarchy:
    """A mounted hierarchy that may control memory; ``root`` is the group at its mount point."""

    version: int
    mount: str
    root: str


def parse_groups(text: str) -> dict[int, str]:
    """The memory group in ``/proc/<pid>/cgroup``, by version. Version 1 counts only with its memory controller."""
    found: dict[int, str] = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            found[2] = path
        elif "memory" in controllers.split(","):
            found[1] = path
    return found


def parse_hierarchies(mountinfo: str) -> tuple[Hierarchy, ...]:
    """The memory hierarchies in ``/proc/<pid>/mountinfo``."""
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        places, kinds = before.split(" "), after.split(" ")
        if len(places) < 5 or len(kinds) < 3:
            continue
        root, mount = _unescape(places[3]), _unescape(places[4])
        kind, options = kinds[0], kinds[2]
        if kind == "cgroup2":
            found.append(Hierarchy(2, mount, root))
        elif kind == "cgroup" and "memory" in options.split(","):
            found.append(Hierarchy(1, mount, root))
    return tuple(found)


def group_folder(path: str, hierarchy: Hierarchy) -> Path:
    """Where group ``path`` lies in a mounted hierarchy; its top where a container hides the real place."""
    top = Path(hierarchy.mount)
    group, root = PurePosixPath(path), PurePosixPath(hierarchy.root)
    if ".." in group.parts:
        return top
    if group.is_relative_to(root):
        return top / group.relative_to(root)
    return top / group.relative_to("/") if root == PurePosixPath("/") else top


def find_cgroup(pid: int, proc: Path = Path("/proc")) -> MemoryCgroup | Unknown:
    """The memory group of a living process. A machine with both versions has the controller in version 1."""
    try:
        groups = parse_groups((proc / str(pid) / "cgroup").read_text())
        hierarchies = parse_hierarchies((proc / "self" / "mountinfo").read_text())
    except OSError as error:
        return Unknown(f"the control group of process {pid} cannot be read: {error.strerror}")
    for version in (1, 2):
        for hierarchy in hierarchies:
            if hierarchy.version == version and version in groups:
                return MemoryCgroup(version, Path(hierarchy.mount), group_folder(groups[version], hierarchy))
    return Unknown("no memory control group is mounted")


def read_cgroup(group: MemoryCgroup) -> CgroupReading:
    """Read a group and its ancestors; the group may meanwhile be gone, which makes its figures unknown."""
    limit_file = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
    tightest: int | None = None
    by: Path | None = None
    missing: Unknown | None = None
    folder = group.folder
    while True:
        limit = _limit(folder / limit_file)
        if isinstance(limit, Unknown):
            # The root group of version 2 has no limit file, because it has no limit.
            missing = missing if group.version == 2 and folder == group.top else missing or limit
        elif limit is not None and (tightest is None or limit < tightest):
            tightest, by = limit, folder
        if folder == group.top:
            break
        folder = folder.parent
    return CgroupReading(
        version=group.version,
        path=str(group.folder),
        limit_bytes=tightest if tightest is not None else missing,
        limited_by=None if by is None else str(by),
        used_bytes=_working_set(by or group.folder, group.version),
        oom_kills=_oom_kills(group),
    )


def _limit(path: Path) -> int | Unknown | None:
    text = _text(path)
    if isinstance(text, Unknown):
        return text
    if text.strip() == "max":
        return None
    value = _integer(path, text)
    return None if isinstance(value, int) and value >= _NO_LIMIT else value


def _working_set(folder: Path, version: int) -> int | Unknown:
    path = folder / ("memory.current" if version == 2 else "memory.usage_in_bytes")
    use = _integer(path, _text(path))
    if isinstance(use, Unknown):
        return use
    cache = _counter(folder / "memory.stat", "inactive_file" if version == 2 else "total_inactive_file")
    return max(0, use - (0 if isinstance(cache, Unknown) else cache))


def _oom_kills(group: MemoryCgroup) -> int | Unknown:
    name = "memory.events" if group.version == 2 else "memory.oom_control"
    return _counter(group.folder / name, "oom_kill")


def _counter(path: Path, key: str) -> int | Unknown:
    text = _text(path)
    if isinstance(text, Unknown):
        return text
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return _integer(path, value)
    return Unknown(f"{path} has no {key}")


def _text(path: Path) -> str | Unknown:
    try:
        return path.read_text()
    except OSError as error:
        return Unknown(f"{path}: {os.strerror(error.errno or 0)}")


def _integer(path: Path, text: str | Unknown) -> int | Unknown:
    if isinstance(text, Unknown):
        return text
    return int(text) if text.strip().isdigit() else Unknown(f"{path} holds no number: {text.strip()[:40]!r}")


def _unescape(field: str) -> str:
    """mountinfo writes blanks and backslashes as octal numbers."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, char)
    return field
