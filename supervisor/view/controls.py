"""What the keys of a live view do. The state is frozen, and a key makes the next one; pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Protocol

SAID_SECONDS = 8.0
ASKED_SECONDS = 15.0


class Steering(Protocol):
    """What a watched run can be made to do. Each answers with a sentence for people, or raises InputError."""

    @property
    def offers(self) -> frozenset[Action]:
        """Those of STOP, PAUSE and RESUME that make sense now."""

    def stop(self) -> str: ...

    def pause(self) -> str: ...

    def resume(self) -> str: ...


class Action(enum.Enum):
    QUIT = "q"
    STOP = "s"
    PAUSE = "p"
    RESUME = "r"


_QUESTIONS = {
    Action.STOP: "stop with a checkpoint? y yes, any other key no",
    Action.PAUSE: "pause with a checkpoint? y yes, any other key no",
}


@dataclass(frozen=True)
class Controls:
    """``log``: log lines are shown in the place of events. ``asked``: what waits for a yes since ``at``.

    ``said``: an answer that is shown until some seconds after ``at`` (monotonic).
    """

    log: bool = False
    asked: Action | None = None
    said: str = ""
    at: float = 0.0

    def press(self, key: str, offers: frozenset[Action], now: float) -> tuple[Controls, Action | None]:
        """The next state, and what is to be done."""
        asked = self.asked if now - self.at < ASKED_SECONDS else None
        if asked is not None:
            done = asked if key in ("y", "Y") and asked in offers else None
            return replace(self, asked=None, said="" if done else "nothing was done", at=now), done
        match key:
            case "q":
                return replace(self, said=""), Action.QUIT
            case "l":
                return replace(self, log=not self.log, said=""), None
            case "s" if Action.STOP in offers:
                return replace(self, asked=Action.STOP, at=now), None
            case "p" if Action.RESUME in offers:
                return replace(self, said=""), Action.RESUME
            case "p" if Action.PAUSE in offers:
                return replace(self, asked=Action.PAUSE, at=now), None
        return self, None

    def answer(self, sentence: str, now: float) -> Controls:
        return replace(self, said=sentence, at=now)

    def hint(self, offers: frozenset[Action], now: float) -> str:
        """The line at the foot of the screen."""
        if self.asked is not None and now - self.at < ASKED_SECONDS:
            return _QUESTIONS[self.asked]
        if self.said and now - self.at < SAID_SECONDS:
            return self.said
        parts = ["q quit view"]
        if Action.RESUME in offers:
            parts.append("p go on")
        elif Action.PAUSE in offers:
            parts.append("p pause")
        if Action.STOP in offers:
            parts.append("s stop")
        parts.append("l events" if self.log else "l log lines")
        return "   ".join(parts)
