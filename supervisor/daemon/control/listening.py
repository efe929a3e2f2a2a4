"""Listening sockets: made so that nobody gets in who shouldn't, and taken away again."""

from __future__ import annotations

import errno
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from supervisor.daemon.control.peers import Circle
from supervisor.daemon.control.tcp import TcpAddress
from supervisor.problems import InputError

MAX_SOCKET_PATH = 107
_BACKLOG = 64


@dataclass(frozen=True)
class Listening:
    """``file``: the socket's path, device and inode; ``port``: of TCP."""

    socket: socket.socket
    file: tuple[Path, int, int] | None = None
    port: int | None = None

    def close(self) -> None:
        """Its file goes too, unless it is another daemon's by now."""
        self.socket.close()
        if self.file is None:
            return
        path, device, inode = self.file
        try:
            found = path.lstat()
        except FileNotFoundError:
            return
        if (found.st_dev, found.st_ino) == (device, inode):
            path.unlink(missing_ok=True)


def listen_unix(path: Path, circle: Circle) -> Listening:
    """A socket at ``path`` that ``circle`` can open: mode 0660, or 0600 when it is for the owner alone.

    Its folder is made when it is missing, for the owner alone. Raises InputError.
    """
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise InputError(f"{path} is too long for a socket ({MAX_SOCKET_PATH} bytes at most). Choose another --socket.")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_dead(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listening.bind(os.fspath(path))
    except OSError as error:
        listening.close()
        raise InputError(f"{path}: can't listen there ({error.strerror}). Choose another --socket.") from None
    finally:
        os.umask(before)
    if circle.group is not None:
        os.chown(path, -1, circle.group)
        path.chmod(0o660)
    listening.listen(_BACKLOG)
    found = path.lstat()
    return Listening(listening, (path, found.st_dev, found.st_ino))


def listen_tcp(address: TcpAddress) -> Listening:
    """Raises InputError."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((address.host, address.port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise InputError(f"{address}: can't listen there ({error.strerror}). Choose another --http.") from None
    return Listening(listening, port=listening.getsockname()[1])


def _remove_dead(path: Path) -> None:
    """Take away what a daemon that died has left there. Raises InputError when one is listening, or it is no socket."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise InputError(f"{path} is there already and is no socket. Choose another --socket, or remove it.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        try:
            probe.connect(os.fspath(path))
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                path.unlink(missing_ok=True)
                return
            raise InputError(f"{path} is in use by something else ({error}). Choose another --socket.") from None
    raise InputError(f"Another daemon answers at {path}. Stop it first, or choose another --socket.")
