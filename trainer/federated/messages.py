"""What travels in Flower's messages: one flat array, and a few values beside it. Imports flwr."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from trainer.federated.packed import Flat, read_npy
from trainer.federated.wire import Answer

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
    """Of no numbers when there is none. Raises what ``read_npy`` does for an array that is none of ours."""
    found = records.array_records.get(ADAPTER)
    if found is None or "flat" not in found:
        return np.empty(0, np.float32)
    return read_npy(found["flat"].data)


def answer(handle: str, message: Message) -> Answer:
    """Raises anything for a message that is none of ours.

    ``handle``: of the question that it was fetched for; what the message itself says of that, its sender has written.
    """
    if message.has_error():  # Flower's, not the node's own: it has died, or its answer didn't get through
        return Answer(handle, lost=f"the node could not answer: {message.error.reason}")
    values = head(message.content)
    claim, signature, failed = values.get("claim", b""), values.get("signature", b""), values.get("failed", "")
    return Answer(
        handle,
        claim if isinstance(claim, bytes) else b"",
        signature if isinstance(signature, bytes) else b"",
        adapter(message.content),
        failed if isinstance(failed, str) else "",
    )
