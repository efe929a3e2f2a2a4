"""``python -m trainer.federated.size TRAIN.yaml``: what its adapter is, found on tensors without data, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


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

    path = Path(sys.argv[1])
    try:
        sections, _ = read_effective(path)
        base = absolute_base(sections.model.base, path.resolve().parent)
        config = full_config(find_shape(base, sections.model.revision).config)
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
    peft.base_model_name_or_path = base
    found = Blueprint(layout_of(shapes), lora.lora_alpha / lora.r, sections.train.seed, _plain(peft))
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    return 0


def _plain(config: Any) -> dict[str, Any]:
    """As PEFT writes it: sets as lists, enumerations by their values, for inference."""
    found = {key: sorted(value) if isinstance(value, set) else value for key, value in config.to_dict().items()}
    plain: dict[str, Any] = json.loads(json.dumps({**found, "inference_mode": True}))
    return plain


if __name__ == "__main__":
    sys.exit(main())
