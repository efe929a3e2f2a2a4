"""A wire whose calls are waited for a few seconds and no longer, so that none of them holds up the end of a round.

Flower tries a call again until its SuperLink answers, for ever if need be. Here a call that takes too long goes on in a
thread, and what comes of it is handed over later: nothing is sent twice and no answer is lost.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from trainer.federated.deltas import Asked
from trainer.federated.packed import Flat
from trainer.federated.wire import Answer, Wire, WireError

LONGEST_SECONDS = 4.0
"""How long a call is waited for. In the worst case a round's end waits for two of them."""
Question = tuple[str, int, str]
"""To whom, of which round, with the broadcast of which digest."""


@dataclass
class _Call:
    work: Callable[[], Any]
    keep: Callable[[Any], None]
    """Takes what has come of it when nobody waits for it any more."""
    finished: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None


class TimedWire:
    """Implements Wire on another one, whose calls it makes one after the other in a thread of its own."""

    def __init__(self, wire: Wire, longest_seconds: float = LONGEST_SECONDS) -> None:
        self._wire = wire
        self._longest = longest_seconds
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._late: _Call | None = None
        self._asked: dict[Question, str] = {}
        self._answers: list[Answer] = []
        self._nodes: Sequence[str] | None = None
        # Not one of a pool: those are waited for when the program ends.
        threading.Thread(target=self._work, daemon=True).start()

    def online(self) -> Sequence[str]:
        """What a call of before has brought is taken first: where each takes long, the next would never be over."""
        until = time.monotonic() + self._longest
        self._settle(until)
        if self._nodes is None:
            self._keep_nodes(self._within(self._wire.online, self._keep_nodes, until))
        nodes, self._nodes = self._nodes, None
        return nodes or ()

    def ask(self, node: str, asked: Asked, broadcast: Flat, seconds_valid: float) -> str:
        question = (node, asked.round, asked.began_from)
        return self._once(question, lambda: self._wire.ask(node, asked, broadcast, seconds_valid))

    def dismiss(self, node: str, rounds: int, seconds_valid: float) -> str:
        return self._once((node, rounds, ""), lambda: self._wire.dismiss(node, rounds, seconds_valid))

    def collect(self, handles: Sequence[str]) -> Sequence[Answer]:
        """With what a call of before has brought, also when this one brings nothing."""
        failed: WireError | None = None
        try:
            self._keep_answers(self._within(lambda: self._wire.collect(handles), self._keep_answers))
        except WireError as error:
            failed = error
        found, self._answers = self._answers, []
        if failed is not None and not found:
            raise failed
        return found

    def bytes_moved(self) -> int | None:
        return self._wire.bytes_moved()

    def _keep_nodes(self, nodes: Sequence[str]) -> None:
        self._nodes = nodes

    def _keep_answers(self, answers: Sequence[Answer]) -> None:
        self._answers.extend(answers)

    def _once(self, question: Question, work: Callable[[], str]) -> str:
        """A question that was sent after all, when nobody waited any more, is not sent again."""
        until = time.monotonic() + self._longest
        self._settle(until)
        if question not in self._asked:
            keep = partial(self._asked.__setitem__, question)
            keep(self._within(work, keep, until))
        return self._asked.pop(question)

    def _within(self, work: Callable[[], Any], keep: Callable[[Any], None], until: float | None = None) -> Any:
        until = time.monotonic() + self._longest if until is None else until
        self._settle(until)
        call = _Call(work, keep)
        self._calls.put(call)
        if not call.finished.wait(max(0.0, until - time.monotonic())):
            self._late = call
            raise WireError(f"the SuperLink has not answered for {self._longest:g} seconds")
        if call.error is not None:
            raise call.error
        return call.result

    def _settle(self, until: float) -> None:
        """Raises WireError while the call of before is still under way, and what it has raised."""
        call = self._late
        if call is None:
            return
        if not call.finished.wait(max(0.0, until - time.monotonic())):
            raise WireError("the SuperLink has still not answered an earlier call")
        self._late = None
        if call.error is not None:
            raise call.error
        call.keep(call.result)

    def _work(self) -> None:
        while True:
            call = self._calls.get()
            try:
                call.result = call.work()
            except BaseException as error:  # noqa: BLE001  (raised again in the thread that asked for it)
                call.error = error
            call.finished.set()
