"""Which view a run gets, and that a vanished or stalled terminal never disturbs the run."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO, cast

import msgspec
from rich.console import Console, ConsoleDimensions
from rich.live import Live

from supervisor.problems import InputError
from supervisor.view.controls import Action, Controls, Steering
from supervisor.view.follow import Follower, RunView
from supervisor.view.keys import Keyboard
from supervisor.view.live import Foot, LiveScreen
from supervisor.view.log_lines import last_lines
from supervisor.view.plain import PlainView
from supervisor.view.terminal import PatientTerminal, is_live_terminal, terminal_size

REDRAW_SECONDS = 1.5
DRAIN_SECONDS = 1.0


class View:
    """Looks at a run and shows it; call it as often as you like. When the output is gone it shows nothing more."""

    def __init__(self, directory: Path, stream: TextIO) -> None:
        self.follower = Follower(directory)
        self.left = False
        """The user has left the live view by q."""
        self._show: Callable[[RunView], None] = PlainView(stream).show
        self._gone = False

    def __call__(self) -> None:
        self.look()

    def look(self) -> None:
        if not self._gone:
            self._gone = not _ignore_gone(lambda: self._show(self.follower.update()))

    def wait(self, seconds: float) -> None:
        """Until then, or until a key is pressed."""
        time.sleep(seconds)

    def close(self) -> None:
        """Leave the screen as it should stay."""


class LiveView(View):
    """A screen that is drawn again and again, with keys when standard input is a terminal as well.

    When it is left by q, plain lines follow if the run is ours (``lines_after``).
    """

    def __init__(self, directory: Path, stream: TextIO, steering: Steering | None, *, lines_after: bool) -> None:
        super().__init__(directory, stream)
        self._stream = stream
        self._steering = steering
        self._lines_after = lines_after
        self._terminal = PatientTerminal(stream)
        self._keyboard = Keyboard()
        self._controls = Controls()
        self._console = Console(
            file=cast(TextIO, self._terminal),
            force_terminal=True,
            markup=False,
            highlight=False,
            emoji=False,
            legacy_windows=False,
        )
        self._size = terminal_size(stream)
        self._console.size = ConsoleDimensions(*self._size)
        self._display = self._new_display()
        self._due = 0.0
        self._live = False

    def open(self) -> None:
        self._keyboard.__enter__()
        self._live = _ignore_gone(self._display.start)
        self._gone = not self._live

    def __call__(self) -> None:
        if not self._live:
            if self._lines_after or not self.left:
                self.look()
            return
        if key := self._keyboard.take():
            self._press(key)
            if self.left:
                return
            self._due = 0.0
        if time.monotonic() >= self._due or terminal_size(self._stream) != self._size:
            self._draw()

    def wait(self, seconds: float) -> None:
        descriptor = self._keyboard.descriptor if self._live else None
        if descriptor is None:
            time.sleep(seconds)
        else:
            select.select([descriptor], [], [], seconds)

    def close(self) -> None:
        """How it ended stays on the screen, without the line about keys."""
        self._keyboard.close()
        if self._live:
            self._live = False
            if not self._gone:
                _ignore_gone(self._last_picture)
            _ignore_gone(self._display.stop)
            _ignore_gone(lambda: self._terminal.drain(DRAIN_SECONDS))
        self._terminal.close()

    def _press(self, key: str) -> None:
        now = time.monotonic()
        self._controls, action = self._controls.press(key, self._offers(), now)
        if action is Action.QUIT:
            self.close()
            self.left = True
        elif action is not None and self._steering is not None:
            acts = {Action.STOP: self._steering.stop, Action.PAUSE: self._steering.pause}
            try:
                said = acts.get(action, self._steering.resume)()
            except InputError as error:
                said = str(error)
            self._controls = self._controls.answer(said, now)

    def _offers(self) -> frozenset[Action]:
        return self._steering.offers if self._steering is not None else frozenset()

    def _draw(self) -> None:
        """Unless the terminal has not taken the picture before yet."""
        self._due = time.monotonic() + REDRAW_SECONDS
        if self._gone or not _ignore_gone(self._terminal.flush):
            self._gone = True
        elif not self._terminal.busy:
            self._gone = not _ignore_gone(self._picture)

    def _picture(self) -> None:
        if (size := terminal_size(self._stream)) != self._size:
            self._begin_anew(size)
        view = self.follower.update()
        hint = self._controls.hint(self._offers(), time.monotonic()) if self._keyboard.works else ""
        name, lines = "", None
        if self._controls.log and view.state is not None and view.state.attempt:
            name, lines = last_lines(self.follower.paths.attempt(view.state.attempt), size[1])
        elif self._controls.log:
            lines = []
        self._display.update(LiveScreen(view, Foot(hint, name, lines)), refresh=True)

    def _last_picture(self) -> None:
        self._display.update(LiveScreen(self.follower.update()), refresh=True)

    def _begin_anew(self, size: tuple[int, int]) -> None:
        """A terminal of another size has broken the lines of the old picture in its own way."""
        self._display.transient = True
        self._display.stop()
        self._console.clear()
        self._size = size
        self._console.size = ConsoleDimensions(*size)
        self._display = self._new_display()
        self._display.start()

    def _new_display(self) -> Live:
        return Live(console=self._console, auto_refresh=False, vertical_overflow="crop")


@contextmanager
def open_view(
    directory: Path,
    *,
    live: bool,
    stream: TextIO | None = None,
    steering: Steering | None = None,
    lines_after: bool = True,
) -> Iterator[View]:
    """Yield a View of the run in ``directory``: call it about twice a second.

    A live screen in a terminal when ``live`` is asked for, plain lines otherwise. ``steering``: what keys may do to
    the run. ``lines_after``: plain lines once the live screen is left. When the output is gone (closed pipe, hung-up
    terminal) nothing more is shown and nothing is raised; a terminal that does not take what is written holds nothing
    up.
    """
    stream = stream or sys.stdout
    if not live or not is_live_terminal(stream):
        yield View(directory, stream)
        return
    view = LiveView(directory, stream, steering, lines_after=lines_after)
    view.open()
    try:
        yield view
    finally:
        view.close()


def _ignore_gone(action: Callable[[], object]) -> bool:
    """Do it; when that fails, say on standard error that the display is off, and return False."""
    try:
        action()
    except (OSError, ValueError, msgspec.DecodeError) as error:  # ValueError: the stream is closed
        with suppress(OSError, ValueError):  # standard error may be gone as well
            sys.stderr.write(f"the display is off ({error}); the run goes on, see `mens-sup status`\n")
        return False
    return True
