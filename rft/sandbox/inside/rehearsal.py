"""A conversation of a test with a program inside one process, before there is work: Python compiles to faster code what
has run a few times, and a child inherits that."""

from __future__ import annotations

import json
from typing import Any

from rft.sandbox.inside import tests
from rft.sandbox.inside.candidate import Program
from rft.sandbox.inside.peer import Peer

_TIMES = 12
_PROGRAM = """
from typing import List, Dict

def work(values: List[int], text: str = "a b", table: Dict[str, float] = {}):
    result = []
    for number, value in enumerate(sorted(values)):
        if value % 2 == 0 and text.split():
            result.append((value * 2, str(number), {"a": [1.5, None, True]}))
    return result[:3] or len(text)
"""
_TESTS = """
def check(candidate):
    assert candidate([3, 2, 4]) == [(4, "0", {"a": [1.5, None, True]}), (8, "2", {"a": [1.5, None, True]})]
    assert candidate([1], "x", {"k": 0.5}) == 1
    assert candidate(values=[]) == 3
"""


class _Loop:
    """A line whose other side answers at once."""

    def __init__(self) -> None:
        self.other: Peer | None = None
        self.messages: list[Any] = []

    def send(self, message: Any) -> None:
        self.messages.append(json.loads(json.dumps(message)))

    def receive(self) -> Any:
        if self.other is not None:
            self.other.serve(self.messages.pop())
        return self.messages.pop()


def rehearse() -> None:
    suite = tests.prepared(json.dumps({"tests": _TESTS, "entry_point": "work", "prefix": _PROGRAM}))
    for _ in range(_TIMES):
        line = _Loop()
        line.other = Program().peer(line)
        found = tests.Run(suite, Peer(line, {})).verdict(_PROGRAM)
        if found["outcome"] != "accepted":
            raise RuntimeError(f"the rehearsal failed: {found}")
    tests.prepared.cache_clear()
