"""GRPO groups from a store, and what is left out of them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rft.config import RftSections
from rft.groups import config_problem, parquet_schema, write_groups
from rft.samplers.sampler import Completion, Refused, SamplerIdentity, Sampling
from rft.store import Arrived, Judged, Origin, Store
from rft.tasks.task import Check, Task
from rft.verifiers.verdict import Isolation, Outcome, Verdict
from supervisor.problems import InputError
from trainer.data.messages import Message

IDENTITY = SamplerIdentity(
    "transformers", "toy", "m1", "runs/a/best", "a1", 0.3, "t1", "transformers 5", "cpu", "float32"
)
DRAWN = Sampling(1.0, 1.0, 0, 64)
RIGHT, WRONG, LATE, BROKEN = Outcome.ACCEPTED, Outcome.REJECTED, Outcome.TIMEOUT, Outcome.ERROR


def job(**changed: Any) -> RftSections:
    document: dict[str, Any] = {
        "tasks": {"sources": [{"name": "s", "type": "jsonl", "path": "x.jsonl"}]},
        "sampler": {"model": "toy"},
        "sampling": {"samples_per_task": 4},
        "budget": {"adaptive": False},
    }
    for section, values in changed.items():
        document[section] = {**document.get(section, {}), **values}
    return RftSections.model_validate(document)


def prompt_ids(task: Task) -> tuple[int, ...]:
    return tuple(task.messages[0].content.encode())


def stored(
    run_dir: Path, groups: Sequence[Sequence[Outcome | str | None]], origin: Origin | None = None, score: bool = False
) -> Store:
    """A run with one task per group; an outcome for each sample, ``refused``, or None while it is not judged."""
    run_dir.mkdir(exist_ok=True)
    store = Store.open(run_dir)
    with store.batch():
        number = store.origin_number(origin or Origin(IDENTITY, DRAWN))
        store.add_tasks(
            Task(f"s/{at}", "s", (Message("user", f"q{at}"),), Check("v", {}), gold="x") for at in range(len(groups))
        )
        for at, outcomes in enumerate(groups):
            for index, outcome in enumerate(outcomes):
                name, seed = f"s/{at}", 100 * at + index
                if outcome == "refused":
                    store.add([Arrived(at + 1, Refused(name, index, seed, "too long"))], number, 1)
                    continue
                text = f"answer {index}"
                ids = (*text.encode(), 2)
                finish = "length" if index == 3 else "stop"
                logprobs = tuple(-0.25 * (1 + place) for place in range(len(ids)))
                completion = Completion(name, index, seed, text, ids, logprobs, finish, 2, len(ids), 0.1)
                store.add([Arrived(at + 1, completion)], number, 1)
                if isinstance(outcome, Outcome):
                    verdict = Verdict(
                        outcome, "r", "v", "v1", Isolation.BUBBLEWRAP, score=0.1 * index if score else None
                    )
                    store.add_verdicts([Judged(at + 1, index, verdict, None)])
    return store


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# proves RFT-8
def test_a_rollout_has_all_that_an_off_policy_trainer_needs(tmp_path: Path) -> None:
    store = stored(tmp_path / "run", [[RIGHT, WRONG, WRONG, LATE]])
    out = tmp_path / "groups.jsonl"
    manifest = write_groups(store, job(groups={"advantage": "mean_only"}), prompt_ids, "t1", out)
    rows = rows_of(out)
    assert [row["advantage"] for row in rows] == [0.75, -0.25, -0.25, -0.25]
    assert rows[0] == {
        "group": "s/0", "index": 0, "source": "s", "prompt_ids": list(b"q0"),
        "completion_ids": [*b"answer 0", 2], "logprobs": [-0.25 * (1 + place) for place in range(9)],
        "completion": "answer 0", "reward": 1.0, "advantage": 0.75, "outcome": "accepted", "finish": "stop",
        "truncated": False, "seed": 0, "model": "toy", "model_digest": "m1", "adapter": "runs/a/best",
        "adapter_digest": "a1", "template_hash": "t1", "engine": "transformers 5", "dtype": "float32",
        "temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 64, "verifier": "v", "verifier_version": "v1",
        "isolation": "bubblewrap",
    }  # fmt: skip
    assert [row["truncated"] for row in rows] == [False, False, False, True] and rows[3]["finish"] == "length"
    assert (manifest["groups"], manifest["rollouts"], manifest["truncated_rollouts"]) == (1, 4, 1)
    assert json.loads((tmp_path / "groups.jsonl.manifest.json").read_text()) == json.loads(json.dumps(manifest))


# proves RFT-8
def test_groups_without_difference_are_left_out_and_counted_and_the_unscored_are_no_zeros(tmp_path: Path) -> None:
    store = stored(
        tmp_path / "run",
        [
            [RIGHT] * 4,
            [WRONG] * 4,
            [WRONG, LATE, WRONG, LATE],
            [RIGHT, RIGHT, BROKEN, RIGHT],  # with the unscored one as 0 there would be a difference
            [RIGHT, BROKEN, WRONG, RIGHT],
            [BROKEN, BROKEN, BROKEN, RIGHT],
            [RIGHT, WRONG, RIGHT],
            [RIGHT, WRONG, RIGHT, None],
            ["refused", "refused", "refused", "refused"],
        ],
    )
    out = tmp_path / "groups.jsonl"
    manifest = write_groups(store, job(groups={"advantage": "mean_only"}), prompt_ids, "t1", out)
    rows = rows_of(out)
    assert [(row["group"], row["index"]) for row in rows] == [("s/4", 0), ("s/4", 2), ("s/4", 3)]
    assert [row["advantage"] for row in rows] == pytest.approx([1 / 3, -2 / 3, 1 / 3])
    assert manifest["left_out"] == {
        "groups whose rewards are all the same: all right": 2,
        "groups whose rewards are all the same: none right": 2,
        "groups with fewer than two rollouts that have a reward": 1,
        "groups that are not complete yet": 2,
        "groups whose prompt the sampler refused": 1,
        "rollouts that the judge failed on (unscored)": 5,
    }


# proves RFT-8
def test_graded_rewards_and_two_models_in_one_group(tmp_path: Path) -> None:
    store = stored(tmp_path / "run", [[WRONG] * 4, [RIGHT, WRONG, RIGHT]], score=True)
    other = Origin(IDENTITY, Sampling(0.7, 1.0, 0, 64))
    with store.batch():
        completion = Completion("s/1", 3, 103, "a", (1,), (-1.0,), "stop", 2, 1, 0.1)
        store.add([Arrived(2, completion)], store.origin_number(other), 1)
        verdict = Verdict(WRONG, "r", "v", "v1", Isolation.BUBBLEWRAP)
        store.add_verdicts([Judged(2, 3, verdict, None)])
    out = tmp_path / "groups.jsonl"
    manifest = write_groups(store, job(groups={"advantage": "leave_one_out"}), prompt_ids, "t1", out)
    assert [row["reward"] for row in rows_of(out)] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert [row["advantage"] for row in rows_of(out)] == pytest.approx([-0.2, -0.2 / 3, 0.2 / 3, 0.2])
    assert manifest["left_out"] == {"groups drawn from more than one model or in more than one way": 1}


# proves RFT-8
def test_parquet_holds_the_same_rollouts(tmp_path: Path) -> None:
    from pyarrow import parquet

    store = stored(tmp_path / "run", [[RIGHT, WRONG, WRONG, LATE]] * 3)
    write_groups(store, job(), prompt_ids, "t1", tmp_path / "g.jsonl")
    write_groups(store, job(groups={"format": "parquet"}), prompt_ids, "t1", tmp_path / "g.parquet")
    table = parquet.read_table(tmp_path / "g.parquet")
    assert table.schema.equals(parquet_schema()) and table.to_pylist() == rows_of(tmp_path / "g.jsonl")
    assert not list(tmp_path.glob(".staging*"))


# proves RFT-8
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"budget": {"adaptive": True}}, "Set budget.adaptive: false"),
        ({"sampling": {"top_p": 0.95}}, r"sampling.top_p is 0.95: tokens that were cut off"),
        ({"sampling": {"top_k": 50}}, "sampling.top_k is 50"),
        ({"sampling": {"temperature": 0.0}}, "every rollout of a group is the same"),
        ({"sampling": {"logprobs": False}}, "sampling.logprobs is false"),
        ({"sampling": {"samples_per_task": 1}}, "needs two rollouts to compare"),
    ],
)
def test_a_job_whose_samples_would_bias_a_trainer_is_refused(changed: dict[str, Any], words: str) -> None:
    assert config_problem(job()) is None
    assert words in (config_problem(job(**changed)) or "")


# proves RFT-8
def test_what_was_sampled_counts_not_what_the_configuration_says_now(tmp_path: Path) -> None:
    out = tmp_path / "g.jsonl"
    cut = stored(tmp_path / "cut", [[RIGHT, WRONG, WRONG, WRONG]], Origin(IDENTITY, Sampling(1.0, 0.9, 0, 64)))
    with pytest.raises(InputError, match=r"sampling\.top_p is 0\.9"):
        write_groups(cut, job(), prompt_ids, "t1", out)
    good = stored(tmp_path / "good", [[RIGHT, WRONG, WRONG, WRONG]])
    with pytest.raises(InputError, match="another chat template"):
        write_groups(good, job(), prompt_ids, "t2", out)
    with pytest.raises(InputError, match="has 3 tokens now and had 2 when it was sampled"):
        write_groups(good, job(), lambda task: (1, 2, 3), "t1", out)
    silent = stored(tmp_path / "silent", [[None] * 4])
    with silent.batch():
        for index in range(4):
            verdict = Verdict([RIGHT, WRONG][index % 2], "r", "v", "1", Isolation.NOT_RUN)
            silent.add_verdicts([Judged(1, index, verdict, None)])
    silent._db.execute("UPDATE content SET ids = NULL, logprobs = NULL")
    with pytest.raises(InputError, match="has no log-probabilities"):
        write_groups(silent, job(), prompt_ids, "t1", out)
    alike = stored(tmp_path / "alike", [[RIGHT] * 4])
    with pytest.raises(InputError, match="No group has anything to learn from: 1 groups whose rewards"):
        write_groups(alike, job(), prompt_ids, "t1", out)
    assert not out.exists() and not list(tmp_path.glob(".staging*")), "something half-written is left"


# proves RFT-8
def test_groups_are_written_again_over_their_own_file_and_over_no_other(tmp_path: Path) -> None:
    store = stored(tmp_path / "run", [[RIGHT, WRONG, WRONG, WRONG]])
    out = tmp_path / "g.jsonl"
    write_groups(store, job(), prompt_ids, "t1", out)
    before = out.read_bytes()
    write_groups(store, job(), prompt_ids, "t1", out)
    assert out.read_bytes() == before
    other = stored(tmp_path / "other", [[RIGHT, WRONG, WRONG, WRONG]])
    with pytest.raises(InputError, match="was not written from"):
        write_groups(other, job(), prompt_ids, "t1", out)
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="so it stays"):
        write_groups(store, job(), prompt_ids, "t1", tmp_path / "mine.txt")
    assert (tmp_path / "mine.txt").read_text() == "mine"


# proves RFT-8
def test_the_advantages_of_a_group_add_up_to_nothing(tmp_path: Path) -> None:
    for how in ("group_std", "mean_only", "leave_one_out"):
        store = stored(tmp_path / how, [[RIGHT, WRONG, LATE, RIGHT]])
        write_groups(store, job(groups={"advantage": how}), prompt_ids, "t1", tmp_path / f"{how}.jsonl")
        assert math.fsum(row["advantage"] for row in rows_of(tmp_path / f"{how}.jsonl")) == pytest.approx(0, abs=1e-9)


# proves RFT-8: killed between the file and its manifest, it is still known as the run's own
def test_groups_whose_manifest_never_came_are_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "g.jsonl"
    store = stored(tmp_path / "run", [[RIGHT, WRONG, WRONG, WRONG]])

    def killed(path: Path) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("rft.groups._digest", killed)
        with pytest.raises(KeyboardInterrupt):
            write_groups(store, job(), prompt_ids, "t1", out)
    assert out.exists()
    assert write_groups(store, job(), prompt_ids, "t1", out)["groups"] == 1
