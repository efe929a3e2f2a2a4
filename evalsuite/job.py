"""The ``eval`` kind: its checks before launch, its command and the relief it understands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from evalsuite.config import EvalSections, as_job
from rft.job import ADAPTER_FILE, RFT, halve_sequences
from supervisor.jobs import Problem, Rung


class EvalKind:
    """Implements :class:`supervisor.jobs.JobKind`."""

    name = "eval"
    keeps_own_state = True
    schema: type[BaseModel] = EvalSections
    rungs: Mapping[str, Rung] = {"halve_micro_batch": halve_sequences}

    def resolve(self, sections: BaseModel, base: Path) -> EvalSections:
        assert isinstance(sections, EvalSections)
        job = RFT.resolve(as_job(sections), base)
        until = None if sections.until is None else str((base / Path(sections.until).expanduser()).resolve())
        return sections.model_copy(update={"tasks": job.tasks, "sampler": job.sampler, "until": until})

    def preflight(self, sections: BaseModel) -> list[Problem]:
        from evalsuite.adapter import adapter_problems

        assert isinstance(sections, EvalSections)
        problems = RFT.preflight(as_job(sections))
        if sections.tasks.exclude_benches:
            message = "tasks.exclude_benches leaves tasks out, and a bench asks all of them"
            problems.append(Problem("tasks.exclude_benches", message, "Remove it."))
        adapter = sections.sampler.adapter
        if adapter is not None and (Path(adapter.path) / ADAPTER_FILE).is_file():
            problems += adapter_problems(Path(adapter.path), sections.sampler.model)
        return problems

    def device(self, sections: BaseModel) -> str:
        assert isinstance(sections, EvalSections)
        return RFT.device(as_job(sections))

    def command(self, sections: BaseModel) -> list[str]:
        # -P: an evalsuite.py in the user's current folder must not shadow the real one.
        return ["-P", "-m", "evalsuite"]


EVAL = EvalKind()
