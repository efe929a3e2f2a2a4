"""proves TRN-9: every knob of ``model``, ``data``, ``train`` and ``eval`` does what it says.

Most are read off two whole runs whose settings differ in all of them: what is observed must be the value
given, in both, so a knob that is ignored fails in one of the two at least.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bitsandbytes.optim
import huggingface_hub.constants
import pytest
import torch
import transformers.integrations.integration_utils
from tiny_runs import Attempt, NotTrained, Tiny, distance, rows_of, write_rows
from transformers import TrainerCallback

from supervisor.protocol.heartbeat import Phase
from trainer.base_model import load_tokenizer, locate
from trainer.data.corpus import DataError
from trainer.errors import ConfigurationError
from trainer.sft import SupervisedSFTTrainer


class Probed(SupervisedSFTTrainer):
    """Notes the shape of every batch and how often the model's layer runs in training."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.training_shapes: list[tuple[int, int]] = []
        self.evaluation_shapes: list[tuple[int, int]] = []
        self.layer_runs = 0
        layer = self.model.get_base_model().model.layers[0]
        layer.mlp.gate_proj.register_forward_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.layer_runs += self.reporter.phase is not Phase.EVALUATING

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        evaluating = self.reporter.phase is Phase.EVALUATING
        shapes = self.evaluation_shapes if evaluating else self.training_shapes
        shapes.append(tuple(inputs["input_ids"].shape))
        return super().compute_loss(model, inputs, *args, **kwargs)


ONE: dict[str, Any] = {
    "model.attn_implementation": "sdpa",
    "model.dtype": "float32",
    "model.lora.r": 4,
    "model.lora.lora_alpha": 8.0,
    "model.lora.lora_dropout": 0.0,
    "model.lora.target_modules": "all-linear",
    "model.quantization": "none",
    "train.learning_rate": 5e-3,
    "train.lr_scheduler_type": "linear",
    "train.warmup_ratio": 0.0,
    "train.weight_decay": 0.0,
    "train.per_device_train_batch_size": 2,
    "train.gradient_accumulation_steps": 2,
    "train.max_steps": 4,
    "train.max_length": 96,
    "train.packing": True,
    "train.gradient_checkpointing": False,
    "train.optim": "adamw_torch",
    "train.adam_beta1": 0.9,
    "train.adam_beta2": 0.999,
    "train.adam_epsilon": 1e-8,
    "train.seed": 42,
    "train.logging_steps": 1,
    "eval.eval_steps": 2,
    "eval.eval_on_start": True,
    "eval.per_device_eval_batch_size": 2,
}
OTHER: dict[str, Any] = {
    "model.attn_implementation": "eager",
    "model.dtype": "bfloat16",
    "model.lora.r": 64,
    "model.lora.lora_alpha": 24.0,
    "model.lora.lora_dropout": 0.25,
    "model.lora.target_modules": ["q_proj", "v_proj"],
    "model.quantization": "nf4",
    "train.learning_rate": 3e-3,
    "train.lr_scheduler_type": "constant",
    "train.warmup_ratio": 0.25,
    "train.weight_decay": 0.1,
    "train.per_device_train_batch_size": 3,
    "train.gradient_accumulation_steps": 1,
    "train.max_steps": 6,
    "train.max_length": 64,
    "train.packing": False,
    "train.gradient_checkpointing": True,
    "train.optim": "adamw_8bit",
    "train.adam_beta1": 0.8,
    "train.adam_beta2": 0.95,
    "train.adam_epsilon": 1e-5,
    "train.seed": 7,
    "train.logging_steps": 3,
    "eval.eval_steps": 3,
    "eval.eval_on_start": False,
    "eval.per_device_eval_batch_size": 4,
}


@pytest.fixture(scope="module")
def runs(tiny: Tiny) -> dict[str, Attempt]:
    return {
        "one": tiny.run("knobs-one", ONE, trainer_class=Probed),
        "other": tiny.run("knobs-other", OTHER, trainer_class=Probed),
    }


def group(run: Attempt) -> dict[str, Any]:
    """The parameter group of all adapter matrices."""
    groups = [entry for entry in run.built.optimizer.param_groups if entry["params"]]
    assert len(groups) == 1
    return dict(groups[0])


def adapter_config(run: Attempt) -> dict[str, Any]:
    checkpoint = sorted(run.paths.checkpoints().iterdir())[-1]
    found: dict[str, Any] = json.loads((checkpoint / "adapter_config.json").read_text())
    return found


def final_adapter(run: Attempt) -> dict[str, torch.Tensor]:
    return run.adapter(run.built.plan.total_steps)


def layers_adapted(run: Attempt) -> Any:
    names = {name.split(".")[-3] for name in final_adapter(run)}
    return "all-linear" if len(names) == 7 else sorted(names)


def base_dtype(run: Attempt) -> str:
    return str(run.built.model.get_input_embeddings().weight.dtype).removeprefix("torch.")


def factor(run: Attempt, step: int) -> float:
    """The learning rate of a 0-based step, relative to the peak."""
    scheduler = run.built.lr_scheduler
    assert isinstance(scheduler, torch.optim.lr_scheduler.LambdaLR)
    return float(scheduler.lr_lambdas[0](step))


def schedule(run: Attempt) -> str:
    factors = [factor(run, step) for step in range(run.built.plan.total_steps + 1)]
    return "constant" if factors[-1] == 1 else "linear" if factors[-1] == 0 else "?"


def warmup(run: Attempt) -> float:
    """Share of the steps with a learning rate below the peak, before it."""
    total = run.built.plan.total_steps
    factors = [factor(run, step) for step in range(total)]
    rising = factors.index(max(factors))
    return {0: 0.0, 2: 0.25}[rising] if total == 6 or rising == 0 else -1.0


def recomputed(run: Attempt) -> bool:
    passes: float = run.built.layer_runs / len(run.built.training_shapes)
    assert passes in (1, 2)
    return passes == 2


def optimiser_of(run: Attempt) -> str:
    optimizer = run.built.optimizer.optimizer
    if type(optimizer) is torch.optim.AdamW:
        return "adamw_torch"
    assert isinstance(optimizer, bitsandbytes.optim.AdamW)
    state = optimizer.state[next(p for p in optimizer.param_groups[0]["params"] if p.numel() >= 4096)]
    return "adamw_8bit" if state["state1"].dtype == torch.uint8 else "?"


def evaluation_steps(run: Attempt) -> list[int | None]:
    return [event.step for event in run.events("evaluation")]


OBSERVED: dict[str, Callable[[Attempt], Any]] = {
    "model.attn_implementation": lambda run: run.built.model.config._attn_implementation,
    "model.dtype": base_dtype,
    "model.lora.r": lambda run: {min(tensor.shape) for tensor in final_adapter(run).values()}.pop(),
    "model.lora.lora_alpha": lambda run: adapter_config(run)["lora_alpha"],
    "model.lora.lora_dropout": lambda run: max(
        (module.p for module in run.built.model.modules() if isinstance(module, torch.nn.Dropout)), default=0.0
    ),
    "model.lora.target_modules": layers_adapted,
    "model.quantization": lambda run: (
        "nf4" if any("Linear4bit" in str(type(module)) for module in run.built.model.modules()) else "none"
    ),
    "train.learning_rate": lambda run: pytest.approx(max(run.progress("learning_rate")), rel=1e-9),
    "train.lr_scheduler_type": schedule,
    "train.warmup_ratio": warmup,
    "train.weight_decay": lambda run: group(run)["weight_decay"],
    "train.per_device_train_batch_size": lambda run: run.built.training_shapes[0][0],
    "train.gradient_accumulation_steps": lambda run: len(run.built.training_shapes) // run.built.plan.total_steps,
    "train.max_steps": lambda run: run.data_of("plan")["planned_steps"],
    "train.max_length": lambda run: max(width for _, width in run.built.training_shapes),
    "train.packing": lambda run: run.data_of("plan")["planned_rows"] > run.built.plan.total_bins,
    "train.gradient_checkpointing": recomputed,
    "train.optim": optimiser_of,
    "train.adam_beta1": lambda run: group(run)["betas"][0],
    "train.adam_beta2": lambda run: group(run)["betas"][1],
    "train.adam_epsilon": lambda run: group(run)["eps"],
    "train.logging_steps": lambda run: run.built.plan.total_steps // len(run.events("progress")),
    "eval.eval_steps": lambda run: min(step for step in evaluation_steps(run) if step),
    "eval.eval_on_start": lambda run: evaluation_steps(run)[0] == 0,
    "eval.per_device_eval_batch_size": lambda run: run.built.evaluation_shapes[0][0],
}


@pytest.mark.parametrize("key", sorted(OBSERVED))
def test_the_knob_is_what_the_run_did(runs: dict[str, Attempt], key: str) -> None:
    observe = OBSERVED[key]
    assert ONE[key] != OTHER[key]
    assert (observe(runs["one"]), observe(runs["other"])) == (ONE[key], OTHER[key])


def test_the_table_is_complete() -> None:
    assert set(ONE) == set(OTHER) == set(OBSERVED) | {"train.seed"}


# --- behaviour that a value in an optimiser or a file doesn't prove -------------------------------

EFFECTS: dict[str, dict[str, Any]] = {
    "weight_decay": {"train.weight_decay": 5.0},
    "lora_alpha": {"model.lora.lora_alpha": 80},
    "adam_beta1": {"train.adam_beta1": 0.5},
    "adam_beta2": {"train.adam_beta2": 0.5},
    "adam_epsilon": {"train.adam_epsilon": 1e-2},
    "learning_rate": {"train.learning_rate": 1e-2},
    "schedule": {"train.lr_scheduler_type": "constant"},
    "warmup": {"train.warmup_ratio": 0.9},
    "max_grad_norm": {"train.max_grad_norm": 1e-3, "train.adam_epsilon": 1e-4},
}


@pytest.mark.parametrize("changes", EFFECTS.values(), ids=EFFECTS.keys())
def test_it_changes_what_is_learnt(tiny: Tiny, runs: dict[str, Attempt], changes: dict[str, Any]) -> None:
    run = tiny.run(f"effect-{next(iter(changes))}", {**ONE, **changes})
    assert distance(final_adapter(runs["one"]), final_adapter(run)) > 0.01


def test_checkpointing_changes_nothing_that_is_learnt(tiny: Tiny, runs: dict[str, Attempt]) -> None:
    run = tiny.run("recomputed", {**ONE, "train.gradient_checkpointing": True})
    assert distance(final_adapter(runs["one"]), final_adapter(run)) < 1e-5


def test_the_seed_decides_order_and_adapter(tiny: Tiny) -> None:
    built = {
        name: tiny.run(f"seed-{name}", {"train.seed": seed}, trainer_class=NotTrained).built
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    }
    orders = {name: [trainer.plan.bin(i).tolist() for i in range(8)] for name, trainer in built.items()}
    first = {name: next(p for p in trainer.model.parameters() if p.requires_grad) for name, trainer in built.items()}
    assert orders["a"] == orders["b"] != orders["c"]
    assert torch.equal(first["a"], first["b"]) and not torch.equal(first["a"], first["c"])


@pytest.mark.parametrize(("epochs", "rows"), [(1.0, 24), (2.0, 48), (0.5, 12)])
def test_epochs_without_max_steps(tiny: Tiny, epochs: float, rows: int) -> None:
    changes = {"train.max_steps": -1, "train.num_train_epochs": epochs}
    run = tiny.run(f"epochs-{epochs}", changes, trainer_class=NotTrained)
    assert run.data_of("plan")["planned_rows"] == rows


class Tracker(TrainerCallback):  # type: ignore[misc]
    logged: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.logged.append(dict(logs))


def test_report_to_reaches_a_tracker(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    trackers = transformers.integrations.integration_utils.INTEGRATION_TO_CALLBACK
    monkeypatch.setitem(trackers, "mine", Tracker)
    monkeypatch.setattr(Tracker, "logged", [])
    tiny.run("untracked", {"train.max_steps": 1})
    assert Tracker.logged == []
    run = tiny.run("tracked", {"train.max_steps": 1, "train.report_to": ["mine"]})
    (logs,) = [logs for logs in Tracker.logged if "loss" in logs]
    assert logs["loss"] == run.progress("loss")[0] and logs["grad_norm_clipped"] > 0


def test_a_tracker_that_is_not_there_is_a_configuration_error(tiny: Tiny) -> None:
    with pytest.raises(ConfigurationError, match=r"train\.report_to: nonsense is not supported"):
        tiny.run("no-tracker", {"train.report_to": ["nonsense"]})


def test_layers_that_are_not_there_are_a_configuration_error(tiny: Tiny) -> None:
    with pytest.raises(ConfigurationError, match=r"model\.lora: .*nonsense"):
        tiny.run("no-layer", {"model.lora.target_modules": ["nonsense"]})


# --- the base model's revision ----------------------------------------------------------------------


def test_the_revision_chooses_the_snapshot_in_the_hub_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Tiny
) -> None:
    repository = tmp_path / "models--someone--model"
    commits = {"main": "a" * 40, "v2": "b" * 40}
    for name, commit in commits.items():
        (repository / "refs").mkdir(parents=True, exist_ok=True)
        (repository / "refs" / name).write_text(commit)
        snapshot = repository / "snapshots" / commit
        snapshot.parent.mkdir(exist_ok=True)
        snapshot.symlink_to(locate("random:1x64" if name == "main" else "random:2x64", None).path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    layers = {}
    for revision in (None, "v2"):
        changes = {"model.base": "someone/model", "model.revision": revision}
        run = tiny.run(f"revision-{revision}", changes, trainer_class=NotTrained)
        layers[revision] = (run.built.model.config.num_hidden_layers, run.built.provenance.identity["base"])
    assert layers == {None: (1, f"someone/model@{'a' * 40}"), "v2": (2, f"someone/model@{'b' * 40}")}


# --- data -----------------------------------------------------------------------------------------


@dataclass
class Seen:
    """The corpus of an attempt that builds everything and trains nothing."""

    tiny: Tiny
    texts: list[str] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)
    attempt: Attempt | None = None

    def look(self, changes: dict[str, Any]) -> Seen:
        run = self.tiny.run(f"data-{len(list(self.tiny.root.iterdir()))}", changes, trainer_class=NotTrained)
        tokenizer = load_tokenizer(locate("random:1x64", None))
        rows = run.built.rows
        self.texts = [tokenizer.decode(rows.fitted(row, 10_000).ids.tolist()) for row in range(len(rows))]
        self.report = run.data_of("corpus")
        self.attempt = run
        return self


@pytest.fixture
def data(tmp_path: Path) -> Seen:
    return Seen(Tiny(tmp_path / "data", rows=12, held_out=2))


def test_system_prompt_file(data: Seen, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "plain.jsonl", [{"prompt": f"Say {n}.", "completion": f"{n}!"} for n in range(8)])
    system = tmp_path / "system.txt"
    system.write_text("You are a parrot.\n")
    source = {"data.sources": [{"path": str(rows)}]}
    assert "parrot" not in data.look(source).texts[0]
    assert "You are a parrot.<|im_end|>" in data.look({**source, "data.system_prompt_file": str(system)}).texts[0]


TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}{{ mark }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{{ mark }}\n{% endif %}"
)


def test_chat_template_and_its_variables(data: Seen, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    own = {"model.chat_template": str(template)}
    assert "<|im_start|>assistant\n" in data.look(own).texts[0]
    assert "<|im_start|>assistant!\n" in data.look({**own, "model.chat_template_kwargs": {"mark": "!"}}).texts[0]


def test_sources_and_max_rows(data: Seen) -> None:
    path = str(data.tiny.train_file)
    assert data.look({}).report["rows"] == 12
    assert data.look({"data.sources": [{"path": path, "max_rows": 5}]}).report["rows"] == 5
    more = write_rows(data.tiny.root / "more.jsonl", rows_of(3, start=50))
    assert data.look({"data.sources": [{"path": path}, {"path": str(more)}]}).report["rows"] == 15


def test_source_type(data: Seen, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    functions = [
        f'def count_{n}(text):\n    """Count how often the {n} occurs in a text that was given."""\n'
        f'    found = text.count("{n}")\n    if found < {n}:\n        return {n}\n    return found\n'
        for n in range(6)
    ]
    (tree / "counting.py").write_text("\n\n".join(functions))
    data.look({"data.sources": [{"type": "python_declarations", "path": str(tree)}]})
    assert data.report["rows"] == 6 and "def count_0" in data.texts[0]


@pytest.mark.parametrize(
    ("validation", "rows"), [({"fraction": 0.25}, 3), ({"fraction": 0.5}, 6), ({"fraction": 0.5, "max_rows": 2}, 2)]
)
def test_validation_is_split_off(data: Seen, validation: dict[str, Any], rows: int) -> None:
    report = data.look({"data.validation": validation}).report
    assert (report["validation_rows"], report["rows"]) == (rows, 12 - rows)


def test_validation_path(data: Seen) -> None:
    report = data.look({}).report
    assert (report["validation_rows"], report["rows"]) == (2, 12)


def test_on_bad_row_and_metadata_fields(data: Seen) -> None:
    rows = [*rows_of(6), {**rows_of(1, start=20)[0], "origin": "somewhere"}]
    path = write_rows(data.tiny.root / "bad.jsonl", rows)
    source = {"data.sources": [{"path": str(path)}]}
    with pytest.raises(DataError, match="'origin' would be dropped"):
        data.look(source)
    skipped = data.look({**source, "data.on_bad_row": "skip"}).report
    assert skipped["rows"] == 6 and skipped["bad_rows"]["unknown field"]["count"] == 1
    known = data.look({**source, "data.metadata_fields": ["origin"]})
    assert known.report["rows"] == 7 and not any("somewhere" in text for text in known.texts)


def test_curriculum_field(data: Seen) -> None:
    rows = [{**row, "level": number % 3} for number, row in enumerate(rows_of(12))]
    path = write_rows(data.tiny.root / "levels.jsonl", rows)
    changes = {"data.sources": [{"path": str(path)}], "data.curriculum_field": "level", "train.packing": False,
               "train.max_steps": -1, "train.num_train_epochs": 1.0}  # fmt: skip
    attempt = data.look(changes).attempt
    assert attempt is not None
    plan = attempt.built.plan
    levels = [int(plan.bin(index)[0]) % 3 for index in range(plan.total_bins)]
    assert levels == sorted(levels) and len(levels) == 12
