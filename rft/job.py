"""The ``rft`` kind: its checks before launch, its command and the relief it understands."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rft.config import RftSections, SamplerSection, TaskSourceSection, VerifierSection
from supervisor.jobs import Patch, Problem, Relief, Rung
from trainer.base_names import absolute_base
from trainer.job import base_problems, file_problems

ADAPTER_FILE = "adapter_config.json"
TEMPLATE_FILES = ("template.json", "chat_template.jinja")


def halve_sequences(config: Mapping[str, Any], facts: Mapping[str, Any]) -> Relief | None:
    """Half the samples drawn at a time. They have seeds of their own, so the same ones come, more slowly."""
    sampler = config["sampler"]
    at_a_time = sampler["max_num_seqs"]
    if at_a_time < 2 or sampler["type"] == "openai":
        return None
    return Relief(
        rung="halve_micro_batch",
        patches=(Patch("sampler.max_num_seqs", at_a_time, at_a_time // 2),),
        price=f"samples drawn at a time {at_a_time} -> {at_a_time // 2}: sampling gets slower, nothing is lost",
        lossless=True,
        helps=("cuda_oom", "cuda_oom_foreign", "oom_at_load", "host_oom"),
    )


class RftKind:
    """Implements :class:`supervisor.jobs.JobKind`."""

    name = "rft"
    keeps_own_state = True
    schema: type[BaseModel] = RftSections
    rungs: Mapping[str, Rung] = {"halve_micro_batch": halve_sequences}

    def resolve(self, sections: BaseModel, base: Path) -> RftSections:
        assert isinstance(sections, RftSections)

        def absolute(path: str | None) -> str | None:
            return None if path is None else str((base / Path(path).expanduser()).resolve())

        sampler, tasks = sections.sampler, sections.tasks
        local = sampler.type != "openai"
        adapter = sampler.adapter and sampler.adapter.model_copy(update={"path": absolute(sampler.adapter.path)})
        python = sampler.python
        if python is not None and "/" in python:
            # not Path.resolve(): a virtual environment's interpreter is a link that must stay one
            python = str((base / Path(python).expanduser()).absolute())
        return sections.model_copy(
            update={
                "tasks": tasks.model_copy(
                    update={
                        "sources": [_resolved_source(source, base) for source in tasks.sources],
                        "exclude_benches": [_bench(name, base) for name in tasks.exclude_benches],
                    }
                ),
                "sampler": sampler.model_copy(
                    update={
                        "model": absolute_base(sampler.model, base) if local else sampler.model,
                        "adapter": adapter,
                        "template_of": absolute(sampler.template_of),
                        "chat_template": absolute(sampler.chat_template),
                        "api_key_file": absolute(sampler.api_key_file),
                        "python": python,
                    }
                ),
            }
        )

    def preflight(self, sections: BaseModel) -> list[Problem]:
        from rft.tasks.load import task_problems

        assert isinstance(sections, RftSections)
        return [
            *_sampler_problems(sections.sampler),
            *_combination_problems(sections),
            *_verifier_problems(sections),
            *task_problems(sections.tasks),
        ]

    def device(self, sections: BaseModel) -> str:
        """cuda, cpu or auto: where samples are drawn; another server's are drawn elsewhere."""
        assert isinstance(sections, RftSections)
        return "cpu" if sections.sampler.type == "openai" else sections.sampler.device

    def command(self, sections: BaseModel) -> list[str]:
        # -P: an rft.py in the user's current folder must not shadow the real one.
        return ["-P", "-m", "rft"]


def _resolved_source(source: TaskSourceSection, base: Path) -> TaskSourceSection:
    path = source.path
    if path is not None and path != "stdlib":
        path = str(base / Path(path).expanduser())  # a glob stays one
    return source.model_copy(update={"path": path, "verifier": source.verifier and _located(source.verifier, base)})


def _located(verifier: VerifierSection, base: Path) -> VerifierSection:
    from rft.verifiers.registry import located_settings

    return verifier.model_copy(update={"settings": dict(located_settings(verifier.name, verifier.settings, base))})


def _bench(name: str, base: Path) -> str:
    path = base / Path(name).expanduser()
    return str(path.resolve()) if "/" in name or path.is_file() else name


def _sampler_problems(sampler: SamplerSection) -> Iterator[Problem]:
    yield from file_problems("sampler.chat_template", sampler.chat_template)
    if sampler.template_of is not None:
        for name in TEMPLATE_FILES:
            yield from file_problems("sampler.template_of", str(Path(sampler.template_of) / name))
    if sampler.adapter is not None and not (Path(sampler.adapter.path) / ADAPTER_FILE).is_file():
        message = f"{sampler.adapter.path} holds no adapter (no {ADAPTER_FILE})"
        yield Problem("sampler.adapter.path", message, "Name the folder of a checkpoint, such as runs/NAME/final.")
    if sampler.type == "openai":
        if sampler.base_url is None:
            remedy = "Give the server's address, ending in /v1."
            yield Problem("sampler.base_url", "sampler.type openai needs base_url", remedy)
        yield from file_problems("sampler.api_key_file", sampler.api_key_file)
        if sampler.adapter is not None:
            message = "sampler.adapter: what a server of others samples with cannot be set here"
            yield Problem("sampler.adapter", message, "Give the model's name for the adapter as sampler.model.")
        return
    yield from base_problems("sampler.model", sampler.model, sampler.revision)
    if sampler.python is not None and shutil.which(sampler.python) is None:
        message = f"sampler.python: {sampler.python} is no program that can be run"
        yield Problem("sampler.python", message, "Name the interpreter of an environment with vLLM (`make vllm`).")


def _combination_problems(sections: RftSections) -> Iterator[Problem]:
    sampler, sampling, budget, spend = sections.sampler, sections.sampling, sections.budget, sections.spend
    if sampling.temperature == 0 and sampling.samples_per_task > 1:
        message = "sampling.temperature 0 draws the same answer every time, and samples_per_task asks for several"
        yield Problem("sampling.temperature", message, "Raise the temperature, or set samples_per_task to 1.")
    if sampling.max_new_tokens >= sampler.max_model_len:
        message = (
            f"sampling.max_new_tokens ({sampling.max_new_tokens}) leaves no room for a prompt in "
            f"sampler.max_model_len ({sampler.max_model_len})"
        )
        yield Problem("sampling.max_new_tokens", message, "Lower it, or raise sampler.max_model_len.")
    if budget.adaptive and budget.accepted_per_task > sampling.samples_per_task:
        message = (
            f"budget.accepted_per_task ({budget.accepted_per_task}) is more than sampling.samples_per_task "
            f"({sampling.samples_per_task}), so no task would ever have enough"
        )
        yield Problem("budget.accepted_per_task", message, "Lower it, or raise sampling.samples_per_task.")
    prices = (
        spend.price_per_million_prompt_tokens, spend.price_per_million_completion_tokens, spend.price_per_hour
    )  # fmt: skip
    if spend.max_cost is not None and not any(prices):
        message = "spend.max_cost cannot be kept: no price is given"
        yield Problem("spend.max_cost", message, "Give spend.price_per_hour or the prices per million tokens.")


def _verifier_problems(sections: RftSections) -> Iterator[Problem]:
    from rft.verifiers.registry import settings_problems

    for number, source in enumerate(sections.tasks.sources):
        if source.verifier is not None:
            key = f"tasks.sources.{number}.verifier"
            for text in settings_problems(source.verifier.name, source.verifier.settings):
                yield Problem(key, text)


RFT = RftKind()
