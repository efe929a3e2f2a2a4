"""How long a job with a million stored samples takes to know what it owes: comparing the tasks, and planning from the
store. A peer would read its JSONL of samples again; that is measured beside it, on the same rows."""

from __future__ import annotations

import argparse
import json
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rft.config import BudgetSection
from rft.intake import take_in
from rft.samplers.sampler import Completion, SamplerIdentity, Sampling
from rft.scheduler import Scheduler
from rft.seeds import sample_seed
from rft.store import Arrived, Judged, Origin, Store
from rft.tasks.task import Check, Task
from rft.verifiers.verdict import Isolation, Outcome, Verdict
from trainer.data.messages import Message

PER_TASK = 16
ANSWER = "```python\ndef solve(values):\n    return sorted(values)[: len(values) // 2]\n```" * 3
LIMIT_SECONDS = 5.0


def tasks(count: int) -> Iterator[Task]:
    for number in range(count):
        yield Task(
            f"made/{number}",
            "made",
            (Message("user", f"Write a function that solves problem {number}. " + "It takes values. " * 10),),
            Check("python_tests", {"tests": [f"assert solve([{number}]) == []"], "entry_point": "solve"}),
        )


def fill(place: Path, count: int) -> None:
    """A job that was killed: nine of ten tasks have all of their samples, the next one half of them."""
    identity = SamplerIdentity("made", "made", None, None, None, None, None, "none", "cpu", "float32")
    dice = random.Random(1)
    with Store.open(place) as store, open(place / "samples.jsonl", "w") as jsonl:
        with store.batch():
            take_in(store, tasks(count), lambda: None)
            origin = store.origin_number(Origin(identity, Sampling(1.0, 1.0, 0, 256)))
        for start in range(0, count, 2000):
            arrived, judged = [], []
            for number in range(start, min(count, start + 2000)):
                name = f"made/{number}"
                for index in range(PER_TASK):
                    ids = tuple(dice.randrange(49152) for _ in range(40))
                    got = Completion(
                        name, index, sample_seed(0, name, index), f"{ANSWER} {dice.random()}", ids,
                        tuple(-dice.random() for _ in ids), "stop", 60, len(ids), 1.0,
                    )  # fmt: skip
                    outcome = Outcome.ACCEPTED if dice.random() < 0.3 else Outcome.REJECTED
                    verdict = Verdict(outcome, "as it fell", "python_tests", "v1", Isolation.BUBBLEWRAP)
                    key = f"{dice.getrandbits(128):032x}" if outcome is Outcome.ACCEPTED else None
                    arrived.append(Arrived(number + 1, got))
                    judged.append(Judged(number + 1, index, verdict, key))
                    row = {"task": name, "index": index, "text": got.text, "ids": ids, "logprobs": got.logprobs}
                    jsonl.write(json.dumps(row | {"outcome": outcome.value, "key": key}) + "\n")
            with store.batch():
                store.add(arrived, origin, 1)
                store.add_verdicts(judged)


def resume(place: Path, count: int) -> tuple[float, float, int]:
    """Seconds to compare the tasks, seconds to plan, and the samples that are still owed at most."""
    began = time.monotonic()
    with Store.open(place) as store:
        with store.batch():
            take_in(store, tasks(count), lambda: None)
        compared = time.monotonic()
        scheduler = Scheduler(store, BudgetSection(adaptive=False), PER_TASK + 1, 0, lambda task: ())
        first = scheduler.requests(64)
        planned = time.monotonic()
        assert len(first) == 64
        return compared - began, planned - compared, scheduler.bound - scheduler.settled


def peer(place: Path) -> float:
    """A JSONL log read line by line into a set of what is there, as sampling scripts do."""
    began = time.monotonic()
    there = set()
    with open(place / "samples.jsonl") as file:
        for line in file:
            row = json.loads(line)
            there.add((row["task"], row["index"]))
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1_000_000)
    samples = parser.parse_args().samples
    count = samples // PER_TASK
    with tempfile.TemporaryDirectory(prefix="store-resume-") as folder:
        place = Path(folder)
        fill(place, count)
        size = (place / "samples.sqlite").stat().st_size
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        comparing, planning, owed = resume(place, count)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        reading = peer(place)
    total = comparing + planning
    print(f"{samples} samples of {count} tasks, {size / 2**20:.0f} MiB; {owed} owed")
    parts = f"{comparing:.2f} s comparing tasks, {planning:.2f} s planning"
    print(f"resume {total:.2f} s: {parts}; memory + {grown // 1024} MiB")
    print(f"reading a JSONL log of the same rows: {reading:.2f} s, {reading / total:.1f} times as long")
    result = {"seconds": round(total, 2), "peer_seconds": round(reading, 2), "ratio": round(reading / total, 2)}
    print(json.dumps({"benchmark": "store_resume", "samples": samples, "good": total < LIMIT_SECONDS, **result}))


if __name__ == "__main__":
    main()
