"""What travels in Flower's messages: one flat array, and a few values beside it. Imports flwr."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from trainer.federated.packed import Flat

ADAPTER, HEAD = "adapter", "head"


def content(values: Mapping[str, bytes | str], flat: Flat | None) -> RecordDict:
    records: dict[str, ArrayRecord | ConfigRecord] = {HEAD: ConfigRecord(dict(values))}
    if flat is not None:
        records[ADAPTER] = ArrayRecord({"flat": Array(np.ascontiguousarray(flat, np.float32))})
    return RecordDict(records)


def head(records: RecordDict) -> dict[str, bytes | str]:
    """Empty for a message that is not ours."""
    found = records.config_records.get(HEAD)
    return {key: value for key, value in found.items() if isinstance(value, bytes | str)} if found is not None else {}


def adapter(records: RecordDict) -> Flat:
    """Of no numbers when there is none, and as it came otherwise: whoever takes it checks its type and shape."""
    found = records.array_records.get(ADAPTER)
    if found is None or "flat" not in found:
        return np.empty(0, np.float32)
    flat: Flat = found["flat"].numpy()
    return flat
