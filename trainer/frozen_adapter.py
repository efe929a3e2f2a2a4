"""A second LoRA adapter on the same layers: computed with, beside the one that is trained, and never trained itself.

It is what FedEx-LoRA's mean factors miss (trainer/federated/products.py): an NF4 base cannot take it in.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict

from trainer.errors import CheckpointIncompatibleError

TRAINED, FROZEN = "default", "residual"


def put_frozen(model: PeftModel, tensors: Mapping[str, torch.Tensor]) -> None:
    """Compute with these factors (names of adapter_model.safetensors, one rank) instead of earlier ones.

    They are scaled as the trained adapter is (lora_alpha / r of it). Draws no random number. Raises
    CheckpointIncompatibleError when they are of other layers, or of another rank than those before.
    """
    if FROZEN not in model.peft_config:
        _add(model, next((tensor.shape[0] for name, tensor in tensors.items() if ".lora_A." in name), 0))
    expected = get_peft_model_state_dict(model, adapter_name=FROZEN, save_embedding_layers=False)
    wrong = sorted(
        name
        for name in {*tensors, *expected}
        if name not in tensors or name not in expected or tensors[name].shape != expected[name].shape
    )
    if wrong:
        raise CheckpointIncompatibleError(
            f"the frozen adapter does not fit this training, among others {wrong[0]}: it has other layers or another "
            "rank. Begin with a new run directory."
        )
    set_peft_model_state_dict(model, dict(tensors), adapter_name=FROZEN)


def frozen_parameters(model: PeftModel) -> dict[str, torch.nn.Parameter]:
    """The live factors by the names of adapter_model.safetensors; none where there is no frozen adapter."""
    if FROZEN not in model.peft_config:
        return {}
    return {
        name.replace(f".{FROZEN}.", "."): parameter
        for name, parameter in model.named_parameters()
        if f".{FROZEN}." in name
    }


def _add(model: PeftModel, rank: int) -> None:
    trained = model.peft_config[TRAINED]
    config = copy.deepcopy(trained)
    config.r, config.lora_alpha = rank, trained.lora_alpha / trained.r * rank
    config.lora_dropout, config.inference_mode = 0.0, True
    # PEFT draws first values that nobody will see.
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        model.add_adapter(FROZEN, config)
    # With both active PEFT would train both.
    model.base_model.set_adapter([TRAINED, FROZEN])
    for parameter in frozen_parameters(model).values():
        parameter.requires_grad_(False)
        parameter.data = parameter.data.float()
