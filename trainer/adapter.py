"""Opening a trained adapter for inference, together with the template that it was trained with."""

from __future__ import annotations

from pathlib import Path

import msgspec
from peft import PeftModel
from transformers import PreTrainedModel

from trainer.checkpoint import TEMPLATE_FILE
from trainer.data.render import Renderer
from trainer.errors import CheckpointCorruptError, CheckpointIncompatibleError
from trainer.residual_file import half_problem


class _Template(msgspec.Struct):
    template_hash: str


def open_adapter(base: PreTrainedModel, directory: Path, renderer: Renderer) -> PeftModel:
    """``base`` with the adapter of a checkpoint folder on it, in evaluation mode.

    ``renderer`` is the one that will write the prompts. Raises CheckpointIncompatibleError when it isn't the training's
    or the adapter is only a part of what was trained, CheckpointCorruptError when the folder doesn't say which one that
    was.
    """
    if problem := half_problem(directory):
        raise CheckpointIncompatibleError(problem)
    path = directory / TEMPLATE_FILE
    try:
        trained_with = msgspec.json.decode(path.read_bytes(), type=_Template).template_hash
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointCorruptError(
            f"{path}: unreadable ({error}); without it nobody can tell how this adapter's prompts must look"
        ) from error
    if trained_with != renderer.template_hash:
        raise CheckpointIncompatibleError(
            f"{directory} was trained with the chat template {trained_with[:16]}, prompts would be written with "
            f"{renderer.template_hash[:16]}. Use chat_template.jinja, the template variables and the system prompt "
            f"that lie beside the adapter ({TEMPLATE_FILE})."
        )
    return PeftModel.from_pretrained(base, str(directory)).eval()
