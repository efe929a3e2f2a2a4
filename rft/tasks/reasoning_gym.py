"""Questions from reasoning-gym's generators, in ranges that never meet.

A generator makes its entry ``index`` from ``seed + index``, so two small seeds share nearly all questions. Here every
entry has a number of its own: the range (train, held_out), the part of the range that the source's ``seed`` names, and
the place in the part. No number occurs twice. As many generators repeat themselves all the same (a coin has two
sides), a question's own digest decides besides which of the two ranges it may be in, and what a source has asked
already it does not ask again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rft.config import TaskSourceSection
from rft.tasks.gym_process import entries
from rft.tasks.task import Check, Task
from trainer.data.messages import Message

PART = 1_000_000
"""Entries of one part."""
PARTS = 1000
BEGIN: Mapping[str, int] = {"train": 0, "held_out": PARTS * PART}
CHUNK = 1000
"""Entries of one generator object: some draw what kind each entry is for all of them together."""
HELD_OUT_ONE_IN = 4
"""One question of so many is held out."""
PATIENCE = 2000
"""After so many entries in a row without a question that is new here, a generator has no more."""
VERIFIER = "reasoning_gym"


@dataclass
class Asked:
    """What became of a generator's entries: ``repeated`` ones, those of the ``other_range``, and whether it ran dry."""

    repeated: int = 0
    other_range: int = 0
    exhausted: bool = False


def gym_tasks(section: TaskSourceSection, seed: int, asked: Asked | None = None) -> Iterator[Task]:
    """At most ``max_tasks`` different questions, beginning at a place in the part that the job's ``seed`` chooses.

    Raises gym_package.GymError when the generator cannot be used.
    """
    assert section.dataset is not None and section.max_tasks is not None
    asked = asked or Asked()
    begin = BEGIN[section.range] + section.seed * PART
    chunks = PART // CHUNK
    start = int.from_bytes(_digest(f"{seed}\0{section.name}")[:8], "big") % chunks
    seen: set[bytes] = set()
    stale = 0
    firsts = [begin + (start + chunk) % chunks * CHUNK for chunk in range(chunks)]
    with contextlib.closing(entries(section.dataset, section.params, firsts, CHUNK)) as found:
        for number, entry in found:
            stale += 1
            digest = _digest(str(entry["question"]))
            if is_held_out(digest) != (section.range == "held_out"):
                asked.other_range += 1
            elif digest[:16] in seen:
                asked.repeated += 1
            else:
                stale = 0
                seen.add(digest[:16])
                yield _task(section, number, entry)
            if len(seen) == section.max_tasks:
                return
            if stale == PATIENCE:
                break
    asked.exhausted = True


def is_held_out(digest: bytes) -> bool:
    """Whether the question of this digest belongs to the held-out range, whatever seed it came from."""
    return digest[-1] % HELD_OUT_ONE_IN == 0


def _task(section: TaskSourceSection, number: int, entry: dict[str, Any]) -> Task:
    assert section.dataset is not None
    answer = entry["answer"]
    verifier = section.verifier.name if section.verifier else VERIFIER
    data: dict[str, Any] = {"dataset": section.dataset, "params": section.params, "entry": entry}
    if verifier != VERIFIER:
        data = {"answer": answer}
    difficulty = entry.get("metadata", {}).get("difficulty")
    cluster = section.dataset if difficulty is None else f"{section.dataset} {json.dumps(difficulty, sort_keys=True)}"
    return Task(
        id=f"{section.name}/{number}",
        source=section.name,
        messages=(Message("user", str(entry["question"])),),
        check=Check(verifier, data),
        gold=answer if isinstance(answer, str) and answer.strip() else None,
        cluster=cluster,
        metadata={"dataset": section.dataset, "number": number},
    )


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
