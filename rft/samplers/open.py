"""From a sampler section to a sampler."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from rft.config import SamplerSection, SamplingSection
from rft.samplers.renderer import PromptRenderer, prompt_renderer
from rft.samplers.sampler import Sampler, SamplerUnusableError
from rft.samplers.worker_sampler import Announce, Program, WorkerSampler
from supervisor.protocol.paths import RunPaths
from trainer.base_names import is_local

LOG_NAME = "sampler.log"


def open_sampler(
    section: SamplerSection,
    sampling: SamplingSection,
    run_dir: Path,
    attempt: int,
    announce: Announce | None = None,
) -> Sampler:
    """The sampler of a job, not started yet. Its output goes to ``sampler.log`` beside the attempt's other logs.

    ``announce`` receives a sentence whenever the sampler dies and is started again, or is not as good as it should be.
    Raises SamplerUnusableError when it can be told without starting anything that it cannot work.
    """
    log = RunPaths(run_dir).attempt(attempt).root / LOG_NAME
    say: Callable[[str], None] = announce or (lambda sentence: None)
    if section.type == "transformers":
        return WorkerSampler(_transformers(section), section, sampling, _renderer(section), log, say)
    raise SamplerUnusableError(f"sampler.type: {section.type} is not there yet")


def _renderer(section: SamplerSection) -> PromptRenderer:
    renderer = prompt_renderer(section)
    assert renderer is not None, "every sampler but openai renders here"
    return renderer


def _transformers(section: SamplerSection) -> Program:
    environment = dict(os.environ)
    if is_local(section.model):
        environment["HF_HUB_OFFLINE"] = "1"
    if section.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return Program(
        name="transformers sampler",
        command=[sys.executable, "-P", "-m", "rft.samplers.transformers_worker"],
        environment=environment,
        grace=0.0,
        hint=lambda lines: None,
    )
