"""`mens-sup` that ends itself by SIGKILL at a chosen place, for supervisors that die in the middle of something.

$MENS_DIES_AT is the kind of an event (right after it was written) or one of ``spawned`` (before the trainer's pid is
recorded), ``unsaved:KIND`` (when state.json is to be written next after an event of that kind).
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import supervisor.supervise.attempt as attempt
from supervisor.cli import main
from supervisor.supervise.journal import Journal

PLACE = os.environ["MENS_DIES_AT"]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


write, save = Journal.event, Journal.save
armed = False


def event(self: Journal, kind: str, message: str = "", **data: Any) -> None:
    global armed
    write(self, kind, message, **data)
    if kind == PLACE:
        die()
    armed = armed or f"unsaved:{kind}" == PLACE


def saving(self: Journal, **how: Any) -> None:
    if armed:
        die()
    save(self, **how)


Journal.event = event  # type: ignore[method-assign]
Journal.save = saving  # type: ignore[method-assign]
if PLACE == "spawned":
    attempt.remember_trainer = lambda state, pid: die()

sys.exit(main())
