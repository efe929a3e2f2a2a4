"""Documents in one sequence must not see each other, nor the padding, whatever the attention kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_runs import Attempt, distance
from transformers import AutoModelForCausalLM, PreTrainedModel

from trainer import head_loss
from trainer.base_model import locate
from trainer.collate import BinCollator
from trainer.config import LoraSection
from trainer.head_loss import IGNORED
from trainer.model import add_adapter, trainable_parameters

KERNELS = ["sdpa", "eager"]
SAME = 1e-4
"""Relative to the spread of the hidden states; measured: 3e-6. Documents that see each other: over 1e-1."""


def sharp(kernel: str) -> PreTrainedModel:
    """A model whose attention matters: weights ten times as large as a fresh model's."""
    model = AutoModelForCausalLM.from_pretrained(
        str(locate("random:1x64", None).path), dtype=torch.float32, attn_implementation=kernel
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(10)
    head_loss.attach(model)
    return model.eval()


@pytest.fixture(params=KERNELS)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return sharp(request.param)


def batch_of(collator: BinCollator, *bins: int) -> dict[str, Any]:
    batch = collator([{"bin": index} for index in bins])
    return {name: value for name, value in batch.items() if name not in ("rows", "tokens")}


def hidden(model: PreTrainedModel, **inputs: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        states: torch.Tensor = model.base_model(**inputs, use_cache=False).last_hidden_state
    return states


def alone(model: PreTrainedModel, collator: BinCollator, bins: tuple[int, ...], width: int) -> torch.Tensor:
    """Hidden states of bins, computed document by document and laid out as in a batch; padding is a document."""
    rows = []
    for index in bins:
        fitted = [collator.rows.fitted(int(row), 96).ids.tolist() for row in collator.plan.bin(index)]
        padding = [collator.pad_token_id] * (width - sum(map(len, fitted)))
        documents = [*fitted, padding] if padding else fitted
        rows.append(torch.cat([hidden(model, input_ids=torch.tensor([ids]))[0] for ids in documents]))
    return torch.stack(rows)


def departure(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left - right).abs().max() / right.std())


@pytest.fixture(scope="module")
def packed(plain_run: Attempt) -> tuple[BinCollator, tuple[int, ...]]:
    """The run's own collator, and bins of several documents each, of different lengths."""
    collator = plain_run.built.data_collator
    bins = [index for index in range(collator.plan.total_bins) if len(collator.plan.bin(index)) > 1][:3]
    assert len(bins) == 3
    return collator, tuple(bins)


# proves TRN-11
def test_a_packed_document_is_computed_as_if_alone(
    model: PreTrainedModel, packed: tuple[BinCollator, tuple[int, ...]]
) -> None:
    collator, bins = packed
    batch = batch_of(collator, *bins)
    together = hidden(model, input_ids=batch["input_ids"], position_ids=batch["position_ids"])
    assert departure(together, alone(model, collator, bins, together.shape[1])) < SAME


# proves TRN-11: what the test above would catch
def test_without_restarting_positions_documents_see_each_other(
    model: PreTrainedModel, packed: tuple[BinCollator, tuple[int, ...]]
) -> None:
    collator, bins = packed
    batch = batch_of(collator, *bins)
    running = torch.arange(batch["input_ids"].shape[1]).expand_as(batch["input_ids"])
    leaking = hidden(model, input_ids=batch["input_ids"], position_ids=running)
    assert departure(leaking, alone(model, collator, bins, leaking.shape[1])) > 1000 * SAME


# proves TRN-11, TRN-5: also when the window is flattened into one sequence
def test_the_loss_of_a_batch_is_the_sum_over_its_documents(
    model: PreTrainedModel, packed: tuple[BinCollator, tuple[int, ...]]
) -> None:
    collator, bins = packed
    batch = batch_of(collator, *bins)
    flat = batch_of(BinCollator(collator.rows, collator.plan, collator.pad_token_id, flatten=True), *bins)
    expected = 0.0
    for index in bins:
        for row in collator.plan.bin(index):
            fitted = collator.rows.fitted(int(row), collator.plan.max_length_of_bin(index))
            ids = torch.tensor(fitted.ids.tolist())[None]
            labels = torch.where(torch.tensor(fitted.labels)[None], ids, torch.tensor(IGNORED))
            with torch.no_grad():
                expected += float(model(input_ids=ids, labels=labels, summed_loss=True))
    with torch.no_grad():
        assert float(model(**batch, use_cache=False, summed_loss=True)) == pytest.approx(expected, rel=1e-5)
        assert float(model(**flat, use_cache=False, summed_loss=True)) == pytest.approx(expected, rel=1e-5)


# proves TRN-5: the first token of a document is never the label of the one before
def test_no_label_crosses_a_document_border(packed: tuple[BinCollator, tuple[int, ...]]) -> None:
    collator, bins = packed
    batch = batch_of(collator, *bins)
    assert (batch["labels"][batch["position_ids"] == 0] == IGNORED).all()


# --- what is learnt ---------------------------------------------------------------------------------

SAME_GRADIENT = 1e-5
"""Relative to the largest entry of a matrix's gradient."""


def adapted(kernel: str) -> PreTrainedModel:
    """The sharp model with an adapter whose two matrices both matter, so that both get a gradient."""
    model = add_adapter(sharp(kernel), LoraSection(r=4, lora_alpha=8, lora_dropout=0.0), seed=1)
    generator = torch.Generator().manual_seed(2)
    for name, parameter in trainable_parameters(model).items():
        if "lora_B" in name:
            parameter.data.normal_(0.0, 0.05, generator=generator)
    return model


def loss_and_gradients(model: PreTrainedModel, batches: list[dict[str, Any]]) -> tuple[float, dict[str, torch.Tensor]]:
    """Summed over the batches, in nats."""
    model.zero_grad()
    total = 0.0
    for batch in batches:
        loss = model(**batch, use_cache=False, summed_loss=True)
        loss.backward()
        total += float(loss)
    found = {name: p.grad.clone() for name, p in trainable_parameters(model).items() if p.grad is not None}
    assert len(found) == len(trainable_parameters(model)) and all(float(g.abs().max()) > 0 for g in found.values())
    return total, found


def one_by_one(collator: BinCollator, bins: tuple[int, ...]) -> list[dict[str, Any]]:
    """Every document of the bins as a batch of its own, without padding and without position ids."""
    batches = []
    for index in bins:
        for row in collator.plan.bin(index):
            fitted = collator.rows.fitted(int(row), collator.plan.max_length_of_bin(index))
            ids = torch.tensor(fitted.ids.tolist())[None]
            labels = torch.where(torch.tensor(fitted.labels)[None], ids, torch.tensor(IGNORED))
            batches.append({"input_ids": ids, "labels": labels})
    return batches


# proves TRN-11: packed, flattened and one document at a time, the very same is learnt
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("flatten", [False, True])
def test_packing_changes_neither_loss_nor_gradients(
    packed: tuple[BinCollator, tuple[int, ...]], kernel: str, flatten: bool
) -> None:
    collator, bins = packed
    model = adapted(kernel)
    together = batch_of(BinCollator(collator.rows, collator.plan, collator.pad_token_id, flatten), *bins)
    packed_loss, packed_gradients = loss_and_gradients(model, [together])
    loss, gradients = loss_and_gradients(model, one_by_one(collator, bins))
    assert packed_loss == pytest.approx(loss, rel=1e-5)
    assert distance(gradients, packed_gradients) < SAME_GRADIENT


# proves TRN-11: what the tolerance above would catch, an attention mask of ones among it
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("broken", ["mask of ones", "running positions"])
def test_documents_that_see_each_other_learn_something_else(
    packed: tuple[BinCollator, tuple[int, ...]], kernel: str, broken: str
) -> None:
    collator, bins = packed
    model = adapted(kernel)
    together = batch_of(collator, *bins)
    if broken == "mask of ones":
        together["attention_mask"] = torch.ones_like(together["input_ids"])
    else:
        together["position_ids"] = torch.arange(together["input_ids"].shape[1]).expand_as(together["input_ids"])
    _, wrong = loss_and_gradients(model, [together])
    _, gradients = loss_and_gradients(model, one_by_one(collator, bins))
    assert distance(gradients, wrong) > 1000 * SAME_GRADIENT
