"""The event log: one JSON object per line, appended by supervisor and trainer alike.

Each event is one ``write`` on an ``O_APPEND`` descriptor, so lines of the two sides never mix.
A torn last line (power loss, full disk) is skipped by readers and ended by the next writer.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of events.jsonl. ``time`` is Unix seconds; ``source`` is supervisor or trainer."""

    time: float
    source: str
    kind: str
    attempt: int = 0
    step: int | None = None
    message: str = ""
    data: dict[str, Any] = msgspec.field(default_factory=dict)


CHUNK_BYTES = 256 * 1024
TAIL_BYTES = 256 * 1024

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)


class EventLog:
    """Appends to one run's event log. Safe to use from several processes at once."""

    def __init__(self, path: Path, source: str, attempt: int = 0) -> None:
        self.path = path
        self.source = source
        self.attempt = attempt

    def append(self, kind: str, message: str = "", *, step: int | None = None, **data: Any) -> Event:
        """Write one event. Raises OSError when it cannot be written whole, ENOSPC when only a part of it fitted."""
        event = Event(time.time(), self.source, kind, self.attempt, step, message, data)
        line = _encoder.encode(event) + b"\n"
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                line = b"\n" + line
            written = os.write(fd, line)
            if written != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        finally:
            os.close(fd)
        return event


class EventReader:
    """Reads a growing event log from where it stopped the last time, a piece at a time."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset

    @classmethod
    def of_tail(cls, path: Path) -> EventReader:
        """A reader that leaves out all but about the last 256 KiB; it begins at a whole line."""
        try:
            with open(path, "rb") as file:
                start = file.seek(0, os.SEEK_END) - TAIL_BYTES
                if start <= 0:
                    return cls(path)
                file.seek(start)
                file.readline()
                return cls(path, file.tell())
        except FileNotFoundError:
            return cls(path)

    def new(self) -> Iterator[Event]:
        """Events appended since the last call; an unfinished last line is left for the next one.

        Take all of them: what an abandoned iterator has read ahead doesn't come again.
        """
        try:
            file = open(self.path, "rb")  # noqa: SIM115 - only the opening may find no file
        except FileNotFoundError:
            return
        with file:
            file.seek(self.offset)
            rest = b""
            while chunk := file.read(CHUNK_BYTES):
                whole, newline, rest = (rest + chunk).rpartition(b"\n")
                self.offset += len(whole) + len(newline)
                yield from _decoded(whole.split(b"\n"))


def read_events(path: Path) -> Iterator[Event]:
    """All whole events of a log, oldest first."""
    yield from EventReader(path).new()


def last_event(path: Path, kind: str) -> Event | None:
    """The newest whole event of a kind, searched from the end of the log backwards; None when there is none."""
    named = f'"{kind}"'.encode()
    try:
        file = open(path, "rb")  # noqa: SIM115 - only the opening may find no file
    except FileNotFoundError:
        return None
    with file:
        end = file.seek(0, os.SEEK_END)
        after = b""
        while end > 0:
            start = max(0, end - CHUNK_BYTES)
            file.seek(start)
            first, *lines = (file.read(end - start) + after).split(b"\n")
            if start == 0:
                lines.insert(0, first)
            for event in _decoded(line for line in reversed(lines) if named in line):
                if event.kind == kind:
                    return event
            after, end = first, start
    return None


def _decoded(lines: Iterable[bytes]) -> Iterator[Event]:
    for line in lines:
        try:
            if line.strip():
                yield _decoder.decode(line)
        except msgspec.DecodeError:  # a torn line, which the contract lets readers skip
            continue
