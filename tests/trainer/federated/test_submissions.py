"""What `federate serve` does about a coordinator that always fails, and about files that it cannot serve."""

from pathlib import Path

import msgspec
import pytest

from supervisor.problems import InputError
from trainer.federated.config import AggregationSection, FederationSections
from trainer.federated.coordinator import State, begin
from trainer.federated.identity import COORDINATOR, DELTA_PUBLIC, init
from trainer.federated.packed import Layer, Layout
from trainer.federated.serve import _rank_problem, serve
from trainer.federated.submissions import FAILURES, IN_VAIN, Submissions

LAYOUT = Layout(2, (Layer("one", 12, 16),))


@pytest.fixture
def state(tmp_path: Path) -> State:
    return begin(tmp_path / "standing", "lan", LAYOUT, seed=1)


# proves FED-1 (no endless loop: what always fails is not submitted for ever, and serve says why)
def test_a_coordinator_that_always_fails_is_given_up(state: State) -> None:
    submissions = Submissions()
    said = [submissions.why_not(state, "ValueError: no keys" if number else "") for number in range(FAILURES + 1)]
    assert said[:-1] == [None] * FAILURES
    assert said[-1] == f"the rounds have failed {FAILURES} times and nothing came of them: ValueError: no keys"


# proves FED-1 (one that is killed again and again, or never begins, isn't either; one that gets on is never given up)
def test_only_submissions_in_vain_are_counted(state: State) -> None:
    submissions = Submissions()
    assert [submissions.why_not(None, "") for _ in range(IN_VAIN)] == [None] * IN_VAIN
    assert f"submitted {IN_VAIN} times" in str(submissions.why_not(None, ""))
    submissions = Submissions()
    for number in range(3 * IN_VAIN):
        assert submissions.why_not(msgspec.structs.replace(state, waited=number), "WireError: silent") is None


# proves FED-1 (what would fail at the first round is said before anything is started)
def test_a_node_without_keys_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("model: {base: 'random:1x64'}\n")
    file = init(tmp_path / "lan", "lan", "127.0.0.1", 9443, ["node1", "node2"], "../train.yaml")
    (tmp_path / "lan" / COORDINATOR / "node2" / DELTA_PUBLIC).unlink()
    with pytest.raises(InputError, match=r"nodes names node2, and .* has no keys of it"):
        serve(file, 18443, pytest.fail)


def test_a_rank_that_a_layer_does_not_have_is_refused() -> None:
    sections = FederationSections.model_validate(
        {"name": "lan", "host": "h", "nodes": ["node1"], "train": "t.yaml"}
    )
    wide = Layout(13, LAYOUT.layers)
    assert _rank_problem(LAYOUT, sections) is None
    assert str(_rank_problem(wide, sections)).startswith("model.lora.r is 13, and one is only 12 x 16.")
    exact = sections.model_copy(update={"aggregation": AggregationSection(mode="exact")})
    assert _rank_problem(wide, exact) is None
