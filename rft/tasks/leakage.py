"""The guard between what is sampled and the benches of a gate: what contains a bench item stays out, and is listed.

The rule is that of ``mens-sup data build`` (:mod:`trainer.data.contamination`), over a bench's questions, its right
answers, and both together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rft.tasks.bench import bench_tasks
from rft.tasks.task import Task
from trainer.data.code_block import first_code_block

if TYPE_CHECKING:
    from trainer.data.contamination import BenchIndex

NGRAM = 13
"""Length in words of the pieces of an item that are looked for, as in a mix by default."""


class Leakage:
    """The items of some benches. ``unguarded`` names those that are too short to be told from chance."""

    def __init__(self, index: BenchIndex | None) -> None:
        self._index = index
        self.unguarded: tuple[str, ...] = () if index is None else index.unguarded

    @classmethod
    def of(cls, benches: Sequence[str]) -> Leakage:
        """``benches`` as in tasks.exclude_benches; none is a guard that lets everything through. Raises InputError."""
        if not benches:
            return cls(None)
        from trainer.data.contamination import BenchIndex  # numpy, which a job without benches does not need

        items = ((task.id, text) for bench in benches for task in bench_tasks(bench) for text in _item_texts(task))
        return cls(BenchIndex.from_items(items, NGRAM))

    def items_in(self, texts: Sequence[str]) -> list[str | None]:
        """The bench item that each text contains, ``BENCH/ID``, or None. For rows: :func:`row_text`."""
        if self._index is None:
            return [None] * len(texts)
        return [None if hit is None else hit.item for hit in self._index.hits(texts)]

    def tasks_with_items(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, str | None]]:
        """Every task, with the bench item that its question or its gold answer contains."""
        return zip(tasks, self.items_in([row_text(task, task.gold or "") for task in tasks]), strict=True)


def row_text(task: Task, answer: str) -> str:
    """All that a model would learn from this question and answer."""
    return "\n".join([*(message.content for message in task.messages), answer])


def _item_texts(task: Task) -> Iterable[str]:
    """An item as it may turn up: question and answer together, each, and a function's body without its beginning."""
    question = "\n".join(message.content for message in task.messages if message.role != "system")
    if task.gold is None:
        return [question]
    answer = first_code_block(task.gold) or task.gold
    prefix = str(task.check.data.get("prefix") or "")
    body = answer.removeprefix(prefix.rstrip())
    return dict.fromkeys(text for text in (f"{question}\n{answer}", prefix, question, body) if text.strip())
