"""Every rung of relief once, in a run of the real trainer that it carries to the end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from real_runs import QUICK, events, faults, final_manifest, log_of, mens_sup, report, run, same_adapter, state

from supervisor.protocol.paths import RunPaths
from supervisor.yaml_source import read_yaml

ONCE = faults({"do": "oom", "at": 8, "limit": 0, "attempt": 1})
AUTO = {"device": "auto"}
"""On a machine without a GPU this trains on the CPU, but what helps a GPU is offered."""
OWN = {
    "name": "no_dropout",
    "set": {"model.lora.lora_dropout": 0.0, "train.gradient_checkpointing": True},
    "helps": ["cuda_oom"],
    "price": "no more dropout",
}
Case = tuple[Mapping[str, Any], Mapping[str, Any], bool, bool]
RUNGS: dict[str, Case] = {
    "expandable_segments": (AUTO, {"launch.env.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, True, True),
    "halve_micro_batch": (
        {}, {"train.per_device_train_batch_size": 1, "train.gradient_accumulation_steps": 4}, True, False,
    ),
    "checkpoint_activations": ({}, {"train.gradient_checkpointing": True}, True, True),
    "paged_optimizer": (AUTO, {"train.optim": "paged_adamw_8bit"}, False, False),
    "shorten_sequence": ({"relief.seq_len_rungs": [96, 64]}, {"train.max_length": 64}, False, False),
    "switch_model": (
        {"model.base": "random:2x64", "model.fallback": {"base": "random:1x64"}},
        {"model.base": "random:1x64"}, False, True,
    ),
    "no_dropout": ({"relief.ladder": [OWN]}, {"model.lora.lora_dropout": 0.0}, False, False),
}  # fmt: skip
"""Rung -> changes to QUICK, what it sets, whether it is lossless, whether the adapter is that of QUICK bit for bit."""


# proves SUP-3, SUP-4: taken alone, announced with its price before it works, the run completes with it
@pytest.mark.slow
@pytest.mark.parametrize("rung", RUNGS)
def test_one_rung_carries_the_run_to_its_end(tmp_path: Path, undisturbed: Path, rung: str) -> None:
    changes, sets, lossless, identical = RUNGS[rung]
    place = tmp_path / "run"
    assert run(place, {**QUICK, "relief.ladder": [rung], **changes, **ONCE}) == 0, log_of(place).read_text()
    found = state(place)
    (taken,) = found.relief
    assert (taken.rung, taken.lossless, found.attempt) == (rung, lossless, 2)
    assert {key: taken.patches[key] for key in sets} == dict(sets)
    effective, _ = read_yaml(RunPaths(place).attempt(2).effective)
    for key, value in sets.items():
        at: Any = effective
        for part in key.split("."):
            at = at[part]
        assert at == value
    last = report(place, 2)
    assert last.done == last.planned
    assert final_manifest(place).step == 12
    assert not identical or same_adapter(place, undisturbed)
    announced = events(place, "relief")[0]
    assert taken.price in announced.message
    assert announced.time < events(place, "attempt_started")[1].time
    assert taken.price in mens_sup("status", place).stdout.replace("\n", " ")
