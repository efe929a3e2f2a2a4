"""A probe is a run that nobody is told of, and of which nothing is left however it ends. proves TRN-16."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from supervisor.planning.probe import pace_told, probe_command, run_to_its_end
from supervisor.process.leftovers import processes_of
from supervisor.protocol.events import Event
from supervisor.protocol.paths import RunPaths
from trainer.job import SFT

CAP_SECONDS = 120.0
SUPERVISOR = """
import os, pathlib, signal, subprocess, sys, time
attempt = pathlib.Path(sys.argv[1]) / "attempts" / "0001"
attempt.mkdir(parents=True)
environment = {**os.environ, "MENS_ATTEMPT": str(attempt / "attempt.json")}
def asked(*_):
    (attempt / "asked").touch()
    sys.exit(3)
signal.signal(signal.SIGTERM, asked)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=environment, start_new_session=True)
(attempt / "ready").touch()
time.sleep(600)
"""
"""It stops when it is asked, but leaves its trainer behind."""


@pytest.mark.parametrize(("number", "ending"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_nothing_is_left_when_a_probe_is_interrupted(
    tmp_path: Path, number: signal.Signals, ending: type[BaseException]
) -> None:
    files = RunPaths(tmp_path).attempt(1)
    lived: list[int] = []

    def interrupt() -> None:
        deadline = time.monotonic() + CAP_SECONDS
        while not (files.root / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        lived.extend(processes_of(files.spec))
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(ending):
        run_to_its_end([sys.executable, "-c", SUPERVISOR, str(tmp_path)], tmp_path, CAP_SECONDS)
    thread.join()
    assert lived and not processes_of(files.spec)
    assert (files.root / "asked").exists(), "it is asked before it is killed"


def test_a_probe_that_does_not_end_when_asked_is_killed(tmp_path: Path) -> None:
    deaf = "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    deaf += "pathlib.Path(sys.argv[1], 'ready').touch(); time.sleep(600)"

    def interrupt() -> None:
        while not (tmp_path / "ready").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run_to_its_end([sys.executable, "-c", deaf, str(tmp_path)], tmp_path, 0.2)


def test_a_probe_acts_in_nobodys_name() -> None:
    command = probe_command(Path("run.yaml"), ["train.seed=1"], SFT, Path("/runs/x"))
    sets = [value for flag, value in itertools.pairwise(command) if flag == "--set"]
    assert sets[0] == "train.seed=1" and "train.max_steps=8" in sets
    assert {"notify.command=[]", "train.report_to=[]", "limits.admission=off"} <= set(sets)
    assert "--force-overfit" in command


def test_the_pace_of_steps_that_nobody_saw_is_told_by_their_events(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    assert pace_told(paths) is None
    # two attempts; between the two lies a restart, which no step takes
    times = [(1, 1, 10.0), (1, 2, 14.0), (2, 2, 100.0), (2, 3, 100.5), (2, 4, 101.5)]
    events = [Event(at, "trainer", "progress", attempt, step) for attempt, step, at in times]
    paths.events.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events[:1]))
    assert pace_told(paths) is None
    paths.events.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    assert pace_told(paths) == 0.75
