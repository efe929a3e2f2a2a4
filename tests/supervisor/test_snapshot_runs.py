"""proves SUP-11 with whole runs of the scripted trainer: what died in its memory goes on."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

from scripted_runs import alive, events, final_adapter, run, start_supervisor, state, wait_for
from snapshotting import checkpoints, mounted, snapshotting

from supervisor.protocol.heartbeat import read_heartbeat
from supervisor.protocol.paths import RunPaths
from supervisor.protocol.snapshot import read_seal
from supervisor.state import Outcome
from supervisor.supervise import RunRequest, supervise
from supervisor.yaml_source import render_yaml


# proves SUP-15: what lies about in memory or under the name of the link does not cost a completed run its outcome
def test_what_cannot_be_cleaned_up_costs_no_completed_run(tmp_path: Path, memory: Path) -> None:
    place = tmp_path / "r"
    gate = tmp_path / "gate"
    stopped = {"at": 4, "do": "fail", "kind": "data_error", "attempt": 1}
    waits = {"at": 9, "do": "wait_for_file", "file": str(gate)}
    assert run(snapshotting(memory, stopped, waits), place) is Outcome.GAVE_UP
    (place / "final").mkdir()
    with ExitStack() as stack:

        def make_it_busy() -> None:
            for home in memory.glob("mens-sup-*"):
                if not (home / "busy").exists():
                    stack.enter_context(mounted(home / "busy"))
                    gate.touch()

        assert supervise(RunRequest(None, place), make_it_busy) is Outcome.COMPLETED
    found = state(place)
    assert found.outcome is Outcome.COMPLETED
    assert f"The adapter is in {RunPaths(place).checkpoint(12)}; " in found.explanation
    assert [path.name for path in place.glob(".staging*")] == []
    assert "cannot be removed" in events(place, "warning")[-1].message


def starts(run_dir: Path) -> list[int | None]:
    return [event.step for event in events(run_dir, "attempt_started")]


# proves SUP-11: no checkpoint was due yet, and not one finished step is lost
def test_a_killed_trainer_loses_no_finished_step(tmp_path: Path, memory: Path, undisturbed: bytes) -> None:
    faults = [{"at": at, "do": "kill9", "attempt": number} for number, at in enumerate((5, 8, 9), 1)]
    place = tmp_path / "r"
    loaded = snapshotting(memory, *faults, limits={"max_attempts": 4})
    assert run(loaded, place) is Outcome.COMPLETED
    assert starts(place) == [0, 4, 7, 8]
    assert final_adapter(place) == undisturbed
    assert list(memory.iterdir()) == []
    kept = [info.name for info in (place / "checkpoints").iterdir()]
    assert kept == ["step-00000012"], "interim ones last only as long as they are the newest"


def test_off_means_off(tmp_path: Path, memory: Path) -> None:
    place = tmp_path / "r"
    loaded = snapshotting(memory, {"at": 5, "do": "kill9", "attempt": 1}, checkpoint={"snapshot": "off"})
    assert run(loaded, place) is Outcome.COMPLETED
    assert starts(place) == [0, 0]


def test_a_place_that_is_not_there_is_said_and_trained_without(tmp_path: Path) -> None:
    place = tmp_path / "r"
    assert run(snapshotting(tmp_path / "absent"), place) is Outcome.COMPLETED
    (warning,) = events(place, "warning")
    assert "A crash costs up to 100 steps" in warning.message


# proves SUP-11: a run that is given up keeps what was done
def test_the_work_before_a_data_error_is_saved(tmp_path: Path, memory: Path) -> None:
    place = tmp_path / "r"
    fault = {"at": 8, "do": "fail", "kind": "data_error", "attempt": 1}
    assert run(snapshotting(memory, fault), place) is Outcome.GAVE_UP
    assert checkpoints(place) == ["step-00000007"]
    assert list(memory.iterdir()) == []
    assert run(None, place) is Outcome.COMPLETED
    assert starts(place) == [0, 7]


# proves SUP-10, SUP-11: SIGKILL of both at once, and a flush that was killed half-way
def test_a_snapshot_outlives_both(tmp_path: Path, memory: Path, undisturbed: bytes) -> None:
    place, gate = tmp_path / "r", tmp_path / "gate"
    fault = {"at": 8, "do": "wait_for_file", "file": str(gate), "attempt": 1}
    file = tmp_path / "job.yaml"
    file.write_text(render_yaml(snapshotting(memory, fault).document))
    supervisor = start_supervisor(file, place)
    paths = RunPaths(place)

    def waiting() -> int | None:
        beat = read_heartbeat(paths.attempt(1).heartbeat) if paths.attempt(1).heartbeat.exists() else None
        sealed = [read_seal(slot) for slot in memory.glob("*/b")]  # the slot of odd steps
        return beat.pid if beat is not None and [found.manifest.step for found in sealed if found] == [7] else None

    pid = wait_for(waiting)
    supervisor.kill()
    supervisor.wait()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid))
    half = paths.checkpoints() / ".staging-step-00000007-1"
    half.mkdir()
    (half / "adapter.bin").write_bytes(b"half")
    assert run(None, place) is Outcome.COMPLETED
    assert starts(place) == [0, 7]
    assert final_adapter(place) == undisturbed
    assert not half.exists() and list(memory.iterdir()) == []


# proves SUP-14: what kills its loader is distrusted also when it came from a snapshot, and does not come back
def test_a_distrusted_state_does_not_come_back(tmp_path: Path, memory: Path, undisturbed: bytes) -> None:
    place = tmp_path / "r"
    faults = [{"at": 6, "do": "kill9", "attempt": 1}, {"at": 0, "do": "segfault", "resumed_from": 5}]
    loaded = snapshotting(memory, *faults, save_steps=3, limits={"max_attempts": 4})
    assert run(loaded, place) is Outcome.COMPLETED
    assert starts(place) == [0, 5, 5, 3]
    assert [path.name for path in RunPaths(place).quarantine().iterdir()] == ["step-00000005"]
    assert final_adapter(place) == undisturbed


# proves SUP-4: another model is a new run from step 0; what the old one had learnt is kept
def test_another_model_does_not_start_from_the_old_ones_snapshot(tmp_path: Path, memory: Path) -> None:
    place = tmp_path / "r"
    fault = {"at": 6, "do": "oom", "limit": 1, "attempt": 1}
    loaded = snapshotting(memory, fault, relief={"ladder": ["switch_model"]})
    assert run(loaded, place) is Outcome.COMPLETED
    assert starts(place) == [0, 0]
    assert checkpoints(place) == ["step-00000005"]
    assert state(place).lineage == 2
