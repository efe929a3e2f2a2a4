"""The pages about runs."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from troubled_run import make_troubled_run

from supervisor.problems import InputError
from supervisor.protocol.events import Event, EventLog
from supervisor.protocol.paths import RunPaths
from supervisor.report import REPORT_NAME, Summaries, index_page, run_directories, run_page, write_report
from supervisor.report.history import KEPT_POINTS, Curve, Point, fold
from supervisor.state import Outcome, RunState, write_state


class Reader(HTMLParser):
    """What a browser would make of a page: its elements, attributes and text."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._style = False
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes += attrs
        self._style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._style = False

    def handle_data(self, data: str) -> None:
        if not self._style:
            self.text += data


# proves SUP-19: the page of a run shows how it went, what each attempt died of and what was changed
def test_a_run_with_trouble_is_told_in_whole(tmp_path: Path) -> None:
    read = Reader(run_page(make_troubled_run(tmp_path / "run-1")))
    for heading in ("Loss (nats per token)", "Learning rate", "Gradient norm", "Memory of the trainer (GiB)"):
        assert heading in read.text
    assert "there is 16.0 GiB" in read.text and "predicted peak 13.0 GiB" in read.text
    assert "cuda_oom (98% sure): " in read.text and "hang (90% sure): " in read.text
    assert "Tried to allocate 1.20 GiB" in read.text  # the evidence
    assert "halve_micro_batch" in read.text and "steps take a little longer" in read.text
    assert "full in 3 h 10 m" in read.text and "Room on /data (GiB)" in read.text
    assert "evaluation loss1.3147 ± 0.0210 at step 120" in read.text
    assert read.text.count("attempt 2") >= 3  # its row in the timeline, its marks in the charts


# proves SUP-19: log lines and messages are untrusted; secrets stay out of pages; a page needs no network
def test_a_page_is_harmless_and_keeps_secrets(tmp_path: Path) -> None:
    page = run_page(make_troubled_run(tmp_path / "run-1"))
    read = Reader(page)
    assert "script" not in read.names and "alert(1)" in read.text
    assert not [name for name, _ in read.attributes if name in ("src", "href") or name.startswith("on")]
    assert b"hf_abcdefghijklmnopqrst" not in page and b"pw1234567" not in page
    assert b"\x1b" not in page and "\u202e" not in page.decode()
    assert b"default-src 'none'" in page
    assert not re.search(rb"""(?:url\(|@import|src=|href=)""", page)


# proves SUP-19: a job that samples shows its own figures
def test_a_sampling_job_shows_samples_and_tasks(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "rft")
    paths.root.mkdir()
    done = RunState(id="rft", kind="rft", outcome=Outcome.COMPLETED, attempt=1, max_attempts=5, step=30)
    write_state(paths.state, done)
    EventLog(paths.events, "supervisor", 1).append("attempt_started", "attempt 1 starts", step=0)
    log = EventLog(paths.events, "trainer", 1)
    log.append("plan", tasks=40, planned_steps=320)
    for step in (10, 20, 30):
        log.append(
            "progress", f"{step} samples judged", step=step, accepted=step // 2, distinct=step // 3,
            tasks_done=step // 10, accepted_per_second=1.5, samples_per_second=3.0, tokens_seen=step * 100,
        )  # fmt: skip
    read = Reader(run_page(paths))
    for caption in ("Samples", "Samples per second", "Tasks done", "Tokens sampled"):
        assert caption in read.text
    assert "40 tasks" in read.text and "30 samples judged" in read.text
    assert "Loss" not in read.text


def test_steps_done_again_count_once_and_memory_keeps_both(tmp_path: Path) -> None:
    def progress(step: int, attempt: int, loss: float) -> Event:
        data = {"loss": loss, "memory_bytes": 5}
        return Event(float(step + 100 * attempt), "trainer", "progress", attempt, step, "", data)

    history = fold([progress(1, 1, 3.0), progress(2, 1, 2.0), progress(3, 1, 1.0), progress(2, 2, 2.5)])
    assert [(point.step, point.value) for point in history.curve("loss")] == [(1, 3.0), (2, 2.5)]
    assert len(history.memory.points) == 4


# proves SUP-19: however long the log, a page stays small, and no extreme is lost
def test_long_curves_are_thinned_without_losing_extremes() -> None:
    curve = Curve(counting=True)
    for step in range(100_000):
        curve.add(Point(step, float(step), 99.0 if step == 51_234 else -99.0 if step == 70_001 else 1.0))
    assert len(curve.points) <= KEPT_POINTS
    values = [point.value for point in curve.points]
    assert max(values) == 99.0 and min(values) == -99.0
    assert [point.step for point in curve.points] == sorted(point.step or 0 for point in curve.points)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=8), below, max_size=3),
    max_leaves=6,
)
_keys = st.sampled_from(
    ["loss", "eval_loss", "memory_bytes", "evidence", "confidence", "failure", "room_bytes", "tasks", "rung", "verdict"]
)
_kinds = st.sampled_from(
    ["progress", "evaluation", "failure", "relief", "attempt_started", "attempt_ended", "corpus", "plan", "admission",
     "gate", "disk_forecast", "memory", "anything"]
)  # fmt: skip
_events = st.builds(
    lambda kind, attempt, step, at, message, data: {
        "time": at, "source": "trainer", "kind": kind, "attempt": attempt, "step": step, "message": message,
        "data": data,
    },
    _kinds, st.integers(-1, 3), st.none() | st.integers(-5, 10**18), st.floats(-1e18, 1e18), st.text(max_size=30),
    st.dictionaries(_keys | st.text(max_size=5), _json, max_size=4),
)  # fmt: skip


# proves SUP-19: whatever a trainer writes into its log, there is a page
@settings(
    max_examples=30, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(_events, max_size=12))
def test_any_log_has_a_page(tmp_path: Path, events: list[dict[str, object]]) -> None:
    paths = RunPaths(tmp_path)
    write_state(paths.state, RunState(id="any", kind="sft", max_attempts=1))
    paths.events.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    assert run_page(paths).startswith(b"<!doctype html>")


def test_no_run_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run"):
        run_page(RunPaths(tmp_path))
    (tmp_path / "state.json").write_text('{"id": 5')
    with pytest.raises(InputError, match=r"state\.json cannot be read"):
        run_page(RunPaths(tmp_path))


def test_the_report_is_written_into_the_run(tmp_path: Path) -> None:
    paths = make_troubled_run(tmp_path / "run-1")
    assert write_report(paths.root) == paths.root / REPORT_NAME
    assert (paths.root / REPORT_NAME).read_bytes().startswith(b"<!doctype html>")


# proves SUP-19: the index lists every run, the running ones first, and links to their pages
def test_the_index_lists_runs(tmp_path: Path) -> None:
    make_troubled_run(tmp_path / "old one")
    make_troubled_run(tmp_path / "going", outcome=Outcome.RUNNING)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "state.json").write_text("{}")
    (tmp_path / "no run").mkdir()
    read = Reader(index_page(run_directories(tmp_path)))
    assert "3 runs: " in read.text and "1 damaged" in read.text and "1 unattended" in read.text
    assert read.text.index("going") < read.text.index("old one")
    assert ("href", "old%20one/report.html") in read.attributes
    assert "1.1000" in read.text and "hf_abc" not in read.text
    assert "There are no runs yet." in Reader(index_page([])).text


# proves SUP-19: a long history costs state files only, and those of ended runs only once
def test_a_thousand_runs(tmp_path: Path) -> None:
    for number in range(1000):
        paths = RunPaths(tmp_path / f"run-{number:04d}")
        paths.root.mkdir()
        state = RunState(id=paths.root.name, kind="sft", outcome=Outcome.COMPLETED, max_attempts=5, started=number)
        paths.state.write_bytes(json.dumps({"id": state.id, "kind": "sft", "outcome": "completed", "max_attempts": 5,
                                            "started": number}).encode())  # fmt: skip
        paths.events.mkdir()  # reading it would fail
    summaries = Summaries()
    found = summaries.of(run_directories(tmp_path))
    assert len(found) == 1000
    for run in found[:10]:
        run.directory.joinpath("state.json").touch()
    again = summaries.of(run_directories(tmp_path))
    assert [before is after for before, after in zip(found, again, strict=True)] == [False] * 10 + [True] * 990
    assert index_page(found).count(b"<tr>") == 1001
