"""The side of the program under test: loads it, and does what the test asks of it."""

from __future__ import annotations

import importlib
import io
import linecache
import operator
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from rft.sandbox.inside.peer import Channel, Given, GoneError, Line, Peer, framed
from rft.sandbox.inside.values import MalformedError

FILE = "<completion>"
_MAX_RECEIVED, _MAX_SENT = 1 << 26, 1 << 23
_MAX_PRINTED = 1 << 16
_MODULE = "completion"


class _Printed(io.StringIO):
    """What was printed since it was last taken, at most so much."""

    def write(self, text: str) -> int:
        if self.tell() < _MAX_PRINTED:
            super().write(text[:_MAX_PRINTED])
        return len(text)

    def take(self) -> str:
        text = self.getvalue()
        if text:
            self.seek(0)
            self.truncate()
        return text


class Program:
    """The program under test, and what it may be asked."""

    def __init__(self) -> None:
        self.module = types.ModuleType(_MODULE)
        self.classes: dict[str, type[Any]] = {}

    def peer(self, channel: Line) -> Peer:
        served: dict[str, Callable[..., Any]] = {
            "load": lambda _, *arguments: self._load(*arguments),
            "call": lambda thing, *arguments, **named: thing(*arguments, **named),
            "iter": iter,
            "next": next,
            "len": len,
            "getitem": operator.getitem,
            "setitem": operator.setitem,
            "contains": operator.contains,
            "str": str,
            "repr": repr,
            "getattr": getattr,
            "setattr": setattr,
        }
        peer = Peer(channel, served, Given)
        peer.codec.shared = self.classes
        return peer

    def _load(
        self, source: str, wanted: Sequence[str], shared: Sequence[str], withheld: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Run the program, without the modules ``withheld``; those of the names ``wanted`` that it has defined then,
        with what they are."""
        if withheld:
            importlib.import_module("rft.sandbox.inside.withheld").withhold(withheld)
        linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
        sys.modules[_MODULE] = self.module
        names = self.module.__dict__
        exec(compile(source, FILE, "exec"), names)
        self.classes.update({name: names[name] for name in shared if isinstance(names.get(name), type)})
        return {name: names[name] for name in wanted if name in names}


def ready(link: int) -> Callable[[], None]:
    """What answers on the socket ``link`` until the test has ended; whatever the program does, it does in there. Made
    by the parent, for what a child makes anew it pays for with copied pages."""
    channel = Channel(link, _MAX_RECEIVED, _MAX_SENT)
    peer = Program().peer(channel)
    printed = _Printed()
    peer.take_printed = printed.take
    hello = framed(["hello"])

    def answer() -> None:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        os.close(nowhere)
        sys.stdout = printed
        try:
            os.write(link, hello)
            while True:
                peer.serve(channel.receive())
        except (GoneError, MalformedError):
            return

    return answer
