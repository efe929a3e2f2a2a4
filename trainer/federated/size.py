"""``python -m trainer.federated.size TRAIN.yaml``: what its adapter is, found without data, as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.config import SftSections


def main() -> int:
    import msgspec
    import numpy as np
    from peft import get_peft_model_state_dict

    from trainer.base_names import absolute_base
    from trainer.effective import read_effective
    from trainer.errors import ConfigurationError
    from trainer.federated.packed import Blueprint, layout_of
    from trainer.planner.shapes import UnknownShapeError, find_shape
    from trainer.planner.trace import build_on_meta, full_config

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("train", type=Path)
    parser.add_argument("--whole", action="store_true", help="with all that final/ holds; the base must be here")
    parser.add_argument("--begun-with", default="", metavar="BASE@REVISION", help="of a hub whose branch may move")
    options = parser.parse_args()
    path = options.train
    try:
        sections, _ = read_effective(path)
        base = absolute_base(sections.model.base, path.resolve().parent)
        config = full_config(find_shape(base, sections.model.revision).config)
        whole = _whole(path, sections, options.begun_with) if options.whole else {}
    except (UnknownShapeError, ConfigurationError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    # Quantised or not, the adapter is the same.
    plain = sections.model_copy(update={"model": sections.model.model_copy(update={"quantization": "none"})})
    model = build_on_meta(config, plain, "cpu")
    shapes = {
        name: np.empty(tuple(tensor.shape), np.float32)
        for name, tensor in get_peft_model_state_dict(model, save_embedding_layers=False).items()
    }
    lora = sections.model.lora
    peft = model.peft_config["default"]
    peft.base_model_name_or_path = whole.pop("reference", base)
    found = Blueprint(layout_of(shapes), lora.lora_alpha / lora.r, sections.train.seed, _plain(peft), **whole)
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    return 0


def _whole(path: Path, given: SftSections, begun_with: str) -> dict[str, Any]:
    """Fields of Blueprint, and ``reference``: what PEFT loads the base by. Raises ConfigurationError."""
    from ruamel.yaml import YAML

    from trainer.base_model import load_tokenizer, locate
    from trainer.checkpoint import library_versions
    from trainer.federated.common import common
    from trainer.job import SFT
    from trainer.run import make_renderer

    folder = path.resolve().parent
    sections = SFT.resolve(given, folder)
    name, _, revision = begun_with.rpartition("@")
    base = locate(sections.model.base, sections.model.revision or (revision if name == sections.model.base else None))
    renderer = make_renderer(sections, base, load_tokenizer(base))
    model, lora = sections.model, sections.model.lora
    targets = lora.target_modules if isinstance(lora.target_modules, str) else ",".join(sorted(lora.target_modules))
    gates = YAML(typ="safe", pure=True).load(path).get("gates") or []
    parts = sections.model_dump(mode="json", include={"device", "model", "train"})
    return {
        "template": renderer.describe(),
        "chat_template": renderer.chat_template,
        "identity": {
            "base": f"{base.name}@{base.revision}",
            "template": renderer.template_hash[:16],
            "adapter": f"alpha / rank {lora.lora_alpha / lora.r:g}, dropout {lora.lora_dropout:g}, targets {targets}",
            "precision": f"{model.quantization}, double_quant {model.double_quant}, dtype {model.dtype}",
        },
        "versions": library_versions(),
        "run": {"kind": "sft", **parts, "gates": [str((folder / Path(gate).expanduser()).resolve()) for gate in gates]},
        "reference": base.reference,
        "common": common(model, base.revision, renderer.template_hash),
    }


def _plain(config: Any) -> dict[str, Any]:
    """As PEFT writes it: sets as lists, enumerations by their values, for inference."""
    found = {key: sorted(value) if isinstance(value, set) else value for key, value in config.to_dict().items()}
    plain: dict[str, Any] = json.loads(json.dumps({**found, "inference_mode": True}))
    return plain


if __name__ == "__main__":
    sys.exit(main())
