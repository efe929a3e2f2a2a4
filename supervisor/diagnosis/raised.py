"""Exceptions in a log: which were raised, where, and which of a chain is the cause. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.diagnosis.loglines import Level, Line

CONTEXT_LINES = 150
MESSAGE_LINES = 8


@dataclass(frozen=True)
class Raised:
    """One exception. ``index``/``end``: its lines (end exclusive). ``context``: the traceback above, as one text,
    or what follows where none is above.

    ``cause``: the next exception says that it came of this one ("direct cause"). ``handled``: the next
    one arose while this one was being handled. ``loose``: it ended no program (logged, ignored, in a warning).
    """

    index: int
    end: int
    source: str
    type: str
    message: str
    context: str
    traced: bool
    cause: bool = False
    handled: bool = False
    loose: bool = False


_TRACEBACK = re.compile(
    r"^\s*(?:\w+ +)?Traceback \(most recent call last\)|^\s*[╭+]?[─-]+ Traceback \(most recent call last\)"
)
_TYPED = re.compile(
    r"^(?:[A-Za-z_]\w*\.){0,8}(?:RayTaskError\()?(?P<type>[A-Z_]\w*?|error|timeout|gaierror)\)?"
    r"(?::(?: (?P<message>.*))?)?$"
)
_SUFFIX = re.compile(
    r"(?:[Ee]rror|[Tt]imeout|Exception|Interrupt|Exit|Failure|Timeout|Abort|Expired|NotFound|Empty|Full|Iteration"
    r"|Died)$"
)
_DIRECT = "The above exception was the direct cause of the following exception"
_DURING = "During handling of the above exception, another exception occurred"
_LOOSE = re.compile(
    r"^--- Logging error ---|^Exception ignored in|^Exception in thread (?:Thread-|MsgRouter"
    r"|ChkStop|NetStat)"
)
_NOT_MESSAGE = re.compile(
    r"^(?:Traceback \(|During handling|The above exception|wandb: |[╭╰]|={5,}|-{5,}|terminate called"
    r"|frame #\d|Exception (?:in|raised)"
    r"|Sending process|failed \(exitcode|Root Cause|.*\d+/\d+ \[\d+:\d\d|Killed|srun:|slurmstepd:"
    r"|Process \w+-?\d*:|NVRM|Some NCCL"
    r"|Watchdog|train\.sh|Exception ignored|/usr/bin/|/usr/lib.*Warning)"
)


def find_raised(lines: Sequence[Line]) -> list[Raised]:
    """All exceptions of a log in the order in which they stand there."""
    found: list[Raised] = []
    opened: dict[str, int] = {}
    loose_until = -1
    index = 0
    while index < len(lines):
        line = lines[index]
        text = line.text
        if _LOOSE.match(text):
            loose_until = index + 60
        if _TRACEBACK.match(text):
            opened[line.source] = index
        elif text.startswith((_DIRECT, _DURING)):
            _chain(found, line.source, direct=text.startswith(_DIRECT))
        else:
            start = opened.get(line.source)
            if exception := _exception(lines, index, start, loose=index <= loose_until):
                found.append(exception)
                if opened.pop(line.source, None) is not None:
                    loose_until = -1
                index = exception.end
                continue
        index += 1
    return found


def _chain(found: list[Raised], source: str, *, direct: bool) -> None:
    for position in range(len(found) - 1, max(len(found) - 8, -1), -1):
        last = found[position]
        if last.source == source:
            found[position] = Raised(**{**vars(last), "cause" if direct else "handled": True})
            return


def _exception(lines: Sequence[Line], index: int, start: int | None, *, loose: bool) -> Raised | None:
    line = lines[index]
    text = line.text
    if not text or text[0] in " \t" or len(text) < 5:
        return None
    match = _TYPED.match(text)
    if match is None or match["type"].startswith("__"):
        return None
    name = match["type"]
    traced = start is not None and index - start <= 2000
    dotted = "." in text.split(":")[0]
    if (name.islower() or (name in ("Error", "Exception") and not traced)) and not dotted:
        return None  # "Error: training failed" is a sentence
    if not _SUFFIX.search(name) and not (traced and index - (start or 0) > 1 and dotted):
        return None
    if name.endswith("Warning"):
        return None
    end = index + 1
    parts = [match["message"] or ""]
    while end < len(lines) and end - index < MESSAGE_LINES and _continues(lines[end], line):
        parts.append(lines[end].text.strip())
        end += 1
    begin = max(start if start is not None and traced else index - 40, index - CONTEXT_LINES, 0)
    return Raised(
        index,
        end,
        line.source,
        name,
        _joined(parts, [lines[position].shown for position in range(index, end)]),
        "\n".join(
            lines[position].text
            for position in (*range(begin, index), *(() if traced else range(index + 1, end)))
            if lines[position].source == line.source
        ),
        traced,
        loose=loose or (not traced and line.level is Level.QUIET),
    )


def _continues(following: Line, first: Line) -> bool:
    if following.source != first.source or _prefixed(following) != _prefixed(first):
        return False
    if _NOT_MESSAGE.match(following.text):
        return False
    typed = _TYPED.match(following.text)
    return typed is None or not _SUFFIX.search(typed["type"]) or typed["type"][0].islower()


def _prefixed(line: Line) -> bool:
    return line.text.strip() != line.shown


def _joined(parts: Sequence[str], shown: Sequence[str]) -> str:
    """The message on one line; a word broken at the terminal's width is put together again."""
    text = parts[0]
    for position in range(1, len(parts)):
        wrapped = 76 <= len(shown[position - 1]) <= 250 and len(shown[position - 1]) % 10 == 0
        text += ("" if wrapped else " ") + parts[position]
    return text
