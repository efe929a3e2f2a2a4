"""An evaluation that a sequential gate ends as soon as it knows the answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from evaluated import ToyModel, evaluated, write_bench, write_gate

from evalsuite.gate_command import run_gate
from evalsuite.gate_result import GateVerdict
from evalsuite.scores import read_scores
from evalsuite.statistics.sequential import order_of
from trainer.errors import ConfigurationError, StopRequestedError

TASKS = 240


def prepared(folder: Path, **changed: object) -> tuple[Path, Path]:
    """A bench of which the base was asked, and a gate that waits for ``candidate``."""
    bench = write_bench(folder, TASKS)
    evaluated(bench, folder / "base", ToyModel())
    return bench, write_gate(folder, checks=[{"margin": 0.1}], **{"sequential": {"batch": 8}, **changed})


# proves EVL-2: sampling ends when the gate knows, the gate says the same, and the tasks were asked in its order
@pytest.mark.parametrize(("drop", "expected"), [(0.0, GateVerdict.PASS), (0.4, GateVerdict.FAIL)])
def test_sampling_ends_when_the_answer_is_known(tmp_path: Path, drop: float, expected: GateVerdict) -> None:
    bench, gate = prepared(tmp_path)
    model = ToyModel("a1", drop=drop)
    evaluated(bench, tmp_path / "candidate", model, until=str(gate), seed=8)
    scores = read_scores(tmp_path / "candidate")
    assert not scores.whole and 8 <= len(scores.tasks) < 0.6 * TASKS
    assert len(model.asked) < 0.65 * TASKS * 4
    order = order_of([f"sums/{at}" for at in range(TASKS)], 0)
    assert {task.task for task in scores.tasks} >= set(order[: len(scores.tasks) - 4])
    result = run_gate(gate)
    assert result.verdict is expected and result.known and result.checks[0].asked < TASKS, result.reasons
    again = ToyModel("a1", drop=drop)
    evaluated(bench, tmp_path / "candidate", again, until=str(gate), seed=8)
    assert not again.asked, "what is known is not asked again"


# proves EVL-2: a gate that could never judge says so before a sample is drawn
@pytest.mark.parametrize(
    ("changed", "model", "reason"),
    [
        ({"base": "nowhere"}, ToyModel("a1"), "nothing was evaluated there"),
        ({}, ToyModel("a1", effect=0.0), "the adapter was not applied"),
        ({}, ToyModel(), "it is the base itself"),
        ({"sequential": None}, ToyModel("a1"), "no section sequential"),
        ({"candidate": "elsewhere"}, ToyModel("a1"), "no bench has"),
        ({"checks": [{"margin": 0.1, "metric": "right_tool"}]}, ToyModel("a1"), "is no metric"),
    ],
)
def test_what_cannot_be_judged_is_not_sampled(
    tmp_path: Path, changed: dict[str, object], model: ToyModel, reason: str
) -> None:
    bench = write_bench(tmp_path, 40)
    evaluated(bench, tmp_path / "base", ToyModel())
    gate = write_gate(tmp_path, **{"sequential": {"batch": 8}, **changed})
    with pytest.raises(ConfigurationError, match=reason):
        evaluated(bench, tmp_path / "candidate", model, until=str(gate))
    assert len(model.asked) == 0 or "metric" in reason


# proves EVL-2: a bench that is used up without an answer is inconclusive, and whole
def test_a_bench_may_be_too_small(tmp_path: Path) -> None:
    bench = write_bench(tmp_path, 24)
    evaluated(bench, tmp_path / "base", ToyModel())
    gate = write_gate(tmp_path, checks=[{"margin": 0.02}], sequential={"batch": 8})
    evaluated(bench, tmp_path / "candidate", ToyModel("a1"), until=str(gate), seed=8)
    assert read_scores(tmp_path / "candidate").whole
    result = run_gate(gate)
    assert result.verdict is GateVerdict.INCONCLUSIVE and result.known and "tasks of this kind" in result.reasons[0]


# proves EVL-2: stopped between two looks, it goes on to the same answer
def test_a_stopped_sequential_evaluation_goes_on(tmp_path: Path) -> None:
    bench, gate = prepared(tmp_path)

    class Stopping(ToyModel):
        def wait(self, seconds: float):  # type: ignore[no-untyped-def]
            if len(self.asked) >= 60:
                raise StopRequestedError("asked to stop")
            return super().wait(seconds)

    with pytest.raises(StopRequestedError):
        evaluated(bench, tmp_path / "candidate", Stopping("a1"), until=str(gate), seed=8)
    evaluated(bench, tmp_path / "candidate", ToyModel("a1"), until=str(gate), seed=8)
    assert run_gate(gate).verdict is GateVerdict.PASS
