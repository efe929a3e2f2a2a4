"""Which signs stand in a text of one log. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.diagnosis.kinds import FailureKind
from supervisor.diagnosis.loglines import Line
from supervisor.diagnosis.phrases import phrases
from supervisor.diagnosis.signs import Sign
from supervisor.diagnosis.signs_gpu import GPU
from supervisor.diagnosis.signs_outside import OUTSIDE
from supervisor.diagnosis.signs_resources import RESOURCES
from supervisor.diagnosis.signs_software import SOFTWARE

SIGNS: tuple[Sign, ...] = (*RESOURCES, *GPU, *OUTSIDE, *SOFTWARE)

_SHADOWS: dict[FailureKind, tuple[FailureKind, ...]] = {
    FailureKind.TOO_MANY_FILES: (FailureKind.SHM_FULL, FailureKind.DISK_FULL, FailureKind.HOST_OOM),
    FailureKind.ENGINE_DEATH: (FailureKind.NETWORK,),
    FailureKind.SHM_FULL: (
        FailureKind.HOST_OOM,
        FailureKind.DISK_FULL,
        FailureKind.NCCL_ERROR,
        FailureKind.WORKER_KILLED,
        FailureKind.NATIVE_CRASH,
    ),
    FailureKind.PORT_IN_USE: (FailureKind.NETWORK, FailureKind.NCCL_ERROR, FailureKind.CONFIG_ERROR),
    FailureKind.NCCL_ERROR: (FailureKind.NETWORK, FailureKind.HANG),
    FailureKind.DISK_FULL: (
        FailureKind.CHECKPOINT_CORRUPT,
        FailureKind.FILESYSTEM_ERROR,
        FailureKind.NETWORK,
        FailureKind.PREEMPTED,
    ),
    FailureKind.CHECKPOINT_INCOMPATIBLE: (FailureKind.CONFIG_ERROR, FailureKind.DATA_ERROR),
    FailureKind.CHECKPOINT_CORRUPT: (FailureKind.DATA_ERROR, FailureKind.CONFIG_ERROR),
    FailureKind.DATA_ERROR: (FailureKind.CONFIG_ERROR,),
    FailureKind.CONFIG_ERROR: (FailureKind.NO_GPU,),
    FailureKind.DEVICE_ASSERT: (FailureKind.NATIVE_CRASH,),
    FailureKind.NAN_LOSS: (FailureKind.DATA_ERROR, FailureKind.CONFIG_ERROR),
    FailureKind.NETWORK: (FailureKind.CONFIG_ERROR,),
    FailureKind.PERMISSION_DENIED: (FailureKind.NETWORK, FailureKind.CONFIG_ERROR),
    FailureKind.PREEMPTED: (FailureKind.INTERRUPTED, FailureKind.NETWORK),
    FailureKind.TIME_LIMIT: (FailureKind.INTERRUPTED,),
    FailureKind.HOST_OOM: (FailureKind.CUDA_OOM, FailureKind.WORKER_KILLED, FailureKind.PREEMPTED),
}
"""In one text, what the first kind's words explain: "No space left ... /dev/shm" is no full disk."""


class SignsOfLog:
    """Looks for signs in the texts of one log; whatever has no word anywhere in the log is left out at once."""

    def __init__(self, lines: Sequence[Line]) -> None:
        texts = [line.text for line in lines]
        spaced, joined = " ".join(texts).lower(), "".join(texts).lower()  # a word may be broken at the line's end
        self._present = []
        for entry in SIGNS:
            found = [
                phrase
                for phrase in phrases(entry.words)
                if not phrase.literals or any(word in spaced or word in joined for word in phrase.literals)
            ]
            if found:
                self._present.append((entry, found))
        self._known: dict[str, list[Sign]] = {}

    def within(self, text: str) -> list[Sign]:
        """The signs in a text, without those whose words another sign in the same text explains."""
        known = self._known.get(text)
        if known is None:
            lowered = text.lower()
            found = [
                entry for entry, present in self._present if any(phrase.found_in(text, lowered) for phrase in present)
            ]
            hidden = {shadow for entry in found for shadow in _SHADOWS.get(entry.kind, ())}
            known = self._known[text] = [entry for entry in found if entry.kind not in hidden]
        return known
