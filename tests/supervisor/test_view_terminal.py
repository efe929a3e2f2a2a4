"""The live view in real terminals: sizes, keys, and terminals that misbehave."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pyte
import pytest
from scripted_runs import events, final_adapter, state
from troubled_run import make_troubled_run

from supervisor.state import Outcome
from supervisor.view.controls import ASKED_SECONDS, Action, Controls
from supervisor.view.log_lines import last_lines

STAND_INS = str(Path(__file__).parents[1] / "stand_ins")
PATIENCE = 180.0
ALL = frozenset({Action.STOP, Action.PAUSE})


class Terminal:
    """``mens-sup`` in a terminal of its own, and what that shows."""

    def __init__(self, arguments: list[str], columns: int, lines: int, **environment: str) -> None:
        usual = {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "PYTHONPATH": STAND_INS}
        self.screen = pyte.Screen(columns, lines)
        self.raw = b""
        self._stream = pyte.ByteStream(self.screen)
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", "supervisor.cli", *arguments],
            env={**os.environ, **usual, **environment},
            dimensions=(lines, columns),
        )

    def take_in(self, seconds: float = 0.3) -> None:
        try:
            piece = self.child.read_nonblocking(65536, timeout=seconds)
        except (pexpect.TIMEOUT, pexpect.EOF):
            return
        self.raw += piece
        self._stream.feed(piece)

    def until(self, condition: Callable[[list[str]], object]) -> list[str]:
        """The lines on the screen once they fulfil ``condition``."""
        deadline = time.monotonic() + PATIENCE
        while not (self.lines and condition(self.lines)):
            assert time.monotonic() < deadline, "\n".join(self.screen.display)
            self.take_in()
        return self.lines

    def shows(self, text: str) -> list[str]:
        return self.until(lambda lines: any(text in line for line in lines))

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display if line.strip()]

    def press(self, key: str) -> None:
        self.child.send(key)

    def resize(self, columns: int, lines: int) -> None:
        self.screen.resize(lines, columns)
        self.child.setwinsize(lines, columns)

    def end(self) -> int:
        """Its exit code, once it has ended by itself."""
        deadline = time.monotonic() + PATIENCE
        while self.child.isalive():
            assert time.monotonic() < deadline, "\n".join(self.screen.display)
            self.take_in()
        self.take_in()
        code: int = self.child.exitstatus
        return code


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def make(arguments: list[str], columns: int = 80, lines: int = 24, **environment: str) -> Terminal:
        made.append(Terminal(arguments, columns, lines, **environment))
        return made[-1]

    yield make
    for one in made:
        _end(one.child)


# proves SUP-19: right at 80x24 and 200x60, on resize, and keys that leave the run and the terminal as they were
def test_every_size_and_resizing(tmp_path: Path, terminal: Callable[..., Terminal]) -> None:
    place = make_troubled_run(tmp_path / "r", outcome=Outcome.RUNNING).root
    seen = terminal(["watch", str(place)], 80, 24)
    lines = seen.shows("q quit view")
    assert lines[0].startswith("r ") and lines[0].endswith("between attempts") and len(lines[0]) == 80
    assert lines[-1] == "q quit view   l log lines"  # nobody supervises it, so there is nothing to stop
    assert any("/data full in 3 h 10 m" in line for line in lines)
    assert any("relief halve_micro_batch" in line for line in lines)
    assert any(line.endswith("failure: hang at step 80, training: rank 1 waits in all_reduce") for line in lines)

    seen.resize(200, 60)
    lines = seen.until(lambda lines: len(lines[0]) == 200 and "q quit view" in lines[-1])
    assert any(line.startswith("2.5498 █") for line in lines)  # the drawing of the loss
    assert any(line.startswith("attempt 1 cuda_oom at step 40") for line in lines)
    assert sum("q quit view" in line for line in lines) == 1 and sum("step 120/120" in line for line in lines) == 1

    seen.resize(44, 12)
    seen.until(lambda lines: len(lines[0]) == 44 and "q quit view" in lines[-1])
    seen.press("l")
    lines = seen.shows("line of attempt 3")
    assert "stderr.log of attempt 3" in "".join(lines) and lines[-1] == "q quit view   l events"
    assert not any("hf_abc" in line for line in lines)
    seen.press("q")
    assert seen.end() == 0
    assert state(place).outcome is Outcome.RUNNING
    mode = termios.tcgetattr(seen.child.child_fd)[3]
    assert mode & termios.ECHO and mode & termios.ICANON
    assert seen.raw.count(b"\x1b[?25l") == seen.raw.count(b"\x1b[?25h")  # the cursor is shown again


# proves SUP-19: without colour, and in an encoding without bars
def test_no_colour_and_no_unicode(tmp_path: Path, terminal: Callable[..., Terminal]) -> None:
    place = make_troubled_run(tmp_path / "r", outcome=Outcome.RUNNING).root
    seen = terminal(["watch", str(place)], NO_COLOR="1", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    seen.shows("q quit view")
    seen.press("q")
    assert seen.end() == 0
    assert seen.raw.isascii() and b"1.3147 +- 0.0210" in seen.raw
    assert not re.search(rb"\x1b\[[0-9;]*(?:3[0-7]|4[0-7]|38|48)[0-9;]*m", seen.raw)


# proves SUP-19: terminals that cannot draw, and pipes whatever is said about colours, get plain lines
@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": ""}])
def test_a_dumb_terminal_gets_lines(
    tmp_path: Path, terminal: Callable[..., Terminal], environment: dict[str, str]
) -> None:
    place = make_troubled_run(tmp_path / "r").root
    seen = terminal(["watch", str(place)], **environment)
    assert seen.end() == 0
    assert b"\x1b" not in seen.raw and b"attempt 2 ended: signal 6\r\n" in seen.raw


def test_a_pipe_gets_lines_although_colour_is_forced(tmp_path: Path) -> None:
    place = make_troubled_run(tmp_path / "r").root
    done = subprocess.run(
        [sys.executable, "-m", "supervisor.cli", "watch", str(place)],
        env={**os.environ, "FORCE_COLOR": "1", "TERM": "xterm"}, capture_output=True, check=True,
    )  # fmt: skip
    assert b"\x1b" not in done.stdout and b"attempt 2 ended: signal 6\n" in done.stdout


# proves SUP-19, SUP-9: p pauses with a checkpoint and goes on; the result is that of a run left alone
@pytest.mark.slow
def test_pause_and_go_on(tmp_path: Path, terminal: Callable[..., Terminal], undisturbed: bytes) -> None:
    config = tmp_path / "job.yaml"
    config.write_text("kind: scripted\ncheckpoint: {save_steps: 3}\ntrain: {step_seconds: 0.3}\n")
    place = tmp_path / "r"
    seen = terminal(["run", str(config), "--run-dir", str(place)])
    seen.shows("p pause   s stop")
    seen.until(lambda lines: bool(events(place, "progress")))
    seen.press("p")
    seen.shows("pause with a checkpoint?")
    seen.press("x")
    seen.shows("nothing was done")
    assert not events(place, "stop_requested")
    seen.press("p")
    seen.shows("pause with a checkpoint?")
    seen.press("y")
    seen.shows("p go on")
    assert state(place).outcome is Outcome.STOPPED
    seen.press("p")
    assert seen.end() == 0
    assert len(events(place, "attempt_started")) == 2
    assert final_adapter(place) == undisturbed
    assert (place / "report.html").read_bytes().startswith(b"<!doctype html>")


# proves SUP-19, SUP-9: s stops with a checkpoint
@pytest.mark.slow
def test_stop(tmp_path: Path, terminal: Callable[..., Terminal]) -> None:
    config = tmp_path / "job.yaml"
    config.write_text("kind: scripted\ntrain: {step_seconds: 0.2, max_steps: 5000}\n")
    place = tmp_path / "r"
    seen = terminal(["run", str(config), "--run-dir", str(place)])
    seen.shows("p pause   s stop")
    seen.until(lambda lines: bool(events(place, "progress")))
    seen.press("s")
    seen.shows("stop with a checkpoint?")
    seen.press("y")
    assert seen.end() == 3
    assert state(place).last_checkpoint is not None


# proves SUP-19: a terminal that nobody reads (Ctrl-S, a stalled ssh) never holds the run up
def test_a_stalled_terminal_holds_nothing_up(tmp_path: Path) -> None:
    place = make_troubled_run(tmp_path / "r", outcome=Outcome.RUNNING).root
    program = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from supervisor.view import screen
        screen.REDRAW_SECONDS = 0.0
        with screen.open_view(Path(sys.argv[1]), live=True) as view:
            for _ in range(60):
                view()
        Path(sys.argv[2]).write_text("through")
        """
    )
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (60, 200))
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(place), str(tmp_path / "done")], stdin=slave, stdout=slave,
        stderr=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(slave)
    try:
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert (tmp_path / "done").read_text() == "through"


def test_the_background_is_no_place_for_keys(tmp_path: Path) -> None:
    """Whoever reads the terminal from there is stopped by it."""
    place = make_troubled_run(tmp_path / "r", outcome=Outcome.RUNNING).root
    program = "import os, sys, subprocess; sys.exit(subprocess.call(sys.argv[1:], process_group=0))"
    child = pexpect.spawn(
        sys.executable, ["-c", program, sys.executable, "-m", "supervisor.cli", "watch", str(place)],
        env={**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8"}, dimensions=(24, 80),
    )  # fmt: skip
    try:
        child.expect("step 120/120", timeout=PATIENCE)
        child.expect("step 120/120", timeout=PATIENCE)  # it was not stopped
        assert b"q quit view" not in child.before
    finally:
        for group in _groups_below(child.pid):
            os.killpg(group, signal.SIGKILL)
        _end(child)


def _end(child: pexpect.spawn) -> None:
    if child.isalive():
        child.kill(signal.SIGKILL)
        child.wait()
    child.close()


def _groups_below(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in children]


# proves SUP-19: what ends or pauses a run asks first
def test_what_keys_do() -> None:
    controls, action = Controls().press("s", ALL, 0.0)
    assert action is None and controls.hint(ALL, 1.0).startswith("stop with a checkpoint?")
    assert controls.press("y", ALL, 1.0)[1] is Action.STOP
    refused, action = controls.press("s", ALL, 1.0)
    assert action is None and refused.hint(ALL, 1.5) == "nothing was done"
    assert controls.press("y", ALL, ASKED_SECONDS + 1)[1] is None  # too late: it is no answer any more
    assert controls.press("y", frozenset(), 1.0)[1] is None  # the run has ended meanwhile
    assert Controls().press("p", ALL, 0.0)[0].asked is Action.PAUSE
    assert Controls().press("p", frozenset({Action.RESUME}), 0.0)[1] is Action.RESUME
    assert Controls().press("q", frozenset(), 0.0)[1] is Action.QUIT
    assert Controls().press("s", frozenset(), 0.0) == (Controls(), None)
    assert Controls().press("l", ALL, 0.0)[0].hint(ALL, 0.0) == "q quit view   p pause   s stop   l events"


def test_log_lines_are_those_that_a_terminal_would_show(tmp_path: Path) -> None:
    attempt = make_troubled_run(tmp_path / "r").attempt(1)
    attempt.stdout.write_text("")
    attempt.stderr.write_bytes(b"x" * 40_000 + b"\none\r10%\r\x1b[31m20%\x1b[0m\r\n\n\xff token=abcdefghijkl\nlast")
    assert last_lines(attempt, 3) == ("stderr.log", ["20%", "\ufffd token=[hidden]", "last"])
    attempt.stderr.unlink()
    assert last_lines(attempt, 3) == ("", [])
