"""Evaluations in folders, asked of a toy model by the real program: bench file, samples, verdicts, scores."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from ruamel.yaml import YAML

sys.path.insert(0, str(Path(__file__).parents[1] / "rft"))
from toy_job import ToySampler, ToyVerifier, attempt, parts

from evalsuite.attempt import evaluate
from evalsuite.config import EvalSections, as_job
from rft.effective import Effective
from rft.job import RFT
from rft.parts import load_every_task
from rft.samplers.sampler import Completion, Refused, Request, SamplerIdentity
from supervisor.protocol.paths import RunPaths
from trainer.reporting import Reporter

SAMPLES = 4


class ToyModel(ToySampler):
    """Answers wrong, with a chance of ``drop``, where the toy sampler would answer right."""

    def __init__(self, adapter: str | None = None, effect: float | None = 0.5, drop: float = 0.0) -> None:
        super().__init__()
        self._adapter, self._effect, self._drop = adapter, effect, drop
        self.template = "t1"

    def start(self, *heard: Any) -> SamplerIdentity:
        return msgspec.structs.replace(
            super().start(*heard),
            adapter=self._adapter,
            adapter_digest=self._adapter,
            adapter_effect=None if self._adapter is None else self._effect,
            template_hash=self.template,
        )

    def _drawn(self, request: Request) -> Completion | Refused:
        found = super()._drawn(request)
        if isinstance(found, Completion) and request.seed % 1000 < 1000 * self._drop:
            return msgspec.structs.replace(found, text="no idea")
        return found


def write_bench(folder: Path, tasks: int = 40, change: Callable[[int], str] = lambda at: "") -> Path:
    """A bench of ``tasks`` sums; ``change`` goes into the prompt of a task."""
    rows = [
        {"id": str(at), "prompt": f"What is {at} + {at}? {change(at)} {(at % 5) / 4}", "answer": str(2 * at)}
        for at in range(tasks)
    ]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    bench = folder / "bench.yaml"
    document = {
        "kind": "eval", "name": "sums", "seed": 7,
        "tasks": {"sources": [{"name": "sums", "type": "jsonl", "path": "sums.jsonl"}]},
        "sampler": {"model": "toy"}, "sampling": {"samples_per_task": SAMPLES},
    }  # fmt: skip
    YAML(typ="safe").dump(document, bench)
    return bench


def evaluated(bench: Path, out: Path, model: ToyModel, **changed: Any) -> Path:
    """``out``, with samples and scores of ``model``; ``changed``: sections of the bench."""
    document = YAML(typ="safe").load(bench)
    own = {key: document[key] for key in ("seed", "tasks", "sampler", "sampling")}
    given = EvalSections.model_validate({**own, **changed})
    job = RFT.resolve(as_job(given), bench.parent)
    sections = given.model_copy(update={"tasks": job.tasks})
    out.mkdir(exist_ok=True)
    YAML(typ="safe").dump({"name": "sums", "kind": "eval", **sections.model_dump(mode="json")}, RunPaths(out).run_yaml)
    spec = attempt(out)
    toys = replace(parts([], model, ToyVerifier()), load_tasks=load_every_task)
    evaluate(Effective(sections, 20.0, "sums"), spec, Reporter(spec), toys)
    return out


def write_gate(folder: Path, **changed: Any) -> Path:
    """A gate of ``folder``'s evaluations ``candidate`` and ``base``; ``changed``: keys of its bench."""
    bench = {
        "bench": "bench.yaml", "candidate": "candidate", "base": "base", "release": "none",
        "checks": [{"margin": 0.2}], **changed,
    }  # fmt: skip
    path = folder / "gate.yaml"
    YAML(typ="safe").dump({"name": "toy", "benches": [bench]}, path)
    return path
