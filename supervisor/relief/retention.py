"""The one rung that every kind of job has: keep fewer checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from supervisor.checkpoints import CheckpointInfo, to_delete
from supervisor.config_sections import TRIM_RETENTION
from supervisor.jobs import Patch, Relief
from supervisor.sensors.disk import human_bytes

KEEP_KEY = "checkpoint.keep"


def plan_trim(
    infos: Sequence[CheckpointInfo], keep: int, best: Path | None, protected: Collection[Path] = ()
) -> Relief | None:
    """The rung ``trim_retention`` as it would be taken now; None when it frees nothing.

    It keeps only the newest verified checkpoint, the best and ``protected``.
    """
    delete = to_delete(infos, 1, best, protected)
    freed = sum(info.size for info in delete)
    if not freed:
        return None
    price = (
        f"checkpoint.keep {keep} -> 1 deletes {len(delete)} older checkpoint(s) and frees {human_bytes(freed)}; "
        "the newest verified one and the best one stay, nothing of the training is lost"
    )
    return Relief(TRIM_RETENTION, (Patch(KEEP_KEY, keep, 1),), price, lossless=True)
