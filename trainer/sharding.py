"""A frozen base divided among the ranks: each holds a part of every layer and borrows the rest while it computes.

The adapter stays whole in every rank, so gradients, optimiser, checkpoints and snapshots are those of plain data
parallelism; only what is large and never changes is divided.
"""

from __future__ import annotations

import torch
from bitsandbytes.nn import Linear4bit
from peft import PeftModel
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from trainer.errors import ConfigurationError
from trainer.model import trainable_parameters
from trainer.ranks import Ranks


def shard_base(model: PeftModel, device: torch.device, ranks: Ranks) -> tuple[int, int]:
    """Divide the frozen parameters, layer by layer, and bring everything to ``device``.

    Returns the bytes of frozen parameters that this rank holds, and those of all. The model may lie on the CPU: a
    device never holds more than one whole layer, and what is outside of layers. Raises ConfigurationError for a model
    that doesn't say what its layers are.
    """
    whole = _frozen_bytes(model)
    base = model.get_base_model()
    layers = [module for module in base.modules() if type(module).__name__ in set(base._no_split_modules or ())]
    if not layers:
        raise ConfigurationError(
            f"launch.strategy: fsdp divides the layers of a model, and {base.config.model_type} does not say what its "
            "layers are. Say ddp."
        )
    mesh = init_device_mesh(device.type, (ranks.size,))
    for layer in layers:
        layer.to(device)
        for linear in layer.modules():
            if isinstance(linear, Linear4bit):
                _release(linear)
        _share(layer, mesh)
    _share(model, mesh)  # what is outside of layers is brought to the device by this
    base.hf_device_map = {"": device.index if device.index is not None else str(device)}
    return _frozen_bytes(model), whole


def _frozen_bytes(model: PeftModel) -> int:
    frozen = (parameter.data for parameter in model.parameters() if not parameter.requires_grad)
    held = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in frozen)
    return sum(tensor.numel() * tensor.element_size() for tensor in held)


def _share(module: torch.nn.Module, mesh: DeviceMesh) -> None:
    fully_shard(module, mesh=mesh, ignored_params=set(trainable_parameters(module).values()))


def _release(linear: Linear4bit) -> None:
    """Leave the constants with the layer and the packed numbers as a plain parameter; its forward joins them again."""
    linear.quant_state = linear.weight.quant_state
    linear.weight = torch.nn.Parameter(linear.weight.data, requires_grad=False)
