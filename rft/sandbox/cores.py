"""Which processor core the processes of a judge share.

They wait for each other some twenty times per program. On one core that is a switch of processes; across two, each time
an idle core is woken up, which takes longer than most programs do.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Iterable, Set
from pathlib import Path


class Cores:
    """The cores that this process may use."""

    def __init__(self) -> None:
        self.all = frozenset(os.sched_getaffinity(0))
        cores = sorted(self.all)
        first = random.randrange(len(cores))  # two jobs should not share the first few
        self._order = cores[first:] + cores[:first]

    def least_used(self, used: Iterable[int]) -> int:
        """The core that is ``used`` by the fewest."""
        times = Counter(used)
        return min(self._order, key=lambda core: times[core])


def place(process: int, cores: Set[int]) -> None:
    """Have a process, and everything below it, run on these cores alone. Where that is not allowed they stay where they
    are, which is slower and no fault."""
    waiting = [process]
    while waiting:
        number = waiting.pop()
        with contextlib.suppress(OSError):  # also: it has ended
            for task in Path(f"/proc/{number}/task").iterdir():
                os.sched_setaffinity(int(task.name), cores)
                waiting += map(int, (task / "children").read_text().split())
