"""Which view a run gets, and that a vanished terminal never disturbs the run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import msgspec
from rich.console import Console
from rich.live import Live

from supervisor.view.follow import Follower, RunView
from supervisor.view.live import LiveScreen
from supervisor.view.plain import PlainView

REDRAW_SECONDS = 1.5


@contextmanager
def open_view(directory: Path, *, live: bool, stream: TextIO | None = None) -> Iterator[Callable[[], None]]:
    """Yield a function that looks at the run in ``directory`` and shows it; call it as often as you like.

    A live screen in a terminal when ``live`` is asked for, plain lines otherwise. When the output is
    gone (closed pipe, hung-up terminal) nothing more is shown and nothing is raised.
    """
    stream = stream or sys.stdout
    follower = Follower(directory)
    console = Console(file=stream, markup=False, highlight=False, emoji=False)
    if not live or not console.is_terminal or console.is_dumb_terminal:
        plain = PlainView(stream)
        yield _until_gone(follower, plain.show)
        return
    display = Live(console=console, auto_refresh=False, vertical_overflow="crop")
    show = _until_gone(follower, lambda view: display.update(LiveScreen(view), refresh=True))
    started = _ignore_gone(display.start)
    try:
        yield _now_and_then(show)
    finally:
        if started:
            show()  # how it ended stays on the screen
            _ignore_gone(display.stop)


def _now_and_then(show: Callable[[], None]) -> Callable[[], None]:
    """Drawing is most of what a live view costs, and nobody reads faster than this."""
    due = 0.0

    def on_tick() -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + REDRAW_SECONDS
            show()

    return on_tick


def _until_gone(follower: Follower, show: Callable[[RunView], None]) -> Callable[[], None]:
    gone = False

    def on_tick() -> None:
        nonlocal gone
        if not gone:
            gone = not _ignore_gone(lambda: show(follower.update()))

    return on_tick


def _ignore_gone(action: Callable[[], object]) -> bool:
    """Do it; when that fails, say on standard error that the display is off, and return False."""
    try:
        action()
    except (OSError, ValueError, msgspec.DecodeError) as error:  # ValueError: the stream is closed
        with suppress(OSError, ValueError):  # standard error may be gone as well
            sys.stderr.write(f"the display is off ({error}); the run goes on, see `mens-sup status`\n")
        return False
    return True
