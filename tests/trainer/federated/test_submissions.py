"""What `federate serve` and `status` say, about a coordinator that always fails and about nodes that stay away."""

import json
from pathlib import Path

import msgspec
import pytest

from supervisor.cli import main
from supervisor.problems import InputError
from trainer.federated.config import AggregationSection, FederationSections
from trainer.federated.coordinator import FAILURE_FILE, STANDING, Record, State, begin, write_state
from trainer.federated.identity import COORDINATOR, DELTA_PUBLIC, init
from trainer.federated.packed import Layer, Layout
from trainer.federated.serve import _rank_problem, _taken_failure, serve
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


# proves FED-1 (serve says what the coordinator's process died of, once, and as text)
def test_what_a_coordinator_died_of_is_said_once(tmp_path: Path) -> None:
    assert _taken_failure(tmp_path) == ""
    (tmp_path / COORDINATOR / STANDING).mkdir(parents=True)
    (tmp_path / COORDINATOR / STANDING / FAILURE_FILE).write_text("ValueError: no\x1b[2J\nkeys")
    assert _taken_failure(tmp_path) == "ValueError: no [2J keys"
    assert _taken_failure(tmp_path) == ""


# proves FED-1 (status counts the rounds in which something counted, and says who is missing and why)
def test_status_says_who_is_missing(tmp_path: Path, state: State, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.yaml").write_text("model: {base: 'random:1x64'}\n")
    (tmp_path / "lan.yaml").write_text("name: lan\nhost: h\nnodes: [node1, node2]\ntrain: t.yaml\n")
    records = (
        Record(0, 9.0, {"node1": 100}, {}, {}, ("node2",), 0.0, 0.0, None),
        Record(1, 9.0, {}, {}, {"node1": "its bytes are not those that were signed"}, (), 0.0, 0.0, None),
    )
    waiting = {"node1": "is not connected", "node2": "was asked and has not answered"}
    (tmp_path / COORDINATOR / STANDING).mkdir(parents=True)
    write_state(
        tmp_path / COORDINATOR / STANDING,
        msgspec.structs.replace(state, round=2, records=records, waited=3, waiting=waiting),
    )
    assert main(["federate", "status", str(tmp_path / "lan.yaml")]) == 0
    said = capsys.readouterr().out
    assert "lan: 1 of 20 rounds are done" in said and "silent or lost: node2" in said
    assert "round 2 has no delta yet, 3 x its deadline has passed: node1 is not connected; node2 was asked" in said
    assert main(["federate", "status", str(tmp_path / "lan.yaml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["waiting"] == waiting
