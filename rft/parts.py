"""What a job is made of when it is no test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rft.config import JudgeSection, RftSections, SamplerSection, SamplingSection
from rft.run import Parts
from rft.samplers.sampler import Sampler
from rft.scheduler import Render
from rft.tasks.load import LoadReport
from rft.tasks.task import Task
from rft.verifiers.verifier import Verifier
from trainer.cache import cache_root
from trainer.errors import DataProblemError


def load_tasks(sections: RftSections, report: LoadReport | None = None) -> Iterator[Task]:
    from rft.tasks.load import load_tasks as load

    return load(sections.tasks, sections.seed, report)


def load_every_task(sections: RftSections, report: LoadReport | None = None) -> Iterator[Task]:
    """Repeated ones as well: those of a bench."""
    from rft.tasks.load import load_tasks as load

    return load(sections.tasks, sections.seed, report, keep_repeated=True)


def build_verifier(name: str, settings: Mapping[str, object], judge: JudgeSection) -> Verifier:
    """With the user's cache of verdicts around it, unless the job does without."""
    from rft.verifiers.registry import build

    verifier = build(name, settings, judge)
    if not judge.cache:
        return verifier
    from rft.verifiers.cache import CachedVerifier

    return CachedVerifier(verifier, cache_root() / "verdicts.sqlite")


def open_sampler(
    section: SamplerSection, sampling: SamplingSection, run_dir: Path, attempt: int, announce: Callable[[str], None]
) -> Sampler:
    from rft.samplers.open import open_sampler as open_it

    return open_it(section, sampling, run_dir, attempt, announce)


def render(section: SamplerSection) -> Render:
    from rft.samplers.renderer import PromptError, prompt_renderer

    renderer = prompt_renderer(section)
    if renderer is None:
        return lambda task: ()

    def ids(task: Task) -> tuple[int, ...]:
        try:
            return renderer.ids(task.messages, task.tools)
        except PromptError as error:
            where = f"{task.file}:{task.line}: " if task.file else ""
            raise DataProblemError(f"{where}task {task.id}: {error}") from None

    return ids


def remember_speed(section: SamplerSection, tokens: int, samples: int, seconds: float) -> None:
    from rft.speed import remember_speed as remember

    with contextlib.suppress(OSError):  # an estimate less, when the cache cannot be written
        remember(section, tokens, samples, seconds)


PARTS = Parts(load_tasks, build_verifier, open_sampler, render, remember_speed)
