"""Run with Flower's Python: what GridWire makes of what a registered node may send, one line for each."""

import dataclasses
import io
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, RecordDict

from trainer.federated.config import FederationSections
from trainer.federated.server_app import GridWire

RIGHT = np.arange(50, dtype=np.float32)


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def envelope(records: RecordDict) -> SimpleNamespace:
    """Flower makes messages of its own only within a run."""
    return SimpleNamespace(has_error=lambda: False, content=records)


def message(data: bytes, stype: str = "numpy.ndarray") -> SimpleNamespace:
    array = Array(dtype="float32", shape=(50,), stype=stype, data=data)
    head = ConfigRecord({"claim": b"claim", "signature": b"signature"})
    return envelope(RecordDict({"head": head, "adapter": ArrayRecord({"flat": array})}))


HUGE = b"{'descr': '<f4', 'fortran_order': False, 'shape': (100000000000000,), }".ljust(117) + b"\n"
MESSAGES = {
    "right": message(npy(RIGHT)),
    "junk": message(b"junk"),
    "empty": message(b""),
    "stype": message(b"?", "pickle"),
    "header": message(b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + HUGE),
    "shape": message(npy(RIGHT.reshape(5, 10))),
    "double": message(npy(RIGHT.astype(np.float64))),
    "inflate": ValueError("Unexpected set of children"),
    "none": SimpleNamespace(has_error=lambda: False),
    "dead": SimpleNamespace(has_error=lambda: True, error=Error(5, "gone")),
    "refusal": envelope(RecordDict({"head": ConfigRecord({"failed": "no \x1b[2J"})})),
}


@dataclasses.dataclass
class Line:
    """Stands in for Flower's grid: each message is handed over once, and is gone."""

    left: dict[str, object]

    def pull_messages(self, handles: list[str]) -> list[object]:
        found = [self.left.pop(handle) for handle in handles if handle in self.left]
        for each in found:
            if isinstance(each, Exception):
                raise each
        return found


def main() -> int:
    sections = FederationSections.model_validate({"name": "lan", "host": "h", "nodes": ["a"], "train": "t"})
    wire = GridWire(Line(dict(MESSAGES)), sections, Path("none.db"), None)
    for answer in wire.collect([*MESSAGES, "not come yet"]):
        if answer.failed or answer.lost:
            print(f"{answer.handle}: {'failed' if answer.failed else 'lost'} {answer.failed or answer.lost}")
        else:
            print(f"{answer.handle}: {answer.adapter.size} numbers, {answer.claim.decode()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
