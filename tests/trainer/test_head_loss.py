"""The loss: every label of every answer once, nothing else, whatever computes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tiny_runs import Attempt, Tiny
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)
from trl import SFTConfig, SFTTrainer

from trainer import head_loss
from trainer.base_model import load_tokenizer, locate
from trainer.config import LoraSection
from trainer.data.token_rows import TokenRows
from trainer.errors import ConfigurationError
from trainer.head_loss import IGNORED
from trainer.model import add_adapter


def random_case(rows_without_label: tuple[int, ...] = ()) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """float64 hidden [3, 11, 8], weight [29, 8] and labels [3, 11] of which about half are ignored."""
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(3, 11, 8, generator=generator, dtype=torch.float64)
    weight = torch.randn(29, 8, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 29, (3, 11), generator=generator)
    labels[torch.rand(3, 11, generator=generator) < 0.5] = IGNORED
    for row in rows_without_label:
        labels[row] = IGNORED
    return hidden, weight, labels


def reference(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    logits = hidden[:, :-1] @ weight.T
    return functional.cross_entropy(
        logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
    )


# proves TRN-5, TRN-11: slices of 1, of 4 and larger than the batch; rows with nothing to learn
@pytest.mark.parametrize("slice_rows", [1, 4, 1000])
@pytest.mark.parametrize("without_label", [(), (1,), (0, 1, 2)])
def test_value_and_gradient_are_those_of_cross_entropy(
    monkeypatch: pytest.MonkeyPatch, slice_rows: int, without_label: tuple[int, ...]
) -> None:
    hidden, weight, labels = random_case(without_label)
    monkeypatch.setattr(head_loss, "SLICE_ELEMENTS", slice_rows * weight.shape[0])
    expected_hidden = hidden.clone().requires_grad_()
    (reference(expected_hidden, weight, labels) * 0.37).backward()  # type: ignore[no-untyped-call]
    ours = hidden.clone().requires_grad_()
    total = head_loss.summed_token_loss(ours, weight, labels)
    (total * 0.37).backward()  # type: ignore[no-untyped-call]
    assert total.dtype == torch.float32
    assert float(total) == pytest.approx(float(reference(hidden, weight, labels)), rel=1e-6, abs=1e-12)
    assert ours.grad is not None and expected_hidden.grad is not None
    torch.testing.assert_close(ours.grad, expected_hidden.grad, rtol=1e-5, atol=1e-6)


# proves TRN-11: nothing the size of the logits is kept for the backward pass
def test_nothing_of_the_logits_survives_the_forward() -> None:
    hidden, weight, labels = random_case()
    saved: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        head_loss.summed_token_loss(hidden.requires_grad_(), weight, labels)
    chosen = int((labels[:, 1:] != IGNORED).sum())
    assert max(saved) < chosen * weight.shape[0]


# --- which models it fits -------------------------------------------------------------------------

TINY_SHAPE = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
              "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}  # fmt: skip


def biased() -> PreTrainedModel:
    model = LlamaForCausalLM(LlamaConfig(**TINY_SHAPE, tie_word_embeddings=False))
    model.lm_head = torch.nn.Linear(16, 32, bias=True)
    return model


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (lambda: Gemma2ForCausalLM(Gemma2Config(**TINY_SHAPE, final_logit_softcapping=9.0)), "final_logit_softcapping"),
        (lambda: GraniteForCausalLM(GraniteConfig(**TINY_SHAPE, logits_scaling=8.0)), "logits_scaling"),
        (biased, "no plain output head"),
    ],
)
def test_a_model_that_reshapes_its_logits_is_refused(model: Any, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        head_loss.attach(model())


def test_a_model_that_only_could_reshape_them_is_not() -> None:
    head_loss.attach(GraniteForCausalLM(GraniteConfig(**TINY_SHAPE, logits_scaling=1.0)))
    head_loss.attach(Gemma2ForCausalLM(Gemma2Config(**TINY_SHAPE, final_logit_softcapping=None)))


# --- what a run reports ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain_model() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(str(locate("random:1x64", None).path), dtype=torch.float32)


def nats_and_labels(model: PreTrainedModel, rows: TokenRows, row: int, max_length: int) -> tuple[float, int]:
    """One row by itself through transformers' own forward and torch's own cross-entropy."""
    fitted = rows.fitted(row, max_length)
    ids = torch.tensor(fitted.ids.tolist())[None]
    labels = torch.where(torch.tensor(fitted.labels), ids[0], torch.tensor(IGNORED))
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0]
    kept = labels[1:] != IGNORED
    return float(functional.cross_entropy(logits[:-1][kept], labels[1:][kept], reduction="sum")), int(kept.sum())


def mean(parts: list[tuple[float, int]]) -> float:
    return sum(nats for nats, _ in parts) / sum(count for _, count in parts)


# proves TRN-5: before the first update the adapter adds nothing, so the base's own loss is the truth
def test_the_reported_loss_is_the_plain_token_mean(plain_run: Attempt, plain_model: PreTrainedModel) -> None:
    trainer = plain_run.built
    rows = [int(row) for index in range(4) for row in trainer.plan.bin(index)]
    assert len(rows) > 4, "several documents to a bin, or packing is not tested"
    parts = [nats_and_labels(plain_model, trainer.rows, row, 96) for row in rows]
    assert plain_run.progress("loss")[0] == pytest.approx(mean(parts), rel=1e-6)
    each = [nats / count for nats, count in parts]
    assert abs(sum(each) / len(each) - mean(parts)) > 1e-5 * mean(parts), "a mean of means would pass as well"


# proves TRN-5: two evaluation batches of very unequal label counts
def test_evaluation_is_sum_over_sum(tiny: Tiny, plain_model: PreTrainedModel) -> None:
    changes = {"eval.eval_on_start": True, "eval.per_device_eval_batch_size": 3, "train.packing": False,
               "train.max_steps": 1}  # fmt: skip
    run = tiny.run("evaluated", changes)
    first = run.events("evaluation")[0].data
    bins = run.built.eval_bins
    parts = [nats_and_labels(plain_model, bins.rows, int(bins.plan.bin(index)[0]), 96) for index in range(6)]
    assert first["eval_tokens"] == sum(count for _, count in parts)
    assert first["eval_loss"] == pytest.approx(mean(parts), rel=1e-6)
    batches = [mean(parts[:3]), mean(parts[3:])]
    assert abs(sum(batches) / 2 - mean(parts)) > 1e-5 * mean(parts)


# proves TRN-5: the same rows in one batch through TRL's own trainer give the same loss and gradient
def test_loss_and_gradient_norm_agree_with_trl(tiny: Tiny, tmp_path: Path) -> None:
    changes = {"train.packing": False, "train.max_steps": 1, "train.per_device_train_batch_size": 8,
               "train.gradient_accumulation_steps": 1, "train.learning_rate": 1e-3}  # fmt: skip
    ours = tiny.run("as-trl", changes)
    rows = [ours.built.rows.fitted(int(ours.built.plan.bin(index)[0]), 96) for index in range(8)]
    base = locate("random:1x64", None)
    model = AutoModelForCausalLM.from_pretrained(str(base.path), dtype=torch.float32)
    theirs = SFTTrainer(
        model=add_adapter(model, LoraSection(r=4, lora_alpha=8.0, lora_dropout=0.0), 42),
        args=SFTConfig(
            output_dir=str(tmp_path),
            max_steps=1,
            per_device_train_batch_size=8,
            gradient_checkpointing=False,
            learning_rate=1e-3,
            max_length=None,
            dataset_kwargs={"skip_prepare_dataset": True},
            report_to="none",
            logging_steps=1,
            save_strategy="no",
            bf16=False,
            use_cpu=True,
        ),
        train_dataset=Dataset.from_list(
            [
                {
                    "input_ids": row.ids.tolist(),
                    "labels": [
                        int(token) if learnt else IGNORED for token, learnt in zip(row.ids, row.labels, strict=True)
                    ],
                }
                for row in rows
            ]
        ),
        processing_class=load_tokenizer(base),
    )
    theirs.train()
    logged = theirs.state.log_history[0]
    assert ours.progress("loss")[0] == pytest.approx(logged["loss"], rel=1e-6)
    assert ours.progress("grad_norm")[0] == pytest.approx(float(logged["grad_norm"]), rel=1e-4)


# proves TRN-5: an adapter on the head would never be trained, so it is refused by name
def test_an_adapter_on_the_head_is_refused(tiny: Tiny) -> None:
    with pytest.raises(ConfigurationError, match="names the output head"):
        tiny.run("head", {"model.lora.target_modules": ["q_proj", "lm_head"]})
