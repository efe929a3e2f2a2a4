"""Parts of a running federation of three real nodes are killed in the middle of rounds, one after the other."""

import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_federation import RealFederation, eventually, kill, need_flower  # type: ignore[import-not-found]

from supervisor.yaml_source import read_yaml, render_yaml
from trainer.federated.coordinator import State

DEADLINE = 100
LONGER = 10.0
"""Seconds after its deadline at which a round has ended: two calls that are under way (TimedWire), and a poll."""
STOPPED_SECONDS = 90.0


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[RealFederation]:
    need_flower()
    rounds = f"{{count: 1000, train_seconds: 5, deadline_seconds: {DEADLINE}, late_rounds: 1, warmup_steps: 2}}"
    made = RealFederation.make(tmp_path, 3, rounds)
    yield made
    made.clean()


# proves FED-1 (whatever is killed, the run finishes, no round waits longer than its deadline, who returns catches up,
# nothing counts twice, no process is left)
@pytest.mark.slow
@pytest.mark.flower
def test_everything_is_killed_once_and_the_run_finishes(federation: RealFederation) -> None:
    fed = federation
    nodes = ["node1", "node2", "node3"]
    fed.serve()
    for node in nodes:
        fed.join(node)

    number = fed.await_middle("node1", "node2")
    for pid in fed.trainers("node1"):
        kill(pid, signal.SIGKILL)
    kill(fed.supernode("node2"), signal.SIGKILL)
    _said("trainer of node1 and SuperNode of node2 killed", number)
    fed.await_end_of(number)

    number = fed.await_middle("node3")
    coordinator = fed.coordinator()
    kill(coordinator, signal.SIGKILL)
    _said("coordinator killed", number)
    eventually("another coordinator", lambda: fed.coordinator() != coordinator)
    assert fed.now() == number  # begun anew, not skipped
    fed.await_end_of(number)

    number = fed.await_middle("node1")
    link = fed.superlink()
    kill(link, signal.SIGKILL)
    _said("SuperLink killed", number)
    eventually("another SuperLink", lambda: _another(fed, link))
    fed.await_end_of(number)

    number = fed.await_middle("node3")
    fed.signal_box("node3", signal.SIGSTOP)
    _said("node3 stopped", number)
    time.sleep(STOPPED_SECONDS)
    fed.signal_box("node3", signal.SIGCONT)
    _said("node3 goes on", fed.now())
    fed.await_end_of(number)

    number = fed.await_middle("node1")
    fed.running["serve"].kill()
    fed.running["serve"].wait()
    _said("serve killed", number)
    assert fed.left()  # what it has left is there, and is ended by the next one
    fed.serve()
    fed.await_end_of(number)

    whole = eventually("a round with all three", lambda: _with_all(fed.state(), number, nodes))
    _said("all three count again", whole)
    assert fed.stop("serve") == 1
    document, _ = read_yaml(fed.laid.file)
    rounds = document["rounds"]
    assert isinstance(rounds, dict)
    fed.laid.file.write_text(render_yaml({**document, "rounds": {**rounds, "count": fed.now() + 1}}))
    fed.serve()
    assert fed.running["serve"].wait(1800) == 0, (fed.root / "serve.log").read_text()[-2000:]
    assert (fed.root / "final/adapter_model.safetensors").is_file()
    for node in nodes:
        fed.stop(node)
    assert fed.left() == []

    state = fed.state()
    assert state is not None
    for record in state.records:
        what = f"{record.seconds:.1f} s, counted {dict(record.counted)}, late {dict(record.late)}, "
        _said(f"{what}refused {dict(record.refused)}, silent {record.missing}", record.round)
    assert [record.round for record in state.records] == list(range(state.round))
    assert all(record.seconds <= DEADLINE + LONGER for record in state.records)
    _counted_once(fed, state, nodes)


def _counted_once(fed: RealFederation, state: State, nodes: list[str]) -> None:
    """The ledger's tokens are those that the trainers say they have seen in those rounds, each trained once."""
    for node in nodes:
        told = fed.told_tokens(node)
        counted = [number for name, number in state.counted if name == node]
        assert all(len(told[number]) == 1 for number in counted), told
        assert sum(told[number][0] for number in counted) == sum(r.counted.get(node, 0) for r in state.records)
    deltas = Counter(node for node, _ in state.counted)
    assert set(deltas) == set(nodes)


def _another(fed: RealFederation, link: int) -> bool:
    try:
        return fed.superlink() != link
    except StopIteration:
        return False


def _with_all(state: State | None, after: int, nodes: list[str]) -> int | None:
    records = state.records if state is not None else ()
    return next((r.round for r in records if r.round > after and set(r.counted) == set(nodes)), None)


def _said(what: str, number: int) -> None:
    print(f"{time.strftime('%H:%M:%S')} round {number}: {what}", flush=True)
