"""What the program of an attempt has written, piece by piece."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Literal

from supervisor.daemon.control.wire import LogPiece
from supervisor.problems import InputError
from supervisor.protocol.paths import RunPaths
from supervisor.state import Outcome
from supervisor.status import known_state

PIECE_BYTES = 256 << 10

Stream = Literal["stdout", "stderr"]


def read_piece(run_dir: Path, stream: Stream, attempt: int | None = None, offset: int = 0) -> LogPiece:
    """Up to PIECE_BYTES from ``offset`` on; a negative one counts from the end. ``attempt``: None for the newest.

    A character that is not whole yet is left for the next piece. Raises InputError when there is no such run or
    attempt, OSError when it can't be read.
    """
    paths = RunPaths(run_dir)
    state = known_state(run_dir)
    latest = 0 if state is None else state.attempt
    over = state is not None and state.outcome is not Outcome.RUNNING
    number = latest if attempt is None else attempt
    if number > latest or (number < 1 and attempt is not None):
        raise InputError(f"{run_dir} has no attempt {number}; the latest is {latest}.")
    data, size, start = b"", 0, 0
    if number:
        files = paths.attempt(number)
        data, size, start = _read(files.stdout if stream == "stdout" else files.stderr, offset)
    if len(data) == PIECE_BYTES or not (over or number < latest):
        data = data[: len(data) - _torn(data)]
    return LogPiece(
        attempt=number,
        latest_attempt=latest,
        start=start,
        end=start + len(data),
        size=size,
        text=data.decode("utf-8", "replace"),
        over=over,
    )


def _read(path: Path, offset: int) -> tuple[bytes, int, int]:
    """Data, the file's size, and where the data starts. A file that is not there yet is empty."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return b"", 0, 0
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{path} is no ordinary file.")
        start = max(0, found.st_size + offset) if offset < 0 else min(offset, found.st_size)
        return os.pread(fd, PIECE_BYTES, start), found.st_size, start
    finally:
        os.close(fd)


def _torn(data: bytes) -> int:
    """How many bytes at the end begin a character of UTF-8 that is not whole."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4 if byte >> 3 == 0b11110 else 1
        return back if length > back else 0
    return 0
