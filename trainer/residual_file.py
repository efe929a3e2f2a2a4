"""The file of a second, frozen adapter beside a trained one, and what it means for whoever wants to use the latter.

One box's checkpoint of a federation in exact mode holds both (docs/federated.md). Only together are they what was
trained, and nothing but that training puts them together. Free of torch.
"""

from __future__ import annotations

from pathlib import Path

RESIDUAL_FILE = "residual_adapter.safetensors"


def half_problem(folder: Path) -> str | None:
    """Why the adapter in ``folder`` must not be used by itself; None when it may be."""
    if not (folder / RESIDUAL_FILE).is_file():
        return None
    return (
        f"{folder} is one box's checkpoint of a federation with aggregation.mode: exact, and without its "
        f"{RESIDUAL_FILE} the adapter in it is only a part of what was trained. Use the federation's own final/, which "
        "holds all of it in one adapter."
    )
