"""A kind of job for tests: ``sft`` as it is, run by the real trainer with faults injected (faulty_trainer.py)."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from trainer.job import SftKind

TRAINER = Path(__file__).with_name("faulty_trainer.py")


class FaultyKind(SftKind):
    """Everything of the ``sft`` kind but its program."""

    name = "faulty"

    def command(self, sections: BaseModel) -> list[str]:
        return [str(TRAINER)]


FAULTY = FaultyKind()
