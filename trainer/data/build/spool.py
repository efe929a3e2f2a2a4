"""All rows of a build on disk, in the order in which they were read; what is decided about them stays in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path

import msgspec

from trainer.data.messages import Message, Row
from trainer.data.rows import decode_row

KEY_BYTES = 32


class Spool:
    """Append every row, then read them as often as needed. The file is ``path``; remove it when done.

    A line is the key of the row's answer (see :func:`trainer.data.keys.response_key`), and the encoded row.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(path, "wb", buffering=1 << 20)  # noqa: SIM115
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, lines: Sequence[bytes]) -> int:
        """Append ``lines``; returns the number of the first."""
        self._file.writelines(line + b"\n" for line in lines)
        self._count += len(lines)
        return self._count - len(lines)

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Every line with its number: most rows of a pass are often not wanted, so see :func:`row_in`."""
        self._file.flush()
        with open(self._path, "rb", buffering=1 << 20) as file:
            yield from enumerate(file)

    def remove(self) -> None:
        self._file.close()
        self._path.unlink()


def row_in(line: bytes) -> Row:
    return decode_row(line[KEY_BYTES:])


def answer_key_in(line: bytes) -> str:
    return line[:KEY_BYTES].decode()


def output_line(row: Row, metadata: dict[str, object]) -> bytes:
    """A row of ``corpus.jsonl``: its messages in the form that the trainer reads, and its metadata beside them."""
    fields: dict[str, object] = {"messages": [_message(message) for message in row.messages]}
    if row.tools:
        fields["tools"] = row.tools
    return msgspec.json.encode(fields | metadata | fields) + b"\n"


def dropped_line(source: str, origin: str, reason: Enum, detail: str, row: Row | None = None) -> bytes:
    """A line of ``dropped.jsonl``; with a row, its answer."""
    fields = {"source": source, "origin": origin, "reason": reason.name.lower(), "detail": detail}
    return msgspec.json.encode(fields | ({"response": row.response} if row else {})) + b"\n"


def _message(message: Message) -> dict[str, object]:
    found: dict[str, object] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        found["tool_calls"] = [
            {"name": call.name, "arguments": call.arguments} | ({"id": call.id} if call.id else {})
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        found["tool_call_id"] = message.tool_call_id
    if message.name:
        found["name"] = message.name
    return found
