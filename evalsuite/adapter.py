"""Whether an adapter is what its training left, and how its prompts must look. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from rft.samplers.renderer import TEMPLATE_FILE, TEMPLATE_TEXT, read_adapter_template
from rft.samplers.sampler import SamplerUnusableError
from rft.samplers.weights import ADAPTER_FILES
from supervisor.jobs import Problem
from supervisor.protocol.manifest import MANIFEST_NAME, digest_file, read_manifest

KEY = "sampler.adapter.path"
RECORDED = 16
"""Characters of the template's hash in a manifest."""


def adapter_problems(folder: Path, model: str) -> Iterator[Problem]:
    """Why it can't be said that this adapter is evaluated as it was trained: with its weights, template and base."""
    remedy = "Name the folder of a checkpoint as `mens-sup run` writes it, such as runs/NAME/best."
    try:
        manifest = read_manifest(folder)
    except (OSError, msgspec.DecodeError) as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
        message = f"{folder / MANIFEST_NAME} {reason}, so nothing says with which template this adapter was trained"
        yield Problem(KEY, message, remedy)
        return
    try:
        template = read_adapter_template(folder)
    except SamplerUnusableError as error:
        yield Problem(KEY, str(error))
        return
    for name in (*ADAPTER_FILES, TEMPLATE_FILE, TEMPLATE_TEXT):
        recorded = manifest.files.get(name)
        if recorded is None or not (folder / name).is_file() or digest_file(folder / name) != recorded:
            message = f"{folder / name} is not what the training wrote (its digest is not that of {MANIFEST_NAME})"
            yield Problem(KEY, message, "Take the checkpoint from the run again; a changed one is another model.")
            return
    trained = manifest.identity.get("template", "")
    if trained != template.template_hash[:RECORDED]:
        message = f"{folder / TEMPLATE_FILE} says template {template.template_hash[:RECORDED]}, the training {trained}"
        yield Problem(KEY, message, remedy)
    base = manifest.identity.get("base", "").rpartition("@")[0]
    if base and base != model and not Path(base).is_absolute() and not Path(model).is_absolute():
        message = f"{folder} was trained on {base}, and the model is {model}"
        yield Problem(KEY, message, f"Evaluate it with --model {base}.")
