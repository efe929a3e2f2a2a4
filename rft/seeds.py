"""Seeds of samples."""

from __future__ import annotations

import hashlib


def sample_seed(job_seed: int, task_id: str, index: int) -> int:
    """The seed of one sample, 0 <= seed < 2**31.

    Hashed, never ``seed + index``: engines and generators add numbers to a seed themselves, and neighbouring seeds
    would draw the same samples for other tasks.
    """
    digest = hashlib.sha256(f"{job_seed}\0{task_id}\0{index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % 2**31
