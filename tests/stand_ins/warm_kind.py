"""A kind of job for tests: ``scripted``, with a program that can wait as a standby (warm_trainer.py)."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel
from scripted_kind import ScriptedKind

TRAINER = Path(__file__).with_name("warm_trainer.py")


class WarmKind(ScriptedKind):
    name = "warm"
    standby = True

    def command(self, sections: BaseModel) -> list[str]:
        return [str(TRAINER)]


WARM = WarmKind()
