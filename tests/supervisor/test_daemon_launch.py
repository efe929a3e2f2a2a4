"""A launch cut short at any moment: the job is neither lost nor started twice. The processes are real."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest
from scripted_runs import document, events, wait_for

from supervisor.daemon.dead_man import DeadMan
from supervisor.daemon.job_start import environment, run_command
from supervisor.daemon.launched import Standing, find
from supervisor.daemon.launcher import SessionLauncher, UnitLauncher, find_launcher
from supervisor.daemon.loop import Daemon, End
from supervisor.daemon.paths import DaemonPaths
from supervisor.daemon.queue import Job, Queue
from supervisor.daemon.runner import Runner, last_words
from supervisor.daemon.service import EntryState
from supervisor.process.identity import identity_of
from supervisor.protocol.atomic import write_atomic
from supervisor.protocol.attempt import SPEC_VARIABLE
from supervisor.protocol.lock import FileLock
from supervisor.protocol.paths import RunPaths
from supervisor.state import RunState, write_state
from supervisor.yaml_source import render_yaml

STAND_INS = str(Path(__file__).parents[1] / "stand_ins")


class Nowhere:
    """A launcher of a daemon that died before anything was started."""

    def start(self, state_dir: Path, entry: int, launch: int) -> None:
        return None


class Place:
    """A state folder with one waiting job, and daemons that come and go."""

    def __init__(self, root: Path) -> None:
        self.paths = DaemonPaths(root)
        self.queue = Queue(self.paths.queue)
        self.run_dir = root / "r"
        self.entry = self.queue.add(
            name="r",
            config="/c.yaml",
            run_dir=str(self.run_dir),
            kind="scripted",
            priority=0,
            device="cpu",
            processes=1,
        )
        job = self.paths.job(self.entry)
        job.root.mkdir(parents=True)
        job.config.write_text(render_yaml(document(train={"max_steps": 4})))
        self.launcher = SessionLauncher(environment={**os.environ, "PYTHONPATH": STAND_INS})
        self.runner = self.daemon()

    def daemon(self, launcher: SessionLauncher | Nowhere | None = None) -> Runner:
        """Another daemon, which knows nothing but what is written."""
        self.runner = Runner(self.paths, self.queue, launcher or self.launcher)
        return self.runner

    @property
    def job(self) -> Job:
        return self.queue.job(self.entry)

    def until(self, state: EntryState) -> None:
        def there() -> bool:
            self.runner.tick()
            return self.job.state is state

        wait_for(there, 600)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.runner.forget()
    made.queue.close()


# proves SUP-18: killed between recording a launch and making it, and between making it and seeing it
def test_a_launch_that_was_recorded_is_made_once(place: Place) -> None:
    place.daemon(Nowhere()).begin(place.job, ("cpu",), "{}")
    assert (place.job.state, place.job.launch) == (EntryState.STARTING, 1)
    place.daemon().tick()  # the next daemon makes it, under another number
    assert place.job.launch == 2
    late = place.launcher.start(place.paths.root, place.entry, 1)  # and the old one comes after all
    place.daemon()  # killed once more: nobody has seen the launch
    wait_for(lambda: find(place.paths.job(place.entry), 2).standing is Standing.ALIVE, 600)
    place.until(EntryState.RUNNING)
    assert place.job.launch == 2 and place.job.pid
    place.daemon()
    place.until(EntryState.COMPLETED)
    assert os.waitpid(late, 0)[1] == 0
    assert len(events(place.run_dir, "run_started")) == len(events(place.run_dir, "attempt_started")) == 1
    assert [event.step for event in events(place.run_dir, "progress")] == [1, 2, 3, 4]
    assert place.queue.held()[0].releasing_since is not None  # to be freed once its memory is


def test_a_launch_that_was_replaced_does_nothing(place: Place) -> None:
    place.daemon(Nowhere()).begin(place.job, ("cpu",), "{}")
    command = [sys.executable, "-P", "-m", "supervisor.daemon.job_start", str(place.paths.root), str(place.entry)]
    assert subprocess.run([*command, "7"], check=False, timeout=600).returncode == 0
    place.queue.change(place.entry, state=EntryState.CANCELLED)
    assert subprocess.run([*command, "1"], check=False, timeout=600).returncode == 0
    assert find(place.paths.job(place.entry), 1).standing is Standing.NOT_STARTED
    assert not place.run_dir.exists()


def test_what_became_of_a_launch(place: Place) -> None:
    paths = place.paths.job(place.entry)
    who = identity_of(os.getpid())
    assert who is not None
    record = f'{{"launch":1,"pid":{who.pid},"start_ticks":{who.start_ticks},"boot_id":"{who.boot_id}"}}'.encode()
    assert find(paths, 1).standing is Standing.NOT_STARTED
    with FileLock(paths.lock):
        assert find(paths, 1).standing is Standing.UNDECIDED
        write_atomic(paths.started, record)
        assert find(paths, 1).standing is Standing.ALIVE
        assert find(paths, 2).standing is Standing.UNDECIDED  # its predecessor still has the lock
    assert find(paths, 1).standing is Standing.ENDED


# proves SUP-18: a job that is asked to stop before its supervisor can hear it, is not killed by that
def test_stopping_waits_until_the_supervisor_has_its_run(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.runner.begin(place.job, ("cpu",), "{}")
    place.queue.change(place.entry, wish="pause")
    place.until(EntryState.PAUSED)
    assert place.job.outcome == "stopped" and events(place.run_dir, "outcome")[-1].data["outcome"] == "stopped"
    assert place.job.wish == ""


def test_a_job_sees_its_gpus_alone(place: Place) -> None:
    gpus = place.queue.change(place.entry, resources='["GPU-a","GPU-b"]', device="auto")
    assert environment(gpus, {"A": "1", "NOTIFY_SOCKET": "x"}) == {"A": "1", "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    on_cpu = place.queue.change(place.entry, resources='["cpu"]', device="cpu")
    assert environment(on_cpu, {})["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in environment(place.queue.change(place.entry, device="cuda"), {})


def test_a_run_that_is_there_goes_on_as_it_is(place: Place) -> None:
    paths = place.paths.job(place.entry)
    assert run_command(place.job, paths)[4] == str(paths.config)
    place.run_dir.mkdir()
    (place.run_dir / "run.yaml").touch()
    again = place.queue.change(place.entry, launch=2)
    assert run_command(again, paths)[3:] == ["run", "--run-dir", str(place.run_dir), "--no-live"]


def test_where_a_job_lives_follows_from_who_started_the_daemon() -> None:
    assert isinstance(find_launcher({"MENS_SUP_JOB_SOCKET": "/run/x.sock"}), UnitLauncher)
    assert isinstance(find_launcher({}), SessionLauncher)


# proves SUP-18: a supervisor that was killed is started again and takes its trainer up
@pytest.mark.slow
def test_a_killed_supervisor_is_started_again(place: Place) -> None:
    config = document(train={"max_steps": 200, "step_seconds": 0.05})
    place.paths.job(place.entry).config.write_text(render_yaml(config))
    place.runner.begin(place.job, ("cpu",), "{}")
    place.until(EntryState.RUNNING)
    wait_for(lambda: any((event.step or 0) >= 3 for event in events(place.run_dir, "progress")), 600)
    os.kill(place.job.pid, signal.SIGKILL)
    first = place.job.pid
    wait_for(lambda: (place.runner.tick(), place.job.pid not in (0, first))[1], 600)
    wait_for(lambda: events(place.run_dir, "adopted"), 600)
    place.queue.change(place.entry, wish="cancel")
    place.until(EntryState.CANCELLED)
    assert len(events(place.run_dir, "attempt_started")) == 1
    assert time.time() - (place.job.ended_at or 0) < 90


# proves SUP-18: a run that somebody supervises by hand is refused, and nothing happens to its trainer
def test_a_run_that_somebody_else_supervises_keeps_its_trainer(place: Place) -> None:
    paths = RunPaths(place.run_dir)
    paths.attempt(1).root.mkdir(parents=True)
    write_state(paths.state, RunState(id="r", kind="scripted", max_attempts=5, attempt=1))
    trainer = subprocess.Popen(["sleep", "600"], env={**os.environ, SPEC_VARIABLE: str(paths.attempt(1).spec)})
    try:
        with FileLock(paths.supervisor_lock):
            assert place.runner.end_leftovers(place.job) == "" and trainer.poll() is None
        assert str(trainer.pid) in place.runner.end_leftovers(place.job)
        assert trainer.wait(60) == -signal.SIGKILL
    finally:
        trainer.kill()
        trainer.wait()


# proves SUP-18: a full or unusable state folder is an explanation, not the end of the daemon
def test_a_folder_that_cannot_be_made_is_told(place: Place) -> None:
    jobs = place.paths.job(place.entry).root.parent
    shutil.rmtree(jobs)
    jobs.write_text("in the way")
    place.runner.begin(place.job, ("cpu",), "{}")
    assert place.job.state is EntryState.STARTING
    assert "jobs" in place.job.explanation and "Not a directory" in place.job.explanation


class Switch(BaseHTTPRequestHandler):
    """A dead man's switch that is called."""

    called: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.called.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *given: object) -> None:
        return


# proves SUP-18: the daemon calls a dead man's switch from its main loop, and what fails there is a warning
def test_the_daemon_gives_a_sign_of_life(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "ping"
    with HTTPServer(("127.0.0.1", 0), Switch) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        file.write_text(f"http://127.0.0.1:{server.server_port}/secret-place")
        file.chmod(0o600)
        paths = DaemonPaths(tmp_path / "state")
        dead_man = DeadMan(file)
        daemon = Daemon(paths, paths.runs, SessionLauncher(), restarting=lambda: False, dead_man=dead_man)

        def leave() -> None:
            try:
                wait_for(lambda: Switch.called, 20)
            finally:
                os.kill(os.getpid(), signal.SIGHUP)

        Thread(target=leave).start()
        assert daemon.run() is End.RELOAD
        server.shutdown()
    assert Switch.called == ["/secret-place"]
    file.chmod(0o644)
    DeadMan(file).tick()
    assert "can be read by everybody" in caplog.text and "secret-place" not in caplog.text


# proves SUP-18: why a run ended is one paragraph, not its progress as well
def test_the_last_words_are_not_the_progress(tmp_path: Path) -> None:
    said = tmp_path / "output-1.log"
    assert last_words(said) == ""
    said.write_text("03:34:50 run started: run r\n03:34:51 step 2/4000\n/r/events.jsonl: No such file or directory\n")
    assert last_words(said) == "/r/events.jsonl: No such file or directory"
    said.write_text("x.yaml:3: no good.\n  - and this\n")
    assert last_words(said) == "x.yaml:3: no good.\n  - and this"
    said.write_text("03:34:50 run started: run r\n03:34:51 step 2/4000\n")
    assert last_words(said) == "03:34:51 step 2/4000"
