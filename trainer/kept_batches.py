"""An evaluation that is cut off goes on where it was: its batches are kept in the run directory as they come.

``RUN/.evaluation.jsonl`` has the key of the evaluation in its first line and a batch in each other one, every line
behind its own digest. Appended by one write each and never synced: it outlives any death of a process, and of what a
power cut leaves, only the whole lines at its beginning count. What belongs to another evaluation is never used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import xxhash

from supervisor.protocol.atomic import STAGING_PREFIX


class EvaluationKey(msgspec.Struct, frozen=True):
    """All that an evaluation's figures depend on. Two of equal keys have equal figures, to the last bit.

    ``adapter``: digest of the weights that are evaluated. ``rows``: of the rows, their order and batches.
    ``computed``: of the configuration, the base, the programs' versions and the machine.
    """

    lineage: int
    step: int
    adapter: str
    rows: str
    computed: str


class Batch(msgspec.Struct, frozen=True):
    """``rows``: (row, nats, label tokens) of each; ``seconds``: what computing it took."""

    rows: tuple[tuple[int, float, int], ...]
    seconds: float


class KeptBatches:
    """The file at ``path``; ``warn`` hears, once, that it cannot be written: a crash then costs the evaluation."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self._path = path
        self._warn = warn
        self._file: int | None = None
        self._ends: list[int] = []

    def open(self, key: EvaluationKey) -> list[Batch]:
        """The first batches of this evaluation, if they were kept; call :meth:`go_on` with how many are used."""
        self.close()
        self._ends = []
        header = _line(key)
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            data = b""
        except OSError as error:
            self._say(error)
            data = b""
        kept: list[Batch] = []
        if data.startswith(header):
            self._ends.append(len(header))
            for batch, end in _whole(data, len(header)):
                kept.append(batch)
                self._ends.append(end)
        try:
            if not self._ends:
                # Under its name only with the whole key: batches are never read under the key of another evaluation.
                staged = self._path.with_name(f"{STAGING_PREFIX}{self._path.name}")
                staged.write_bytes(header)
                os.replace(staged, self._path)
                self._ends.append(len(header))
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            self._say(error)
        return kept

    def go_on(self, used: int) -> None:
        """After the first ``used`` batches: what stands behind them is dropped, a torn line among it."""
        if self._file is not None:
            try:
                os.ftruncate(self._file, self._ends[used])
            except OSError as error:
                self._give_up(error)

    def add(self, batch: Batch) -> None:
        if self._file is None:
            return
        line = _line(batch)
        try:
            if os.write(self._file, line) != len(line):
                self.close()  # the disk is full; what is torn does not count
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _give_up(self, error: OSError) -> None:
        self.close()
        self._say(error)

    def _say(self, error: OSError) -> None:
        # Told in vain to a full disk: the next event that must be written ends the attempt.
        with suppress(OSError):
            self._warn(
                f"the batches of this evaluation are not kept in {self._path} ({error.strerror}); a crash in it costs "
                "all of it"
            )


def _line(value: msgspec.Struct) -> bytes:
    text = msgspec.json.encode(value)
    return _digest(text) + b" " + text + b"\n"


def _digest(text: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(text).encode()


def _whole(data: bytes, begin: int) -> Iterator[tuple[Batch, int]]:
    """The batches from ``begin`` on and where each ends, up to the first line that is not as it was written."""
    while (newline := data.find(b"\n", begin)) >= 0:
        digest, _, text = data[begin:newline].partition(b" ")
        if digest != _digest(text):
            return
        try:
            batch = msgspec.json.decode(text, type=Batch)
        except msgspec.DecodeError:
            return  # its figures were not finite, which JSON cannot say
        begin = newline + 1
        yield batch, begin
