"""What a kind of job can be asked about a configuration before it runs: a small program, one JSON line each way.

The supervisor starts the program that :class:`supervisor.jobs.Forecasts` names, writes a :class:`Question` as a line
on its standard input, and reads the answer as a line from its standard output; so on until the input ends.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Device = Literal["cuda", "cpu"]


class Question(msgspec.Struct, frozen=True):
    """``document``: a whole effective configuration. ``device``: where it would be trained.

    ``tokens``: of the longest sequence that its data will make, None where that is not known.
    """

    what: Literal["memory", "data"]
    document: dict[str, Any]
    device: Device
    tokens: int | None = None


class MemoryForecast(msgspec.Struct, frozen=True):
    """The peak memory of training, in bytes. ``unknown``: why nothing is predicted; empty when something is.

    ``parts`` are those of the moment that needs most (``when``), without the overheads: ``allocator_bytes`` is what the
    allocator holds beyond live tensors, ``context_bytes`` what the process needs besides. ``peak_bytes`` is the sum of
    all. ``calibration`` says where the allocator's share is from. ``checkpoint_bytes``: of one checkpoint on disk;
    ``cache_bytes``: of what the first start adds to the cache. ``at_most``: less may do, how much less isn't predicted.
    """

    unknown: str = ""
    base: str = ""
    shape: str = ""
    conditions: str = ""
    when: str = ""
    parts: dict[str, int] = msgspec.field(default_factory=dict)
    tensor_bytes: int = 0
    allocator_bytes: int = 0
    context_bytes: int = 0
    peak_bytes: int = 0
    calibration: str = ""
    checkpoint_bytes: int = 0
    cache_bytes: int = 0
    adapter_parameters: int = 0
    at_most: bool = False


class DataForecast(msgspec.Struct, frozen=True):
    """What the data says: rows, tokens and their plan. ``unknown``: why it isn't known; empty when it is.

    ``longest_row``: tokens of the longest one, before it is trimmed; ``longest_sequence``: of what is really planned,
    packed and trimmed. ``planned_steps`` may be known without the data.
    """

    unknown: str = ""
    rows: int | None = None
    tokens: int | None = None
    validation_rows: int | None = None
    longest_row: int | None = None
    longest_sequence: int | None = None
    trimmed_rows: int | None = None
    planned_steps: int | None = None
    planned_tokens: int | None = None
    planned_rows: int | None = None
    epochs: float | None = None
    histogram: tuple[int, ...] = ()
