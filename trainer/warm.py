"""Getting ready before there is a job: imports, and what the next attempt will share with the present one.

Nothing here touches a GPU or takes a lock, and no random number that is drawn here is missing from what an attempt
draws: one that begins in a process made ready here computes what one does that begins in a new process.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.protocol.attempt import read_spec
from trainer.base_names import is_local

if TYPE_CHECKING:
    from trainer.base_model import BaseModel
    from trainer.config import SftSections

OFFLINE = "HF_HUB_OFFLINE"
"""Read by huggingface_hub when it is imported."""

_STACK = (
    "trainer.run",
    "peft.tuners.lora.bnb",
    "peft.utils.transformers_weight_conversion",
    "torch.utils.serialization",
    "transformers.integrations.bitsandbytes",
)
"""The stack, and what of it is otherwise imported only while loading or in the first step."""

_imported_with: list[str | None] = []


def hide_gpus() -> None:
    """For `device: cpu`: no library may take up memory of a card, or look at one that is sick."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def get_ready(present: Path) -> None:
    """Import the stack as the attempt that ``present`` (its attempt.json) describes did, and read its tokenizer.

    For `device: cpu` the model as well, where there is memory for it.
    """
    from trainer.effective import read_effective

    sections, _ = read_effective(Path(read_spec(present).effective_config))
    if sections.device == "cpu":
        hide_gpus()
    local = is_local(sections.model.base)
    before = os.environ.get(OFFLINE)
    if local:
        os.environ.setdefault(OFFLINE, "1")
    _imported_with.append(os.environ.get(OFFLINE))

    for name in _STACK:
        import_module(name)
    from trainer.base_model import locate, preload_tokenizer

    if local:  # of a hub model only the job knows which revision
        base = locate(sections.model.base, sections.model.revision)
        preload_tokenizer(base)
        if sections.device == "cpu":
            _hold_model(base, sections)
    if before is None:
        os.environ.pop(OFFLINE, None)
    gc.collect()
    gc.freeze()  # half a million objects of the imports that no later collection needs to look at


def _hold_model(base: BaseModel, sections: SftSections) -> None:
    from transformers.utils import logging

    from trainer.held_model import hold_model
    from trainer.numerics import settle_vector_maths

    settle_vector_maths()
    logging.disable_progress_bar()
    hold_model(base, sections.model, sections.train.seed)


def start_afresh_if_imported_otherwise() -> None:
    """Replace this process by a new one when the stack was imported with another setting than the job's."""
    if _imported_with and _imported_with[0] != os.environ.get(OFFLINE):
        os.execv(sys.executable, sys.orig_argv)
