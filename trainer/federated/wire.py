"""What the coordinator speaks to nodes by: Flower's grid (server_app.py), or a test's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from trainer.federated.deltas import Asked
from trainer.federated.packed import Flat

LONGEST_REASON = 300


@dataclass(frozen=True)
class Answer:
    """What came for one question. Without a delta either ``failed`` says why the node doesn't give one, which is its
    last word in this round, or ``lost`` why no answer of its can come any more; the rest is then empty."""

    handle: str
    claim: bytes = b""
    signature: bytes = b""
    adapter: Flat = field(default_factory=lambda: np.empty(0, np.float32))
    failed: str = ""
    lost: str = ""


class Wire(Protocol):
    """Messages to nodes by their names. Anything that raises WireError is tried again."""

    def online(self) -> Sequence[str]: ...

    def ask(self, node: str, asked: Asked, broadcast: Flat, seconds_valid: float) -> str:
        """A handle of the question."""

    def collect(self, handles: Sequence[str]) -> Sequence[Answer]:
        """What has come so far for these questions; each answer comes once."""

    def dismiss(self, node: str, rounds: int, seconds_valid: float) -> str:
        """Tell it that the federation is over after so many rounds; a handle, under which it says that it knows."""

    def bytes_moved(self) -> int | None:
        """In both directions since the beginning; None when nobody counts."""


class WireError(Exception):
    """Nothing could be sent or fetched just now."""


def plain(text: str) -> str:
    """What comes from a node, fit for a terminal: one line, no control characters, not long."""
    shown = "".join(each if each.isprintable() else " " for each in text[: 4 * LONGEST_REASON])
    return " ".join(shown.split())[:LONGEST_REASON]


def collected(handles: Iterable[str], pull: Callable[[str], Answer | None]) -> list[Answer]:
    """What ``pull`` brings for each question; None: nothing yet.

    One question at a time: what one node sends may make its own ``pull`` raise anything at all, is gone then, and must
    cost no other node's answer. Raises WireError when the line fails before anything has come.
    """
    found: list[Answer] = []
    for handle in handles:
        try:
            answer = pull(handle)
        except WireError:
            if not found:
                raise
            break
        except Exception as error:  # noqa: BLE001  (said as the reason why this node has no delta)
            answer = Answer(handle, failed=f"what it has sent cannot be read: {type(error).__name__}: {error}")
        if answer is not None:
            found.append(answer)
    return found
