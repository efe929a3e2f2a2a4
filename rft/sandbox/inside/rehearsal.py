"""A conversation with a program inside one process, before there is work: Python compiles to faster code what has run a
few times, and a child inherits that."""

from __future__ import annotations

import json
from typing import Any

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
    for _ in range(_TIMES):
        line = _Loop()
        line.other = Program().peer(line)
        work = Peer(line, {}).ask("load", None, (_PROGRAM, ("work",), ()))["work"]
        answers = [work([3, 2, 4]), work([1], "x", {"k": 0.5}), work(values=[])]
        if answers[1:] != [1, 3]:
            raise RuntimeError(f"the rehearsal failed: {answers}")
