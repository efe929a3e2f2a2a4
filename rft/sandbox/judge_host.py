"""Process around one warm pair of sandboxes: all of it stays on one core, and is asked once for each program.

``LINE SETTINGS CORE``: LINE is a stream socket, SETTINGS what :class:`Settings` has, as JSON. Messages are JSON behind
their length. The first that is sent is ``{}`` when the pair is ready. A request is ``{"source": ...}``, with the tests
as ``"check"`` unless they are those of the request before; the answer is ``{"finding": ...}``, or ``{"lost": words}``,
after which the process ends. It ends with LINE, too, at SIGTERM, and with the thread that has started it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from typing import Any

import msgspec

from rft.sandbox import cgroup
from rft.sandbox.inside import confine
from rft.sandbox.inside.tests import LENGTH, received
from rft.sandbox.pair import Finding, Pair, ProgramLimits
from rft.sandbox.run import SandboxError
from rft.verifiers.verdict import Isolation

_AT_ONCE = 1 << 16


class Settings(msgspec.Struct, frozen=True):
    limits: ProgramLimits
    isolation: Isolation
    packages: tuple[str, ...]


class Request(msgspec.Struct, frozen=True):
    source: str
    check: str | None = None


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    finding: Finding | None = None
    lost: str | None = None


def say(line: socket.socket, message: Any) -> None:
    """Raises OSError."""
    text = msgspec.json.encode(message)
    line.sendall(LENGTH.pack(len(text)) + text)


def hear(line: socket.socket) -> bytes:
    """The next message, of which there is never more than one; nothing when the other side is gone. Raises OSError."""
    # Mostly all of it comes at once; each call more is one more that another thread runs at.
    begun = line.recv(_AT_ONCE)
    if len(begun) < LENGTH.size:
        return b""
    missing = LENGTH.size + LENGTH.unpack_from(begun)[0] - len(begun)
    rest = received(line, missing) if missing else b""
    return begun[LENGTH.size :] + rest if len(rest) == missing else b""


def main() -> None:
    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)
    settings = msgspec.json.decode(sys.argv[2], type=Settings)
    core = int(sys.argv[3])
    confine.perform(confine.with_parent())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    anywhere = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # a core that was taken away meanwhile: slower, and no fault
        os.sched_setaffinity(0, {core})
    groups = cgroup.Groups()
    try:
        pair = Pair(settings.limits, settings.isolation, settings.packages, groups, core, anywhere)
        try:
            say(line, Answer())
            _serve(line, pair)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends already, and leaves nothing behind
            pair.close()
    except SandboxError as error:
        say(line, Answer(lost=str(error)))
    except ConnectionError:
        pass  # whoever asked is gone
    finally:
        groups.close()


def _serve(line: socket.socket, pair: Pair) -> None:
    """Raises LostError."""
    check = ""
    while text := hear(line):
        request = msgspec.json.decode(text, type=Request)
        check = check if request.check is None else request.check
        say(line, Answer(finding=pair.judge(check, request.source)))


if __name__ == "__main__":
    main()
