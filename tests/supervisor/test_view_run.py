"""Following a run directory and showing it."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from rich.console import Console

from supervisor.protocol.events import Event, EventLog
from supervisor.protocol.heartbeat import HeartbeatWriter, Phase
from supervisor.protocol.lock import FileLock
from supervisor.protocol.paths import RunPaths
from supervisor.state import Outcome, ReliefTaken, RunState, write_state
from supervisor.view.follow import Follower, RunView
from supervisor.view.live import LiveScreen
from supervisor.view.plain import PlainView, progress_line
from supervisor.view.screen import open_view


class RunningRun:
    """A run directory as a supervisor and a trainer (this process) leave it in the middle of a run."""

    def __init__(self, root: Path) -> None:
        self.paths = RunPaths(root)
        self.state = RunState(
            id=root.name, kind="tiny", max_attempts=5, attempt=2, attempts_before=0, trainer_pid=os.getpid()
        )
        self.attempt_folder = self.paths.attempt(2).root
        self.attempt_folder.mkdir(parents=True)
        self.trainer = EventLog(self.paths.events, "trainer", 2)
        self.supervisor = EventLog(self.paths.events, "supervisor", 2)
        self.heartbeat = HeartbeatWriter(self.paths.attempt(2).heartbeat)
        self.save()

    def save(self, **changes: object) -> None:
        for name, value in changes.items():
            setattr(self.state, name, value)
        write_state(self.paths.state, self.state)

    def progress(self, step: int, loss: float, **data: object) -> None:
        self.heartbeat.beat(Phase.TRAINING, step, 40)
        self.trainer.append("progress", step=step, loss=loss, **data)


@pytest.fixture
def running(tmp_path: Path) -> RunningRun:
    return RunningRun(tmp_path / "run-1")


def full(running: RunningRun) -> RunView:
    """A view in which everything is known."""
    running.save(
        last_checkpoint="checkpoints/step-00000020",
        relief=[ReliefTaken(2, "halve_micro_batch", "cuda_oom", "slower", True, {})] * 2,
    )
    running.supervisor.append("attempt_started", "attempt 2 starts from step 0")
    for step in range(1, 26):
        running.progress(
            step, 3.0 - step / 25, learning_rate=2e-4, grad_norm=1.25, grad_norm_clipped=1.0, tokens_per_second=1234.5,
            eta_seconds=3725, tokens_seen=step * 100, epoch=0.5, memory_bytes=9 << 30,
        )  # fmt: skip
    running.trainer.append("evaluation", step=20, eval_loss=2.345)
    running.supervisor.append("failure", "[red]no markup[/red] \x1b[2J " + "long " * 60)
    return Follower(running.paths.root).update()


# proves SUP-19: the run directory alone says how the run stands
def test_follower_combines_heartbeat_events_and_state(running: RunningRun) -> None:
    running.save(step=10, planned_steps=40, tokens_seen=1000)
    follower = Follower(running.paths.root)
    first = follower.update()
    assert (first.step, first.planned_steps, first.tokens_seen, first.phase) == (10, 40, 1000, "starting")
    running.progress(12, 2.5, tokens_seen=1200)
    running.trainer.append("evaluation", step=12, eval_loss=2.4)
    second = follower.update()
    assert (second.step, second.planned_steps, second.tokens_seen, second.phase) == (12, 40, 1200, "training")
    assert second.eval_loss == (12, 2.4)
    assert [event.kind for event in second.new_events] == ["progress", "evaluation"]
    assert second.trainer_rss_bytes is not None and second.trainer_rss_bytes > 1 << 20
    assert second.disk_free_bytes is not None
    assert follower.update().new_events == ()
    running.heartbeat.beat(Phase.LOADING, 0, 0)
    assert follower.update().step == 10  # a loading trainer has no step yet; the state knows better


def test_a_run_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    view = Follower(tmp_path / "later").update()
    assert view.state is None and not view.running and view.step == 0 and view.disk_free_bytes is None
    assert "starting" in render(view, 80, 24)
    PlainView(io.StringIO()).show(view)


def test_steps_done_again_replace_their_losses(running: RunningRun) -> None:
    follower = Follower(running.paths.root)
    for step in (1, 2, 3, 4):
        running.progress(step, 4.0 + step)
    running.supervisor.append("attempt_started")
    assert follower.update().progress == {}
    running.progress(3, 1.0)
    assert follower.update().losses == ((1, 5.0), (2, 6.0), (3, 1.0))


def test_a_heartbeat_left_behind_says_nothing(running: RunningRun) -> None:
    running.progress(12, 2.5)
    running.save(trainer_pid=0, step=11)
    view = Follower(running.paths.root).update()
    assert view.phase is None and view.step == 11 and view.trainer_rss_bytes is None


def test_memory_is_only_read_of_the_process_that_the_supervisor_names(running: RunningRun) -> None:
    running.progress(1, 1.0)
    running.save(trainer_pid=os.getpid() + 1)
    assert Follower(running.paths.root).update().trainer_rss_bytes is None


def test_a_held_lock_is_a_living_supervisor(running: RunningRun) -> None:
    follower = Follower(running.paths.root)
    assert not follower.update().supervisor_alive
    with FileLock(running.paths.supervisor_lock):
        assert follower.update().supervisor_alive
    assert not follower.update().supervisor_alive


def render(view: RunView, width: int, height: int, encoding: str = "utf-8", color: bool = False) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict", newline="")
    console = Console(
        file=stream, width=width, height=height, markup=False, highlight=False, emoji=False,
        force_terminal=True, color_system="standard" if color else None, no_color=not color, legacy_windows=False,
    )  # fmt: skip
    console.print(LiveScreen(view), end="")
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode(encoding)


# proves SUP-19: right at 80x24 and at any other size, without colour and without UTF-8
@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (20, 8), (200, 60), (81, 25)])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_live_fits_the_terminal(running: RunningRun, width: int, height: int, encoding: str) -> None:
    text = render(full(running), width, height, encoding)
    lines = text.splitlines()
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    assert "\x1b[2J" not in text


def test_live_shows_everything_at_80_by_24(running: RunningRun) -> None:
    text = render(full(running), 80, 24)
    for part in (
        "run-1", "attempt 2 of 5", "training", "step 25/40", " 62%", "ETA 1 h 02 m", "loss 2.0000",
        "eval 2.3450 (step 20)", "lr 2.00e-04", "grad norm 1.25 (clipped 1)", "1 234 tokens/s", "epoch 0.50",
        "memory ", "peak 9.0 GiB", "disk free ", "checkpoint step 20", "relief halve_micro_batch (x2)",
        "evaluation: step 20", "failure: [red]no markup[/red] long", "█", "▁", "━",
    ):  # fmt: skip
        assert part in text, part
    assert "\x1b[" not in text
    assert "\x1b[" in render(full(running), 80, 24, color=True)


def test_a_run_that_ended_shows_its_outcome(running: RunningRun) -> None:
    full(running)
    running.save(outcome=Outcome.GAVE_UP, step=25, planned_steps=40)
    text = render(Follower(running.paths.root).update(), 80, 24)
    assert "gave up" in text and "ETA" not in text


# proves TRN-18: never silent: events at once, progress at least every 30 s, without a terminal
def test_plain_lines(running: RunningRun) -> None:
    stream, moment = io.StringIO(), [0.0]
    plain, follower = PlainView(stream, lambda: moment[0]), Follower(running.paths.root)

    def shown() -> list[str]:
        stream.seek(0)
        stream.truncate()
        plain.show(follower.update())
        return [line.split(" ", 1)[1] for line in stream.getvalue().splitlines()]

    running.supervisor.append("attempt_started", "attempt 2 starts")
    assert shown() == ["attempt 2 starts"]
    running.progress(1, 2.5, learning_rate=1e-4, tokens_per_second=100, eta_seconds=61, memory_bytes=1 << 30)
    (line,) = shown()  # the first step of an attempt is told at once
    assert line.startswith("step 1/40, loss 2.5000, lr 1.00e-04, 100 tokens/s, ETA 1 m 01 s, memory 1.0 GiB, disk free")
    running.progress(2, 2.4)
    assert shown() == []
    moment[0] += 29
    (line,) = shown()
    assert line.startswith("step 2/40, loss 2.4000")
    running.heartbeat.beat(Phase.EVALUATING, 2, 40)
    moment[0] += 29
    (line,) = shown()  # also when no step is done
    assert line.startswith("evaluating, step 2/40")
    running.save(outcome=Outcome.COMPLETED)
    moment[0] += 29
    assert shown() == []


def test_plain_lines_are_harmless(running: RunningRun) -> None:
    running.supervisor.append("failure", "\x1b[31mbad\x1b[0m → [b]x[/b]\nnext")
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    PlainView(stream).show(Follower(running.paths.root).update())
    assert isinstance(stream.buffer, io.BytesIO)
    assert stream.buffer.getvalue().decode().split(" ", 1)[1] == "failure: bad -> [b]x[/b] next\n"


def test_progress_line_with_nothing_known(running: RunningRun) -> None:
    running.save(trainer_pid=0)
    assert progress_line(Follower(running.paths.root).update()).startswith("between attempts, step 0/?")


# proves SUP-19: a terminal that goes away never disturbs the run
def test_a_closed_stream_ends_the_view_and_nothing_else(
    running: RunningRun, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        with open_view(running.paths.root, live=True, stream=stream) as on_tick:
            running.supervisor.append("warning", "one")
            on_tick()
            running.supervisor.append("warning", "two")
            on_tick()
        error = capsys.readouterr().err
        assert error.count("the display is off") == 1
        with pytest.raises(BrokenPipeError):
            stream.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)


def test_open_view_in_a_real_terminal(running: RunningRun) -> None:
    full(running)
    program = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from supervisor.view.screen import open_view
        with open_view(Path(sys.argv[1]), live=True) as on_tick:
            on_tick()
            on_tick()
        print("after")
        """
    )
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24", "NO_COLOR": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", program, str(running.paths.root)], stdout=slave, stderr=slave, env=environment
    ) as process:
        os.close(slave)
        output = b""
        while True:
            try:
                chunk = os.read(master, 65536)
            except OSError:  # EIO: the other side is closed
                break
            if not chunk:
                break
            output += chunk
        assert process.wait() == 0
    os.close(master)
    text = output.decode()
    assert text.count("step 25/40") >= 2
    assert "\x1b[31m" not in text and "\x1b[32m" not in text  # NO_COLOR
    assert text.rstrip().endswith("after")
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")  # the cursor is shown again


def test_times_are_of_the_day() -> None:
    moment = time.time()
    stream = io.StringIO()
    view = RunView(
        Path("x"), None, None, {}, (), None, (Event(moment, "trainer", "warning", 1, None, "w"),), (), None, None, False
    )
    PlainView(stream).show(view)
    assert stream.getvalue() == f"{time.strftime('%H:%M:%S', time.localtime(moment))} warning: w\n"
