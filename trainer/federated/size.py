"""``python -m trainer.federated.size TRAIN.yaml``: the parameters of its adapter, counted on tensors without data."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    from trainer.base_names import absolute_base
    from trainer.effective import read_effective
    from trainer.errors import ConfigurationError
    from trainer.model import trainable_parameters
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
    sys.stdout.write(f"{sum(parameter.numel() for parameter in trainable_parameters(model).values())}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
