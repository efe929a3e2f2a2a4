"""Where the daemon's socket lies."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.daemon.paths import default_state_folder

VARIABLE = "MENS_SUP_SOCKET"
SYSTEM_SOCKET = Path("/run/mens-supervisor/control.sock")
"""That of the daemon which systemd runs (RuntimeDirectory=mens-supervisor)."""

_NAME = "control.sock"


def socket_to_serve() -> Path:
    """Where a daemon that was told nothing listens: in the folder that systemd gave it, else in one of its user's."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    if given := os.environ.get("RUNTIME_DIRECTORY"):
        return Path(given.split(":")[0]) / _NAME
    return _own_socket()


def socket_to_ask() -> Path:
    """The socket that a command asks: the one named in MENS_SUP_SOCKET, else one's own daemon's, else the machine's."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    own = _own_socket()
    return SYSTEM_SOCKET if SYSTEM_SOCKET.exists() and not own.exists() else own


def _own_socket() -> Path:
    """In a folder that nobody else can write to."""
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "mens-supervisor" / _NAME
    return default_state_folder() / _NAME
