"""Many HTTP requests at a time for a caller that has one thread: an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import queue
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2

_PASSING = (408, 409, 425, 429, 500, 502, 503, 504, 529)
"""Answers of a server that may be another one in a moment."""
_TEXT_LIMIT = 500


@dataclass(frozen=True)
class Patience:
    """How often a request is made in all, and the pause (seconds) after the first failure; each further one doubles, up
    to ``longest``. A server's Retry-After counts instead, up to ``longest``."""

    tries: int
    first: float = 1.0
    longest: float = 60.0


@dataclass(frozen=True)
class Answer:
    """A 2xx. ``seconds`` from the request that was answered."""

    body: dict[str, Any]
    seconds: float


@dataclass(frozen=True)
class Declined:
    """Another status, or what is no JSON: asking the same again would not help. ``text`` is the server's own."""

    status: int
    text: str


@dataclass(frozen=True)
class NoAnswer:
    """Nobody answers, or only that he can't now, after all tries. ``seconds`` in all."""

    reason: str


Outcome = Answer | Declined | NoAnswer


class Asking:
    """``client`` is called in the loop's thread. ``concurrency`` requests at a time, ``per_minute`` of them begun."""

    def __init__(
        self,
        client: Callable[[], httpx2.AsyncClient],
        concurrency: int,
        patience: Patience,
        per_minute: int | None = None,
    ) -> None:
        self._patience = patience
        self._pace = 60.0 / per_minute if per_minute else 0.0
        self._next_start = 0.0
        self._results: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
        self._running: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="asking", daemon=True)
        self._thread.start()
        prepared = asyncio.run_coroutine_threadsafe(self._prepare(client, concurrency), self._loop)
        self._client, self._places = prepared.result()

    async def _prepare(
        self, client: Callable[[], httpx2.AsyncClient], concurrency: int
    ) -> tuple[httpx2.AsyncClient, asyncio.Semaphore]:
        return client(), asyncio.Semaphore(concurrency)

    def ask(self, key: int, path: str, body: dict[str, Any]) -> None:
        """Ask; the outcome comes with ``key``."""
        self._loop.call_soon_threadsafe(self._begin, key, path, body)

    def outcomes(self, seconds: float) -> list[tuple[int, Outcome]]:
        """All that are there; waits ``seconds`` at most for the first."""
        found: list[tuple[int, Outcome]] = []
        try:
            found.append(self._results.get(timeout=seconds) if seconds > 0 else self._results.get_nowait())
            while True:
                found.append(self._results.get_nowait())
        except queue.Empty:
            return found

    def one(self, path: str, body: dict[str, Any] | None, seconds: float | None = None) -> Outcome:
        """Ask and wait, ``seconds`` at most, whatever else is going on; a GET without ``body``."""
        return asyncio.run_coroutine_threadsafe(self._within(path, body, seconds), self._loop).result()

    def close(self) -> None:
        """Drop what is asked and end the thread; may be called twice."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _finish(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._client.aclose()

    def _begin(self, key: int, path: str, body: dict[str, Any]) -> None:
        task = self._loop.create_task(self._put(key, path, body))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _put(self, key: int, path: str, body: dict[str, Any]) -> None:
        async with self._places:
            outcome = await self._with_patience(path, body)
        self._results.put((key, outcome))

    async def _within(self, path: str, body: dict[str, Any] | None, seconds: float | None) -> Outcome:
        try:
            return await asyncio.wait_for(self._with_patience(path, body), seconds)
        except TimeoutError:
            return NoAnswer(f"no answer within {seconds:.0f} seconds")

    async def _with_patience(self, path: str, body: dict[str, Any] | None) -> Outcome:
        pause = self._patience.first
        for left in range(self._patience.tries - 1, -1, -1):
            await self._own_turn()
            outcome, told = await self._once(path, body)
            if not isinstance(outcome, NoAnswer) or left == 0:
                return outcome
            wanted = told if told is not None else pause * random.uniform(0.75, 1.25)
            await asyncio.sleep(min(wanted, self._patience.longest))
            pause = min(2 * pause, self._patience.longest)
        raise AssertionError("the last try returns")

    async def _own_turn(self) -> None:
        if self._pace:
            now = time.monotonic()
            self._next_start = max(now, self._next_start) + self._pace
            await asyncio.sleep(self._next_start - self._pace - now)

    async def _once(self, path: str, body: dict[str, Any] | None) -> tuple[Outcome, float | None]:
        """The outcome, and the pause that the server asks for."""
        began = time.monotonic()
        try:
            if body is None:
                reply = await self._client.get(path)
            else:
                reply = await self._client.post(path, json=body)
        except httpx2.TimeoutException:
            return NoAnswer(f"no answer within {time.monotonic() - began:.0f} seconds"), None
        except httpx2.TransportError as error:
            return NoAnswer(" ".join(str(error).split()) or type(error).__name__), None
        text = " ".join(reply.text.split())[:_TEXT_LIMIT]
        if reply.status_code in _PASSING:
            return NoAnswer(f"status {reply.status_code}: {text}"), _retry_after(reply.headers.get("retry-after"))
        if not reply.is_success:
            return Declined(reply.status_code, text), None
        try:
            found = reply.json()
        except ValueError:
            return Declined(reply.status_code, f"no JSON: {text}"), None
        if not isinstance(found, dict):
            return Declined(reply.status_code, f"no JSON object: {text}"), None
        return Answer(found, time.monotonic() - began), None


def _retry_after(value: str | None) -> float | None:
    """Seconds; None without one that can be read."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
