"""Messages between a sampler and its worker: msgpack behind its length. The standard library and msgspec alone, because
the environment that vLLM lives in has nothing else of ours."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import msgspec

MAX_BYTES = 64 << 20
_LENGTH = struct.Struct(">I")


class FrameError(Exception):
    """What came is no frame: the other side is not the one it should be."""


def send(channel: socket.socket, message: Any) -> None:
    """Send one message whole. Raises OSError when the other side is gone."""
    body = msgspec.msgpack.encode(message)
    if len(body) > MAX_BYTES:
        raise FrameError(f"a message of {len(body)} bytes is larger than the {MAX_BYTES} that are allowed")
    channel.sendall(_LENGTH.pack(len(body)) + body)


class Frames:
    """Puts what arrives in pieces together again."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies of the messages that are whole now. Raises FrameError."""
        self._pending += data
        while len(self._pending) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending)
            if length > MAX_BYTES:
                raise FrameError(f"a message claims to have {length} bytes")
            end = _LENGTH.size + length
            if len(self._pending) < end:
                return
            body = bytes(self._pending[_LENGTH.size : end])
            del self._pending[:end]
            yield body


def receive(channel: socket.socket) -> Iterator[bytes]:
    """The bodies of all messages, until the other side closes. Raises OSError, FrameError."""
    frames = Frames()
    while data := channel.recv(1 << 16):
        yield from frames.feed(data)
