"""The ``eval`` kind's sections of the YAML, which is a bench: what is asked, how often, and how it is judged. The model
comes from the command line, or from its ``sampler`` section. Free of torch; every field is read by somebody."""

from __future__ import annotations

from pydantic import StrictInt, StrictStr

from rft.config import (
    BudgetSection,
    CorpusSection,
    JudgeSection,
    RftSections,
    SamplerSection,
    SamplingSection,
    TasksSection,
)
from trainer.config import Section


class EvalSections(Section):
    seed: StrictInt = 0
    """Of sampling and of which tasks are taken; models that are compared need the same one."""
    tasks: TasksSection
    """What is asked: the sources of a sampling job, every task of them."""
    sampler: SamplerSection
    """What is sampled from; `mens-sup eval run --model` and `--adapter` set it."""
    sampling: SamplingSection = SamplingSection()
    """How; every task gets samples_per_task samples, no more and no fewer."""
    judge: JudgeSection = JudgeSection()
    until: StrictStr | None = None
    """A gate's file: the evaluation ends as soon as that gate knows the answer; `mens-sup eval run --until` sets it."""


def as_job(sections: EvalSections) -> RftSections:
    """The sampling job that an evaluation is: a fixed number of samples for every task, nothing left out."""
    return RftSections(
        seed=sections.seed,
        tasks=sections.tasks,
        sampler=sections.sampler,
        sampling=sections.sampling,
        judge=sections.judge,
        budget=BudgetSection(adaptive=False),
        corpus=CorpusSection(distinct="text"),
    )
