"""What a checkpoint or a snapshot holds, taken from a trainer that stands at a step boundary."""

from __future__ import annotations

import copy
import dataclasses
import functools
import random
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import TrainerState

from trainer.checkpoint import (
    ADAPTER_FILE,
    OPTIMISER_FILE,
    OPTIMISER_REST_FILE,
    DataPosition,
    Progress,
    StepState,
    trim_log_history,
)
from trainer.frozen_adapter import frozen_parameters
from trainer.model import trainable_parameters
from trainer.residual_file import RESIDUAL_FILE

_TENSOR = "$tensor"


class StateCollector:
    """Takes a model's and an optimiser's state again and again; what stays the same is worked out once."""

    def __init__(self, model: PeftModel, optimiser: torch.optim.Optimizer, scheduler: Any) -> None:
        self._model = model
        self._optimiser = optimiser
        self._scheduler = scheduler
        self._adapter_config = _adapter_config(model)
        self._adapter: dict[str, torch.Tensor] = {**_adapter_parameters(model)}
        self._frozen: dict[str, torch.Tensor] = {}

    def collect(
        self,
        state: TrainerState,
        progress: Progress,
        position: Callable[[], DataPosition],
        evaluations: bytes,
        rng_of_others: Sequence[Mapping[str, Any]] = (),
    ) -> StepState:
        """References to the live tensors, copies of everything else. Draws no random number.

        ``rng_of_others``: the random states of the ranks after this one.
        """
        moments: dict[str, torch.Tensor] = {}
        rest = take_out_tensors(self._optimiser.state_dict(), "", moments)
        self._frozen = self._frozen or {**frozen_parameters(self._model)}  # it may come at any step, and then stays
        return StepState(
            tensors={
                ADAPTER_FILE: self._adapter,
                OPTIMISER_FILE: moments,
                **({RESIDUAL_FILE: self._frozen} if self._frozen else {}),
            },
            optimiser_rest=rest,
            scheduler=copy.deepcopy(self._scheduler.state_dict()),
            rng=random_state(),
            trainer_state=_plain(state),
            adapter_config=self._adapter_config,
            progress=progress,
            position=functools.cache(position),
            evaluations=evaluations,
            rng_of_others=tuple(rng_of_others),
        )


def _adapter_parameters(model: PeftModel) -> dict[str, torch.nn.Parameter]:
    """The adapter's parameters under the names that PEFT gives them in a file."""
    # At the end of a name for embeddings, in the middle for linear layers.
    parameters = {re.sub(r"\.default(?=\.|$)", "", name): each for name, each in trainable_parameters(model).items()}
    # save_embedding_layers=False: the automatic choice asks the hub about the base model.
    expected = get_peft_model_state_dict(model, save_embedding_layers=False)
    if set(parameters) != set(expected):
        different = sorted(set(parameters) ^ set(expected))
        raise AssertionError(f"PEFT saves other tensors than are trained, among them {different[0]}")
    return parameters


def _adapter_config(model: PeftModel) -> bytes:
    config = copy.deepcopy(model.peft_config["default"])
    config.inference_mode = True
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        return (Path(folder) / "adapter_config.json").read_bytes()


def random_state() -> dict[str, Any]:
    """In the form that transformers' Trainer restores; PyTorch hands out copies."""
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.random.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.random.get_rng_state()
    return states


def restore_random_state(path: Path) -> None:
    """Of one rank of several, whose GPU is the current one."""
    states = torch.load(path, weights_only=False)
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.random.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.random.set_rng_state(states["cuda"])


def _plain(state: TrainerState) -> dict[str, Any]:
    values = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    values["log_history"] = [dict(entry) for entry in trim_log_history(state.log_history)]
    values["stateful_callbacks"] = copy.deepcopy(state.stateful_callbacks)
    return values


# --- the optimiser's state ------------------------------------------------------------------------


def take_out_tensors(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """``value`` with every tensor replaced by its name in ``tensors``: 8-bit optimisers nest theirs."""
    if isinstance(value, torch.Tensor):
        tensors[name] = value
        return {_TENSOR: name}
    if isinstance(value, dict):
        return {str(key): take_out_tensors(item, f"{name}/{key}", tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [take_out_tensors(item, f"{name}/{index}", tensors) for index, item in enumerate(value)]
    return value


def put_in_tensors(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, dict):
        if set(value) == {_TENSOR}:
            return tensors[value[_TENSOR]]
        return {key: put_in_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [put_in_tensors(item, tensors) for item in value]
    return value


def read_optimiser_state(directory: Path) -> dict[str, Any]:
    """What the optimiser's ``load_state_dict`` takes."""
    tensors = load_file(str(directory / OPTIMISER_FILE), device="cpu")
    rest = msgspec.json.decode((directory / OPTIMISER_REST_FILE).read_bytes())
    found: dict[str, Any] = put_in_tensors(rest, tensors)
    found["state"] = {int(parameter): moments for parameter, moments in found["state"].items()}
    return found
