"""A small change of our source that a test must see."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """In ``file`` each old text, which must stand there once, becomes the new one; then ``test`` must fail.

    ``proves``: the requirement that forbids the defect.
    """

    name: str
    proves: str
    file: str
    edits: tuple[tuple[str, str], ...]
    test: str


def mutant(name: str, proves: str, file: str, old: str, new: str, test: str) -> Mutant:
    return Mutant(name, proves, file, ((old, new),), f"tests/{test}")
