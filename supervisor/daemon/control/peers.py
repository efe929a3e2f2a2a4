"""Who is at the other end of a Unix socket, and what they may do. The kernel says it; nothing is believed."""

from __future__ import annotations

import grp
import os
import pwd
import socket
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from supervisor.problems import InputError

_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
_SO_PEERGROUPS = 59
_GROUPS_BYTES = 1024
"""As much as Python reads of an option: 256 groups."""


class HasOptions(Protocol):
    """A socket, or what asyncio shows of one."""

    def getsockopt(self, level: int, name: int, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Peer:
    """A process as it was when it connected. ``groups``: its supplementary groups, as far as they are known."""

    pid: int
    uid: int
    gid: int
    groups: frozenset[int] = frozenset()

    def in_group(self, group: int) -> bool:
        return group == self.gid or group in self.groups


@dataclass(frozen=True)
class Circle:
    """Who may ask: root, the daemon's own user, and the members of one group (None: of no group)."""

    owner: int
    group: int | None

    def admits(self, peer: Peer) -> bool:
        return peer.uid in (0, self.owner) or (self.group is not None and peer.in_group(self.group))


def peer_of(connection: HasOptions) -> Peer:
    """Raises OSError when ``connection`` is no Unix socket."""
    size = _CREDENTIALS.size
    pid, uid, gid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return Peer(pid, uid, gid, _groups(connection))


def own_circle(group: str | None = None) -> Circle:
    """The daemon's user and ``group``. Without one: the daemon's own group if it is named like its user, else nobody.

    Groups named like a user are theirs (such as that of the service); one that is named otherwise, such as ``users``,
    may hold everybody on the machine, and is let in only when asked for. Raises InputError.
    """
    if group is not None:
        try:
            return Circle(os.geteuid(), grp.getgrnam(group).gr_gid)
        except KeyError:
            raise InputError(f"There is no group {group} on this machine. Name one of `getent group`.") from None
    own = os.getegid()
    return Circle(os.geteuid(), own if _group_name(own) == _user_name(os.geteuid()) else None)


def may_read(path: Path, peer: Peer) -> bool:
    """Could ``peer`` open ``path`` (absolute, no links in it) for reading, going by owners, groups and modes?

    Access lists beyond those are not looked at. Raises OSError when the daemon itself can't look.
    """
    *folders, file = _walk(path)
    return all(_allows(folder.stat(), peer, 0o1) for folder in folders) and _allows(file.stat(), peer, 0o4)


def _walk(path: Path) -> Iterator[Path]:
    yield from reversed(path.parents)
    yield path


def _allows(found: os.stat_result, peer: Peer, bit: int) -> bool:
    if peer.uid == 0:
        return True
    mode = stat.S_IMODE(found.st_mode)
    if peer.uid == found.st_uid:
        return bool(mode & bit << 6)
    if peer.in_group(found.st_gid):
        return bool(mode & bit << 3)
    return bool(mode & bit)


def _groups(connection: HasOptions) -> frozenset[int]:
    try:
        data = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:  # more groups than can be read, or a kernel before 4.13: only the primary group counts
        return frozenset()
    return frozenset(struct.unpack(f"{len(data) // 4}I", data))


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
