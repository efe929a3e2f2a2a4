"""A whole job with toy parts: sums to solve, a sampler in this process that is right as often as its task says, and a
verifier that compares. Run as a program it is ``python -m rft`` with these parts, to be killed."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rft.config import RftSections
from rft.run import Parts, run_attempt
from rft.samplers.sampler import Completion, Refused, Request, SamplerIdentity, SamplerLostError
from rft.store import Store
from rft.tasks.load import LoadReport
from rft.tasks.task import Check, Task
from rft.verifiers.verdict import Isolation, Outcome, Verdict
from supervisor.protocol.attempt import AttemptSpec, ExitReport, write_spec
from supervisor.protocol.paths import RunPaths
from trainer.data.messages import Message
from trainer.reporting import Reporter


def toy_tasks(count: int, source: str = "sums", chance: Callable[[int], float] = lambda at: (at % 5) / 4) -> list[Task]:
    """``chance``: how often the toy sampler solves the task with this number."""
    return [
        Task(
            id=f"{source}/{at}",
            source=source,
            messages=(Message("user", f"What is {at} + {at}? {chance(at)}"),),
            check=Check("toy", {"answer": 2 * at}),
            gold=str(2 * at),
            file="toy.jsonl",
            line=at + 1,
        )
        for at in range(count)
    ]


def drawn(request: Request) -> str:
    """What the toy sampler says, by the seed alone: right or wrong, in one of several wordings."""
    number, chance = int(request.messages[-1].content.split()[2]), float(request.messages[-1].content.split()[-1])
    dice = random.Random(request.seed)
    wording = dice.choice(["{}", "It is {}", "The answer: {}", "{} of course"])
    return wording.format(2 * number if dice.random() < chance else 2 * number + 1)


class ToySampler:
    """``seconds`` between two samples, ``room`` at a time; ``lost_after``: gone after so many samples; ``refuses``:
    which requests."""

    def __init__(
        self,
        room: int = 8,
        seconds: float = 0.0,
        lost_after: int | None = None,
        digest: str = "d1",
        refuses: Callable[[Request], bool] = lambda request: "too long" in request.messages[-1].content,
    ) -> None:
        self._room, self._seconds, self._lost_after, self._digest = room, seconds, lost_after, digest
        self._refuses = refuses
        self._waiting: list[Request] = []
        self.asked: list[Request] = []
        self.closed = False

    loading = False

    def start(self, beat: Callable[[], None] = lambda: None) -> SamplerIdentity:
        return SamplerIdentity("toy", "toy", self._digest, None, None, None, "t1", "toy 1", "cpu", "float32")

    def room(self) -> int:
        return self._room - len(self._waiting)

    def submit(self, requests: Sequence[Request]) -> None:
        self._waiting += requests
        self.asked += requests

    def wait(self, seconds: float) -> list[Completion | Refused]:
        if not self._waiting:
            time.sleep(seconds)
            return []
        time.sleep(self._seconds)
        if self._lost_after is not None and len(self.asked) > self._lost_after:
            raise SamplerLostError("the toy sampler is gone")
        dice = random.Random(len(self.asked) * 1000 + len(self._waiting))
        dice.shuffle(self._waiting)  # in no particular order, a few at a time
        ready, self._waiting = self._waiting[:4], self._waiting[4:]
        return [self._drawn(request) for request in ready]

    def _drawn(self, request: Request) -> Completion | Refused:
        if self._refuses(request):
            return Refused(request.task_id, request.index, request.seed, "the prompt is longer than the window")
        text = drawn(request)
        ids = tuple(text.encode())
        what, logprobs = (request.task_id, request.index, request.seed), tuple(-0.5 for _ in ids)
        return Completion(*what, text, ids, logprobs, "stop", 10, len(ids), 0.0)

    def close(self) -> None:
        self.closed = True


class ToyVerifier:
    name = "toy"

    def __init__(
        self, version: str = "v1", seconds: float = 0.0, fails: Callable[[Task, str], bool] | None = None
    ) -> None:
        self.version, self._seconds, self._fails = version, seconds, fails
        self.judged: list[tuple[str, str]] = []

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def problem(self, task: Task) -> str | None:
        return None if "answer" in task.check.data else "has no answer"

    def judge(self, task: Task, completion: str) -> Verdict:
        time.sleep(self._seconds)
        self.judged.append((task.id, completion))
        if self._fails is not None and self._fails(task, completion):
            return Verdict(Outcome.ERROR, "no sandbox", self.name, self.version, Isolation.NOT_RUN, "it is broken")
        right = str(task.check.data["answer"]) in completion.split()
        outcome = Outcome.ACCEPTED if right else Outcome.REJECTED
        return Verdict(outcome, "right" if right else "wrong answer", self.name, self.version, Isolation.NOT_RUN)


def parts(tasks: Sequence[Task], sampler: ToySampler, verifier: ToyVerifier | None = None) -> Parts:
    def load(sections: RftSections, report: LoadReport) -> Iterator[Task]:
        return iter(tasks)

    judge = verifier or ToyVerifier()
    return Parts(
        load_tasks=load,
        build_verifier=lambda name, settings, section: judge,
        open_sampler=lambda section, sampling, run_dir, attempt, announce: sampler,
        remember_speed=lambda section, tokens, samples, seconds: None,
        render=lambda section: lambda task: tuple(task.messages[-1].content.encode()),
    )


def sections(**changed: Any) -> RftSections:
    document: dict[str, Any] = {
        "seed": 7,
        "tasks": {"sources": [{"name": "sums", "type": "jsonl", "path": "toy.jsonl"}]},
        "sampler": {"model": "toy"},
        "sampling": {"samples_per_task": 8},
        **changed,
    }
    return RftSections.model_validate(document)


def attempt(run_dir: Path, number: int = 1, accepted: tuple[str, ...] = ()) -> AttemptSpec:
    spec = AttemptSpec(str(run_dir), number, 1, str(run_dir / "effective.yaml"), None, 1, accepted)
    files = RunPaths(run_dir).attempt(number)
    files.root.mkdir(parents=True, exist_ok=True)
    write_spec(files.spec, spec)
    return spec


def run(
    run_dir: Path,
    given: Parts,
    job: RftSections | None = None,
    number: int = 1,
    accepted: tuple[str, ...] = (),
) -> ExitReport:
    spec = attempt(run_dir, number, accepted)
    return run_attempt(job or sections(), spec, Reporter(spec), 20.0, given)


def final_set(run_dir: Path) -> list[tuple[str, int, int, str, str | None]]:
    """Everything that a job ended with, but for when."""
    with Store.read(run_dir) as store:
        return [
            (task.id, sample.index, sample.seed, sample.text, sample.verdict.outcome if sample.verdict else None)
            for number, task in store.each_task()
            for sample in store.samples(number)
        ]


def main() -> int:
    import rft.__main__
    import rft.effective
    import rft.parts

    count = int(sys.argv[1])
    rft.parts.PARTS = parts(toy_tasks(count), ToySampler(seconds=0.002), ToyVerifier(seconds=0.002))
    rft.effective.read_effective = lambda path: rft.effective.Effective(sections(), 20.0)
    return rft.__main__.main()


if __name__ == "__main__":
    sys.exit(main())
