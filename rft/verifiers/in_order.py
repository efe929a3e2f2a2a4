"""Many judgements at a time, their results in order, with a bounded number in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Work = TypeVar("Work")
Result = TypeVar("Result")

AHEAD = 8
"""Pieces of work per worker that may wait for an earlier one to be finished."""


def in_order(work: Iterable[Work], function: Callable[[Work], Result], workers: int) -> Iterator[tuple[Work, Result]]:
    """``(piece, function(piece))`` in the order of ``work``, which is read only as far as is needed.

    What ``function`` raises comes out here. Closing the iterator waits for what has begun and drops the rest.
    """
    waiting: deque[tuple[Work, Future[Result]]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="judge")
    try:
        for piece in work:
            waiting.append((piece, pool.submit(function, piece)))
            if len(waiting) > workers * AHEAD:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(cancel_futures=True)
