"""What was asked and answered, out of the stores of evaluations, for the tasks that a page shows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from rft.samples import StoredSample
from rft.store import STORE_NAME, Store
from trainer.data.messages import Message

ACCEPTED = "accepted"
UNKNOWN = "not judged"


@dataclass(frozen=True)
class Answer:
    """One sample: ``outcome`` accepted, rejected, timeout, error, refused or not judged."""

    index: int
    text: str
    outcome: str
    reason: str
    diagnostic: str
    cut: bool


@dataclass(frozen=True)
class Asked:
    task: str
    messages: tuple[Message, ...]
    answers: tuple[Answer, ...]


def answers(folder: Path, tasks: Collection[str]) -> Mapping[str, Asked]:
    """By task, those of ``tasks`` that the evaluation in ``folder`` has; empty when its samples are gone.

    Raises StoreError for a store that cannot be read.
    """
    if not tasks or not (folder / STORE_NAME).is_file():
        return {}
    found: dict[str, Asked] = {}
    with Store.read(folder) as store:
        for name in tasks:
            place = store.find_task(name)
            if place is not None:
                messages = store.task(place[0]).messages
                found[name] = Asked(name, messages, tuple(_answer(sample) for sample in store.samples(place[0])))
    return found


def _answer(sample: StoredSample) -> Answer:
    verdict = sample.verdict
    cut = sample.finish == "length"
    if sample.refused is not None:
        return Answer(sample.index, "", "refused", sample.refused, "", False)
    if verdict is None:
        return Answer(sample.index, sample.text, UNKNOWN, "", "", cut)
    return Answer(sample.index, sample.text, verdict.outcome.value, verdict.reason, verdict.diagnostic, cut)


def telling(asked: Asked, most: int, accepted: bool | None = None) -> list[Answer]:
    """At most ``most`` samples: accepted ones first, or the others first, or (None) one accepted and then others."""
    right = [answer for answer in asked.answers if answer.outcome == ACCEPTED]
    wrong = [answer for answer in asked.answers if answer.outcome != ACCEPTED]
    if accepted is None:
        return [*right[:1], *wrong, *right[1:]][:most]
    return [*right, *wrong][:most] if accepted else [*wrong, *right][:most]
