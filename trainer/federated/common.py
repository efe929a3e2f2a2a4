"""What all boxes of a federation must have in common beside the adapter's layout: else their deltas are not of one sum.

The rest may differ from box to box: data, learning rate, batch, lengths, optimiser, dropout, the type computed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from trainer.config import ModelSection

NAMES = {"base": "base", "quantization": "quantization", "scale": "lora_alpha / r", "template": "chat template"}


class Common(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``base``: a hub commit or a digest of its files, wherever they lie. ``quantization`` of it: NF4's rounding makes
    another base. ``scale``: lora_alpha / r. ``template``: a hash of all that conversations are rendered with."""

    base: str
    quantization: str
    scale: float
    template: str


def common(model: ModelSection, revision: str, template_hash: str) -> Common:
    return Common(revision, model.quantization, model.lora.lora_alpha / model.lora.r, template_hash)


def differences(wanted: Common, found: Common) -> str:
    """For people; empty between two that are equal."""
    pairs = [(named, getattr(wanted, name), getattr(found, name)) for name, named in NAMES.items()]
    return "; ".join(f"{named} {here} instead of {there}" for named, there, here in pairs if here != there)
