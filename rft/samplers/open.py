"""From a sampler section to a sampler."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from rft.config import SamplerSection, SamplingSection
from rft.samplers import frames
from rft.samplers.openai_sampler import OpenAISampler
from rft.samplers.renderer import PromptRenderer, prompt_renderer
from rft.samplers.restarts import Announce
from rft.samplers.sampler import Sampler, SamplerUnusableError
from rft.samplers.settings import setting_problems
from rft.samplers.vllm_env import engine_arguments, find_environment, hopeless, process_environment
from rft.samplers.vllm_server import GRACE_SECONDS, VllmServerSampler
from rft.samplers.worker_sampler import Program, WorkerSampler
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
    if problems := setting_problems(section):
        raise SamplerUnusableError(" ".join(f"{problem.message}. {problem.remedy}" for problem in problems))
    log = RunPaths(run_dir).attempt(attempt).root / LOG_NAME
    say: Callable[[str], None] = announce or (lambda sentence: None)
    if section.type == "openai":
        return OpenAISampler(section, sampling, say)
    if section.type == "transformers":
        return WorkerSampler(_transformers(section), section, sampling, _renderer(section), log, say)
    if section.type == "vllm":
        environment = find_environment(section)
        return VllmServerSampler(environment, section, sampling, _renderer(section), log, say)
    return WorkerSampler(_vllm_offline(section), section, sampling, _renderer(section), log, say)


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
    )


def _vllm_offline(section: SamplerSection) -> Program:
    environment = find_environment(section)
    worker = Path(frames.__file__).with_name("vllm_worker.py")
    return Program(
        name="vLLM engine",
        command=[str(environment.python), "-P", str(worker), frames.__file__],
        environment=process_environment(environment.cpu),
        grace=GRACE_SECONDS,
        hint=hopeless,
        engine=lambda model: engine_arguments(section, environment.cpu, model),
    )
