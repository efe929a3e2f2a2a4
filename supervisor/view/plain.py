"""Plain lines for logs and pipes: each event of interest at once, progress at least every half minute."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from supervisor.sensors.disk import human_bytes
from supervisor.view.follow import RunView
from supervisor.view.text import clean, count, duration, printable
from supervisor.view.wording import clock, describe, number

PROGRESS_SECONDS = 25.0
"""Below the promised 30 s, since views come only about twice a second, and late on a busy machine."""


class PlainView:
    """Prints to ``stream``. ``now`` is a monotonic clock in seconds."""

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._now = now
        self._last_progress = now()
        self._attempt_shown = 0

    def show(self, view: RunView) -> None:
        """Raises OSError when the stream is gone."""
        for event in view.new_events:
            if event.kind != "outcome" and (text := describe(event)) is not None:
                self._line(f"{clock(event.time)} {text}")
        if not view.running:
            return
        attempt = view.state.attempt if view.state else 0
        first = bool(view.progress) and view.beat is not None and attempt != self._attempt_shown
        if first or self._now() - self._last_progress >= PROGRESS_SECONDS:
            self._line(f"{clock(time.time())} {progress_line(view)}")
            self._last_progress = self._now()
            if first:
                self._attempt_shown = attempt

    def _line(self, text: str) -> None:
        print(printable(text, self._stream), file=self._stream, flush=True)


def progress_line(view: RunView) -> str:
    """One line with what is known: phase, step, loss, learning rate, speed, time left, memory, disk."""
    planned = view.planned_steps
    parts = [f"step {view.step}/{planned if planned is not None else '?'}"]
    if view.phase != "training":
        parts.insert(0, view.phase or "between attempts")
    if view.progress_message:
        parts.append(clean(view.progress_message))
    data = view.progress
    if (loss := number(data, "loss")) is not None:
        parts.append(f"loss {loss:.4f}")
    if (rate := number(data, "learning_rate")) is not None:
        parts.append(f"lr {rate:.2e}")
    if (norm := number(data, "grad_norm")) is not None:
        parts.append(f"grad norm {norm:.3g}")
    if (speed := number(data, "tokens_per_second")) is not None:
        parts.append(f"{count(speed)} tokens/s")
    if (left := number(data, "eta_seconds")) is not None:
        parts.append(f"ETA {duration(left)}")
    memory = number(data, "memory_bytes")
    if memory is None:
        memory = view.trainer_rss_bytes
    if memory is not None:
        parts.append(f"memory {human_bytes(int(memory))}")
    if view.disk_free_bytes is not None:
        parts.append(f"disk free {human_bytes(view.disk_free_bytes)}")
    return ", ".join(parts)
