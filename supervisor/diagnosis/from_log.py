"""``mens-sup diagnose``: why did it die, from the log of any program."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO

from supervisor.diagnosis.diagnose import diagnose
from supervisor.diagnosis.loglines import HEAD_CHARACTERS, TAIL_CHARACTERS
from supervisor.diagnosis.values import Diagnosis, Evidence
from supervisor.problems import InputError

STANDARD_INPUT = "-"
_CHUNK = 1 << 20


def diagnose_log(log: str, exit_code: int | None, signal_word: str | None, kernel_log: Path | None) -> Diagnosis:
    """The verdict on the file ``log`` ("-": standard input). Raises InputError for what can't be read or understood."""
    if exit_code is not None and signal_word is not None:
        raise InputError("A program ends by an exit code or by a signal: give --exit-code or --signal, not both.")
    number = _signal(signal_word) if signal_word is not None else None
    return diagnose(
        Evidence(
            report=None,
            exit_code=exit_code,
            signal=number,
            stderr_tail=_read(log),
            heartbeat=None,
            kernel_log=_read(str(kernel_log)) if kernel_log is not None else None,
            first_hand=False,
        )
    )


def plain(found: Diagnosis) -> dict[str, Any]:
    """For JSON."""
    return {
        "kind": found.kind.value,
        "confidence": found.confidence,
        "retryable": found.retryable,
        "helps": list(found.helps),
        "evidence": list(found.evidence),
        "explanation": found.explanation,
        "also": [kind.value for kind in found.also],
    }


def render(found: Diagnosis) -> str:
    """For people."""
    again = "trying again may help" if found.retryable else "trying again would meet the same"
    lines = [f"{found.kind.value} (confidence {found.confidence:.0%}; {again})", found.explanation]
    if found.helps:
        lines.append(f"Helps: {', '.join(found.helps)}")
    if found.also:
        lines.append(f"Possible too: {', '.join(found.also)}")
    if found.evidence:
        lines += ["Evidence:", *(f"  {line}" for line in found.evidence)]
    return "\n".join(lines)


def _signal(word: str) -> int:
    if word.isdecimal() and 0 < int(word) < signal.NSIG:
        return int(word)
    name = word.upper() if word.upper().startswith("SIG") else f"SIG{word.upper()}"
    found = signal.Signals.__members__.get(name)
    if found is None:
        raise InputError(f"--signal {word}: no such signal; give a name such as SIGKILL, or a number.")
    return int(found)


def _read(name: str) -> str:
    """The beginning and the end of a file, as much as is looked at."""
    try:
        if name == STANDARD_INPUT:
            data = _ends(sys.stdin.buffer)
        else:
            with open(name, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                data = file.read(HEAD_CHARACTERS)
                if size > HEAD_CHARACTERS + TAIL_CHARACTERS:
                    file.seek(-TAIL_CHARACTERS, os.SEEK_END)
                    data += b"\n"
                data += _ends(file)
    except OSError as error:
        raise InputError(
            f"{name}: {error.strerror or error}; name a log that can be read, or - for standard input."
        ) from error
    return data.decode(errors="replace")


def _ends(file: BinaryIO) -> bytes:
    """Head and tail of a stream, in bounded memory."""
    head = file.read(HEAD_CHARACTERS)
    tail, cut = b"", False
    while chunk := file.read(_CHUNK):
        cut = cut or len(tail) + len(chunk) > TAIL_CHARACTERS
        tail = (tail + chunk)[-TAIL_CHARACTERS:]
    return head + (b"\n" if cut else b"") + tail
