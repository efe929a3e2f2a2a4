"""The run-directory contract: events, manifests and locks as both sides rely on them."""

from __future__ import annotations

import fcntl
import json
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.protocol.events import EventLog, EventReader, last_event, read_events
from supervisor.protocol.lock import FileLock, LockHeldError, lock_holder
from supervisor.protocol.manifest import FORMAT_VERSION, Manifest, digest_tree, verify_checkpoint, write_manifest
from supervisor.state import RunState, write_state
from supervisor.view.follow import Follower

LINES = 60_000


# proves SUP-13: an event that fits in part is a full disk, whatever the reason that it is full
def test_a_short_write_is_a_full_disk(tmp_path: Path) -> None:
    program = (
        "import resource, sys; from pathlib import Path; from supervisor.protocol.events import EventLog\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))\n"
        "log = EventLog(Path(sys.argv[1]), 'trainer')\n"
        "log.append('short')\n"
        "try: log.append('long', 'x' * 1000)\n"
        "except OSError as error: print(error.errno, error.filename)\n"
    )
    path = tmp_path / "events.jsonl"
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == f"28 {path}\n"
    assert path.stat().st_size == 300
    EventLog(path, "supervisor").append("next")
    assert [event.kind for event in read_events(path)] == ["short", "next"]


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with some megabytes of events: one evaluation early on, then progress only."""
    place = tmp_path_factory.mktemp("long")
    write_state(place / "state.json", RunState(id="r", kind="sft", max_attempts=5, attempt=1))
    with open(place / "events.jsonl", "w") as file:
        for step in range(LINES):
            kind, data = ("evaluation", {"eval_loss": 2.5}) if step == 7 else ("progress", {"loss": 1.0, "epoch": step})
            event = {"time": 1.0, "source": "trainer", "kind": kind, "attempt": 1, "step": step, "data": data}
            file.write(f"{json.dumps(event)}\n")
    return place


def peak_bytes(action: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# proves SUP-19: a long run costs no more memory than a short one
def test_a_long_log_is_read_in_pieces(long_log: Path) -> None:
    path = long_log / "events.jsonl"
    size = path.stat().st_size
    steps = []

    def read() -> None:
        for event in read_events(path):
            if event.step is not None and event.step % 1000 == 0:
                steps.append(event.step)

    assert peak_bytes(read) < size / 2
    assert steps == list(range(0, LINES, 1000))


# proves SUP-19: a first look reads the end of the log, and still knows the last evaluation
def test_a_first_look_reads_the_end(long_log: Path) -> None:
    follower = Follower(long_log)
    views = []
    assert peak_bytes(lambda: views.append(follower.update())) < (long_log / "events.jsonl").stat().st_size
    (view,) = views
    assert 100 < len(view.new_events) < LINES / 5
    assert view.progress["epoch"] == LINES - 1
    assert view.losses[-1] == (LINES - 1, 1.0)
    assert view.eval_loss == (7, 2.5)
    EventLog(long_log / "events.jsonl", "trainer", 1).append("evaluation", step=LINES, eval_loss=2.0)
    view = follower.update()
    assert [event.kind for event in view.new_events] == ["evaluation"]
    assert view.eval_loss == (LINES, 2.0)


def test_readers_of_a_growing_log(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reader = EventReader(path)
    assert list(reader.new()) == [] and last_event(path, "a") is None
    log = EventLog(path, "trainer")
    log.append("a", step=1)
    log.append("b", '"a" is only mentioned', note="a")
    with open(path, "ab") as file:
        file.write(b'{"time": 3.0, "source": "trainer", "ki')
    assert [event.kind for event in reader.new()] == ["a", "b"]
    with open(path, "ab") as file:
        file.write(b'nd": "c", "message": "' + b"x" * (3 << 20) + b'"}\nnot json\n')
    assert [(event.kind, len(event.message)) for event in reader.new()] == [("c", 3 << 20)]
    assert [event.kind for event in EventReader.of_tail(path).new()] == []
    found = last_event(path, "a")
    assert found is not None and found.step == 1
    assert last_event(path, "d") is None


TENSORS = {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}


# proves SUP-14: whatever stands in a file, the verdict is a fault, never an exception
@pytest.mark.parametrize(
    "header",
    [
        b"[]", b"3", b"null", b'{"a": {}}', b'{"a": {"data_offsets": 4}}', b'{"a": {"data_offsets": [4]}}',
        b'{"a": {"data_offsets": [0, "4"]}}', b'{"a": {"data_offsets": [0, null]}}', b'{"a": {"data_offsets": [8, 4]}}',
        b'{"a": {"data_offsets": [-4, 4]}}', b'{"a": {"data_offsets": [0, 5]}}', b'{"a": []}',
        b"\xff\xfe", b"{", b"[" * 100_000,
    ],
)  # fmt: skip
def test_safetensors_headers(tmp_path: Path, header: bytes) -> None:
    place = checkpoint(tmp_path, header)
    (fault,) = verify_checkpoint(place)
    assert fault.file == "x.safetensors" and "safetensors" in fault.problem


def test_a_good_safetensors_header(tmp_path: Path) -> None:
    assert verify_checkpoint(checkpoint(tmp_path, json.dumps({"__metadata__": {"x": "y"}, **TENSORS}).encode())) == []


def checkpoint(tmp_path: Path, header: bytes) -> Path:
    place = tmp_path / "step-00000001"
    place.mkdir()
    (place / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0\0\0")
    manifest = Manifest(FORMAT_VERSION, 1, 1, 1, 1, 1.0, 1, 1, 0.0, True, digest_tree(place), {}, {})
    write_manifest(place, manifest)
    return place


# proves SUP-9: somebody who only looks does not keep a run from starting
def test_a_probe_does_not_pass_for_an_owner(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    for text in ("", "4194305\n"):  # nobody's name, or that of somebody who is gone (beyond pid_max)
        path.write_text(text)
        with open(path) as probe:
            fcntl.flock(probe, fcntl.LOCK_SH)
            ending = threading.Timer(0.05, lambda file=probe: fcntl.flock(file, fcntl.LOCK_UN))
            ending.start()
            with FileLock(path):
                assert lock_holder(path) is not None
            ending.join()
    assert lock_holder(path) is None


def test_a_living_owner_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    program = (
        "import sys, pathlib; from supervisor.protocol.lock import FileLock\n"
        "with FileLock(pathlib.Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    owner.stdout.readline()
    with pytest.raises(LockHeldError) as held:
        FileLock(path).acquire()
    assert held.value.owner == owner.pid == lock_holder(path)
    owner.communicate("")
    with FileLock(path):
        pass


# a lock that stays held by somebody unnamed is held
def test_a_lock_held_for_long(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    path.touch()
    with open(path) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        before = time.monotonic()
        with pytest.raises(LockHeldError):
            FileLock(path).acquire()
        assert time.monotonic() - before >= 0.2
