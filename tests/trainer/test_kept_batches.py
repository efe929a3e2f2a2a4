"""proves SUP-11, TRN-8: an evaluation that a crash cuts off goes on where it was, and its result is the same."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from test_snapshots import sealed_slots
from tiny_runs import Attempt, Tiny, rows_of, write_rows

from supervisor.protocol.attempt import ExitKind
from supervisor.protocol.manifest import read_manifest
from supervisor.protocol.paths import RunPaths
from supervisor.supervise.snapshots import save_snapshot
from trainer.checkpoint import Provenance
from trainer.evaluation_pass import EvaluationPass, adapter_digest, computed_by
from trainer.kept_batches import Batch, EvaluationKey, KeptBatches
from trainer.sft import SupervisedSFTTrainer

CHANGES: dict[str, Any] = {
    "train.max_steps": 3,
    "eval.eval_on_start": True,
    "eval.eval_steps": 2,
    "eval.per_device_eval_batch_size": 1,
    "model.lora.lora_dropout": 0.1,
}


class Dead(BaseException):
    """What no handler of the trainer's takes for its own."""


def dies_in(step: int, batch: int) -> type[SupervisedSFTTrainer]:
    """A trainer that dies when it has evaluated so many batches after this step."""

    class Dies(SupervisedSFTTrainer):
        evaluated = 0

        def _token_losses(self, inputs: dict[str, Any]) -> torch.Tensor:
            if self.state.global_step == step:
                if self.evaluated == batch:
                    raise Dead
                self.evaluated += 1
            return super()._token_losses(inputs)

    return Dies


class Counts(SupervisedSFTTrainer):
    """``evaluated``: the batches that it computed, by step."""

    evaluated: dict[int, int]

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.evaluated = {}

    def _token_losses(self, inputs: dict[str, Any]) -> torch.Tensor:
        step = self.state.global_step
        self.evaluated[step] = self.evaluated.get(step, 0) + 1
        return super()._token_losses(inputs)


@pytest.fixture(scope="module")
def undisturbed(tiny: Tiny) -> Attempt:
    return tiny.run("kept-reference", CHANGES, trainer_class=Counts)


def computed(attempt: Attempt) -> dict[int, int]:
    counted: dict[int, int] = attempt.built.evaluated
    return counted


def of_step(attempt: Attempt, step: int) -> list[dict[str, Any]]:
    """The data of this step's evaluation events, without how long they took."""
    found = [event.data for event in attempt.events("evaluation") if event.step == step]
    return [{name: value for name, value in data.items() if name != "seconds"} for data in found]


def die(tiny: Tiny, name: str, step: int, batch: int, memory: Path, **changes: Any) -> Path | None:
    """Die in the evaluation after ``step``; returns the checkpoint that the supervisor makes of the last snapshot."""
    seen = Attempt(RunPaths(tiny.root / name))
    memory.mkdir(mode=0o700)
    with pytest.raises(Dead):
        tiny.run(name, {**CHANGES, **changes}, trainer_class=dies_in(step, batch), seen=seen, snapshots=memory)
    assert seen.paths.kept_batches().exists()
    if step == 0:
        return None
    sealed, slot = sealed_slots(memory)[0]
    checkpoint = seen.paths.checkpoint(step)
    save_snapshot(slot, sealed, checkpoint)
    return checkpoint


# proves SUP-11, TRN-8, TRN-12: the first one, one on the way among the sample's batches, and the last one
@pytest.mark.parametrize(("step", "batch"), [(0, 1), (2, 7), (3, 3)])
def test_only_what_is_missing_is_evaluated(
    tiny: Tiny, undisturbed: Attempt, tmp_path: Path, step: int, batch: int
) -> None:
    name = f"dies-at-{step}"
    checkpoint = die(tiny, name, step, batch, tmp_path / "memory")
    resumed = tiny.run(name, CHANGES, resume_from=checkpoint, number=2, trainer_class=Counts)
    whole = computed(undisturbed)
    assert whole[step] > batch + 1
    assert computed(resumed) == {at: whole[at] - (batch if at == step else 0) for at in (0, 2, 3) if at >= step}
    (event,) = resumed.events("evaluation_resumed")
    assert (event.step, event.data["batches"]) == (step, batch)
    for at in (0, 2, 3):
        assert of_step(resumed, at) == of_step(undisturbed, at), "the very same figures, once"
    last = undisturbed.paths.checkpoint(3)
    assert read_manifest(resumed.paths.checkpoint(3)).eval_loss == read_manifest(last).eval_loss
    left, right = undisturbed.adapter(3), resumed.adapter(3)
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert resumed.report is not None and resumed.report.kind is ExitKind.COMPLETED
    assert not resumed.paths.kept_batches().exists()


# proves SUP-11: killed after an evaluation and before its result was saved anywhere, nothing is evaluated again
def test_a_whole_evaluation_is_not_made_again(tiny: Tiny, undisturbed: Attempt, tmp_path: Path) -> None:
    class DiesInTheFirstStep(SupervisedSFTTrainer):
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            raise Dead

    with pytest.raises(Dead):
        tiny.run("dies-behind", CHANGES, trainer_class=DiesInTheFirstStep)
    resumed = tiny.run("dies-behind", CHANGES, number=2, trainer_class=Counts)
    assert 0 not in computed(resumed)
    first, second = of_step(resumed, 0)
    assert first == second == of_step(undisturbed, 0)[0]
    assert of_step(resumed, 3) == of_step(undisturbed, 3)


# --- what is never used ---------------------------------------------------------------------------------


# proves TRN-8, TRN-14 (test_stop.py has the same for batches of another size)
def test_other_rows_are_evaluated_anew(tiny: Tiny, tmp_path: Path) -> None:
    die(tiny, "other-rows", 0, 2, tmp_path / "memory")
    other = write_rows(tmp_path / "other.jsonl", rows_of(6, start=2000))
    short = {**CHANGES, "train.max_steps": 1, "data.validation.path": str(other)}
    resumed = tiny.run("other-rows", short, number=2)
    assert not resumed.events("evaluation_resumed")
    assert of_step(resumed, 0) == of_step(tiny.run("other-rows-fresh", short), 0)


@dataclass
class Parts:
    """What goes into a key; changed one by one."""

    whole: EvaluationPass
    provenance: Provenance
    adapter: dict[str, torch.Tensor]
    lineage: int = 1
    step: int = 3

    def key(self) -> EvaluationKey:
        computed = computed_by(self.provenance, torch.device("cpu"))
        return self.whole.key(self.lineage, self.step, self.adapter, computed)


# proves TRN-8: each of these makes another evaluation of it
def test_a_key_tells_evaluations_apart(undisturbed: Attempt) -> None:
    trainer = undisturbed.built
    whole, provenance, adapter = trainer.evaluation_pass, trainer.provenance, undisturbed.adapter(3)

    def parts(**changed: Any) -> Parts:
        return Parts(**{"whole": whole, "provenance": provenance, "adapter": adapter, **changed})

    def passes(**changed: Any) -> EvaluationPass:
        made = {"validation": whole.validation, "sample": whole.sample, "batch_bins": 1, "ranks": trainer.ranks}
        return EvaluationPass(**{**made, **changed}, reporter=trainer.reporter, kept=whole.kept)

    name = next(iter(adapter))
    bits = adapter[name].clone().view(torch.int32)
    bits.view(-1)[0] ^= 1
    others = [
        parts(lineage=2),
        parts(step=2),
        parts(adapter={**adapter, name: bits.view(torch.float32)}),
        parts(adapter={**adapter, name: adapter[name].reshape(-1)}),
        parts(adapter={("x" if key == name else key): value for key, value in adapter.items()}),
        parts(whole=passes(batch_bins=2)),
        parts(whole=passes(validation=whole.sample, sample=whole.validation)),
        parts(whole=passes(validation=whole.sample)),
        parts(whole=passes(sample=whole.validation)),
        parts(provenance=replace(provenance, config={**provenance.config, "device": "auto"})),
        parts(provenance=replace(provenance, identity={**provenance.identity, "base": "x"})),
    ]
    keys = [other.key() for other in others]
    assert parts().key() == parts(whole=passes(), adapter=dict(reversed(adapter.items()))).key()
    assert parts().key() not in keys
    assert len(set(keys)) == len(keys)
    assert adapter_digest(adapter) == adapter_digest({key: value.clone() for key, value in adapter.items()})


# --- the file ---------------------------------------------------------------------------------------------

KEY = EvaluationKey(1, 8, "adapter", "rows", "computed")
BATCHES = [
    Batch(((0, 0.1 + 0.2, 3), (4, 1e-300, 1)), 0.5),
    Batch(((1, 12345.678901234567, 17),), 0.25),
    Batch(((2, 5e-324, 0), (3, 1 / 3, 2)), 0.125),
]


@pytest.fixture
def kept(tmp_path: Path) -> KeptBatches:
    return KeptBatches(tmp_path / "kept.jsonl", pytest.fail)


@pytest.fixture
def written(kept: KeptBatches, tmp_path: Path) -> Path:
    assert kept.open(KEY) == []
    kept.go_on(0)
    for batch in BATCHES:
        kept.add(batch)
    kept.close()
    return tmp_path / "kept.jsonl"


def test_every_bit_comes_back(kept: KeptBatches, written: Path) -> None:
    assert kept.open(KEY) == BATCHES
    kept.go_on(3)
    kept.close()
    assert kept.open(KEY) == BATCHES
    kept.go_on(1)  # another rank has only the first one
    kept.add(BATCHES[2])
    assert kept.open(KEY) == [BATCHES[0], BATCHES[2]]
    kept.close()


# proves TRN-8: the file of another evaluation is not read, and gone with the first batch of this one
@pytest.mark.parametrize("field", EvaluationKey.__struct_fields__)
def test_another_key(kept: KeptBatches, written: Path, field: str) -> None:
    other = msgspec.structs.replace(KEY, **{field: 9 if field in ("lineage", "step") else "other"})
    assert kept.open(other) == []
    kept.go_on(0)
    kept.add(BATCHES[1])
    assert kept.open(KEY) == []
    kept.close()
    assert kept.open(other) == []
    kept.close()


# proves SUP-11: a power cut leaves a piece, a sick disk flips a bit; only whole batches before that count
def test_torn_at_any_byte(kept: KeptBatches, written: Path) -> None:
    data = written.read_bytes()
    ends = [index + 1 for index, byte in enumerate(data) if byte == ord("\n")]
    for length in range(len(data)):
        written.write_bytes(data[:length])
        whole = BATCHES[: max(0, sum(end <= length for end in ends) - 1)]
        assert kept.open(KEY) == whole
        kept.go_on(len(whole))
        for batch in BATCHES[len(whole) :]:
            kept.add(batch)
        kept.close()
        assert written.read_bytes() == data
    for index in range(len(data)):
        flipped = bytearray(data)
        flipped[index] ^= 1 << index % 8
        written.write_bytes(flipped)
        line = sum(end <= index for end in ends)
        assert kept.open(KEY) == BATCHES[: max(0, line - 1)]
        kept.close()


# proves TRN-15: figures that are none are computed again
def test_figures_that_are_not_finite_are_not_kept(kept: KeptBatches, written: Path) -> None:
    kept.open(KEY)
    kept.go_on(1)
    kept.add(Batch(((1, float("nan"), 17),), 0.25))
    kept.add(BATCHES[2])
    assert kept.open(KEY) == BATCHES[:1]
    kept.close()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# proves SUP-13: no room, at every byte of a batch: the evaluation goes on without, and says so at most once
@pytest.mark.parametrize("torn", [0, 1, 30])
def test_no_room_for_a_batch(tmp_path: Path, torn: int) -> None:
    said: list[str] = []
    kept = KeptBatches(tmp_path / "kept.jsonl", said.append)
    kept.open(KEY)
    kept.go_on(0)
    kept.add(BATCHES[0])
    with files_of_at_most((tmp_path / "kept.jsonl").stat().st_size + torn):
        for batch in BATCHES[1:]:
            kept.add(batch)
    assert len(said) == (torn == 0)
    assert kept.open(KEY) == BATCHES[:1]
    kept.close()


def test_no_folder_for_the_file(tmp_path: Path) -> None:
    said: list[str] = []
    kept = KeptBatches(tmp_path / "gone" / "kept.jsonl", said.append)
    assert kept.open(KEY) == []
    kept.go_on(0)
    kept.add(BATCHES[0])
    (sentence,) = said
    assert "No such file or directory" in sentence and "costs all of it" in sentence
