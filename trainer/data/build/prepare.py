"""What can be known of rows without the other rows: read, checked, sampled, searched for bench items, sketched.

Large files are shared out among processes, piece by piece; what comes out depends on nothing but the rows.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context

import msgspec
import numpy as np

from supervisor.problems import InputError
from trainer.data.build.mix import Mix
from trainer.data.build.reading import OpenSource, line_pieces, read, read_lines
from trainer.data.contamination import BenchHit, BenchIndex
from trainer.data.keys import normalised, normalised_key
from trainer.data.messages import BadRow, Row
from trainer.data.near_duplicates import Sketcher, Sketches, duplicate_parts, encoded
from trainer.data.rows import encode_row
from trainer.data.shingles import CHUNK_CHARACTERS, encoded_tokens

SHARED_BYTES = 32 << 20
"""From this size on, the files of a source are worth the start of more processes."""

PIECES_AHEAD = 2
"""Pieces that wait for each process, so that none is idle and few are in memory."""

_PR_SET_PDEATHSIG = 1


@dataclass
class Prepared:
    """Some rows of a source, in their order.

    ``read`` counts all of them, ``digests`` has one of each; ``bad`` holds those that cannot be used, ``good`` counts
    the others. Of these the sampled ones are in ``lines`` as for the spool, with ``answers`` (64 bits of the key of
    each answer), ``ranks`` (64 bits by which caps choose), and by position in ``lines`` the bench item in ``hits``.
    ``sketches`` are of the sampled rows without one.
    """

    read: int = 0
    bad: list[BadRow] = field(default_factory=list)
    good: int = 0
    digests: list[bytes] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    answers: array[int] = field(default_factory=lambda: array("Q"))
    ranks: array[int] = field(default_factory=lambda: array("Q"))
    hits: dict[int, str] = field(default_factory=dict)
    sketches: Sketches | None = None


class Preparer:
    """Prepares rows in this process."""

    def __init__(self, mix: Mix, opened: Sequence[OpenSource], bench: BenchIndex | None) -> None:
        self._mix = mix
        self._opened = {source.index: source for source in opened}
        self._bench = bench
        self._sketcher = Sketcher(mix.sections.seed)

    def prepare(self, index: int, rows: Iterable[Row | BadRow]) -> Iterator[Prepared]:
        """Rows of source ``index``, a few hundred at a time."""
        section, seed = self._opened[index].section, self._mix.sections.seed
        limit = int(section.sample_rate * 2**64)
        sampling, ranking = f"{seed}\0sample\0{section.name}\0".encode(), f"{seed}\0cap\0{section.name}\0".encode()
        found, forms, called, characters = Prepared(), list[list[str]](), dict[int, str](), 0
        for row in rows:
            found.read += 1
            if isinstance(row, BadRow):
                found.bad.append(row)
                found.digests.append(_digest(f"{row.file}:{row.line}: {row.problem}".encode(errors="replace")))
                characters += len(row.problem)
            else:
                content = msgspec.json.encode((row.messages, row.tools))
                digest = _digest(content)
                found.good += 1
                found.digests.append(digest + _digest(msgspec.json.encode(row.extra)) if row.extra else digest)
                characters += len(content)
                if section.sample_rate == 1 or _hash64(sampling + digest) < limit:
                    form = [normalised(part) for part in _parts(row)]
                    if self._bench is not None and (said := _called(row)):
                        called[len(forms)] = said
                    forms.append(form)
                    key = normalised_key(form[1])
                    found.lines.append(key.encode() + encode_row(row))
                    found.answers.append(int(key[:16], 16))
                    found.ranks.append(_hash64(ranking + digest))
            if characters >= CHUNK_CHARACTERS:
                yield self._looked_at(found, forms, called)
                found, forms, called, characters = Prepared(), [], {}, 0
        if found.read:
            yield self._looked_at(found, forms, called)

    def prepare_lines(self, index: int, shown: str, lines: list[tuple[int, bytes | None]]) -> list[Prepared]:
        """Lines of a file of source ``index``."""
        return list(self.prepare(index, read_lines(self._mix, self._opened[index], shown, lines)))

    def _looked_at(self, found: Prepared, forms: list[list[str]], called: dict[int, str]) -> Prepared:
        """``called``: what the rows' tool calls say, by position; see :func:`_called`."""
        if not forms:
            return found
        grams = encoded_tokens(encoded(forms))
        if self._bench is not None:
            hits = enumerate(_most(self._bench.hits_in(grams.joined(2)), called, self._bench))
            found.hits = {row: f"{hit.item} (containment {hit.containment:.2f})" for row, hit in hits if hit}
        if found.hits:
            clean = np.array([row not in found.hits for row in range(len(forms))], np.bool_)
            forms = [form for row, form in enumerate(forms) if clean[row]]
            grams = grams.select(np.repeat(clean, 2))
        if forms:
            found.sketches = self._sketcher.sketch(forms, grams)
        return found


class Preparation:
    """Prepares the rows of sources, in other processes where it pays. A context manager: they end with it."""

    def __init__(self, mix: Mix, opened: Sequence[OpenSource], bench: BenchIndex | None) -> None:
        self._shared_state = (mix, tuple(opened), bench)
        self._mix = mix
        self._here = Preparer(*self._shared_state)
        self._processes = len(os.sched_getaffinity(0))
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Preparation:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def of(self, source: OpenSource) -> Iterator[Prepared]:
        """All rows of ``source``. Raises what :func:`read` does; InputError when a process was killed."""
        size = sum(file.record.size for file in source.inputs)
        if source.section.type != "jsonl" or size < SHARED_BYTES or self._processes < 2:
            return self._here.prepare(source.index, read(self._mix, source))
        return self._in_processes(source)

    def _in_processes(self, source: OpenSource) -> Iterator[Prepared]:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self._processes, get_context("spawn"), initializer=_start, initargs=self._shared_state
            )
        waiting: deque[Future[list[Prepared]]] = deque()
        try:
            for shown, lines in line_pieces(source):
                try:
                    waiting.append(self._pool.submit(_prepare_lines, source.index, shown, lines))
                except OSError as error:  # the pool wanted a process more while it was noticing that one was gone
                    raise BrokenProcessPool from error
                if len(waiting) > self._processes * (1 + PIECES_AHEAD):
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        except (BrokenProcessPool, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of the file; the pipe to a process that is gone has no number
            raise InputError(
                f"{source.section.path}: a process that was reading its rows was killed, mostly for want of memory. "
                "Free memory and build again."
            ) from None


_preparer: Preparer | None = None
"""Of a process that was started to prepare rows."""


def _start(mix: Mix, opened: Sequence[OpenSource], bench: BenchIndex | None) -> None:
    """An interrupt is the parent's to handle, and whatever ends the parent ends this process."""
    global _preparer
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    _preparer = Preparer(mix, opened, bench)


def _prepare_lines(index: int, shown: str, lines: list[tuple[int, bytes | None]]) -> list[Prepared]:
    assert _preparer is not None
    return _preparer.prepare_lines(index, shown, lines)


def _parts(row: Row) -> tuple[str, str]:
    """What rows are compared by; those with other tools are other rows."""
    asked, answered = duplicate_parts(row)
    return (f"{asked}\n{json.dumps(row.tools, sort_keys=True)}" if row.tools else asked), answered


def _called(row: Row) -> str:
    """What a row with tool calls says, their arguments as the tool gets them and not as JSON spells them."""
    if not any(message.tool_calls for message in row.messages):
        return ""
    said: list[str] = []
    for message in row.messages:
        said.append(message.content)
        waiting: list[object] = [call.arguments for call in reversed(message.tool_calls)]
        while waiting:
            value = waiting.pop()
            if isinstance(value, str):
                said.append(value)
            elif isinstance(value, dict):
                waiting += reversed(value.values())
            elif isinstance(value, list):
                waiting += reversed(value)
    return "\n".join(said)


def _most(hits: list[BenchHit | None], called: dict[int, str], bench: BenchIndex) -> list[BenchHit | None]:
    """The more contained item of each row, by its text and by what its tool calls say."""
    for row, hit in zip(called, bench.hits(list(called.values())), strict=True):
        before = hits[row]
        if hit is not None and (before is None or hit.containment > before.containment):
            hits[row] = hit
    return hits


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _hash64(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
