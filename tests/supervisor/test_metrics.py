"""Metrics for Prometheus."""

from __future__ import annotations

import re
from pathlib import Path

from troubled_run import make_troubled_run

from supervisor.metrics import DaemonFigures, MetricsSource, metrics_text, write_textfile
from supervisor.report import Summaries, run_directories
from supervisor.state import Outcome, read_state, write_state
from supervisor.view.follow import Follower

_LINE = re.compile(
    r"[a-zA-Z_:][a-zA-Z0-9_:]*"
    r'(?:\{[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"(?:,[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*")*\})?'
    r" (?:-?[0-9.]+(?:e[+-]?[0-9]+)?|NaN)"
)
"""A sample in Prometheus' text format."""


def samples(text: str) -> dict[str, float]:
    """Every sample by name and labels; fails on a line that is neither a sample nor a comment, or that comes twice."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("# "):
            assert _LINE.fullmatch(line), line
            name, _, value = line.rpartition(" ")
            assert name not in found
            found[name] = float(value)
    return found


# proves SUP-19: metrics of running runs in Prometheus' format, ended ones as counts
def test_running_runs_have_figures_and_ended_ones_are_counted(tmp_path: Path) -> None:
    make_troubled_run(tmp_path / "ended")
    going = make_troubled_run(tmp_path / "going", outcome=Outcome.RUNNING)
    runs = Summaries().of(run_directories(tmp_path))
    view = Follower(going.root).update()
    text = metrics_text(runs, [view], DaemonFigures({"waiting": 2}, 5.0, 0.2, {"cpu": True}, "1"))
    found = samples(text)
    assert found['mens_sup_runs{outcome="completed"}'] == 1
    assert found['mens_sup_runs{outcome="gave_up"}'] == 0
    assert found["mens_sup_runs_unattended"] == 1
    assert found['mens_sup_run_step{run="going",kind="sft"}'] == 120
    assert found['mens_sup_run_disk_full_seconds{run="going",kind="sft",mount="/data"}'] == 11400
    assert found['mens_sup_gpu_temperature_celsius{run="going",kind="sft",gpu="0"}'] == 71
    assert found['mens_sup_queue_entries{state="waiting"}'] == 2
    assert not any('run="ended"' in name for name in found)
    assert not any("run_silent_seconds" in name for name in found)  # unknown without a trainer, and not 0
    assert text.count("# TYPE mens_sup_run_loss gauge") == 1
    assert samples(MetricsSource(tmp_path).text()).keys() == samples(metrics_text(runs, [view])).keys()


def test_names_are_quoted_and_a_name_twice_spoils_nothing(tmp_path: Path) -> None:
    going = make_troubled_run(tmp_path / "a", outcome=Outcome.RUNNING)
    state = read_state(going.state)
    assert state is not None
    state.id = 'x"\\\n{}\x1b[31m'
    write_state(going.state, state)
    view = Follower(going.root).update()
    found = samples(metrics_text([], [view, view]))
    assert 'mens_sup_run_step{run="x\\"\\\\ {}",kind="sft"}' in found
    assert samples(metrics_text([]))["mens_sup_runs_unattended"] == 0


def test_the_textfile_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "mens_sup.prom"
    write_textfile(path, "a 1\n")
    before = path.stat().st_ino
    write_textfile(path, "a 2\n")
    assert path.read_text() == "a 2\n" and path.stat().st_ino != before
    assert [each.name for each in tmp_path.iterdir()] == ["mens_sup.prom"]
