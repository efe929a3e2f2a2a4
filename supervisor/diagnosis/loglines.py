"""From a raw log to lines one can reason about: no prefixes, no boxes, no progress bars in front. Pure."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass

HEAD_CHARACTERS = 128 * 1024
TAIL_CHARACTERS = 512 * 1024
LINE_CHARACTERS = 1600

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Level(enum.IntEnum):
    """How loudly a line speaks, by its own prefix or words."""

    QUIET = 0
    PLAIN = 1
    ERROR = 2


@dataclass(frozen=True)
class Line:
    """One line. ``text``: without prefixes; ``shown``: with them. ``source``: rank or process, "" when unknown."""

    text: str
    shown: str
    source: str
    level: Level


def clean_text(text: str) -> str:
    """Without terminal escapes and control characters; a progress bar's redraws become lines."""
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROLS.sub("", text)


def read_lines(text: str) -> list[Line]:
    """The lines of a log, of a very long one its beginning and its end."""
    if len(text) > HEAD_CHARACTERS + TAIL_CHARACTERS:
        text = f"{text[:HEAD_CHARACTERS]}\n{text[-TAIL_CHARACTERS:]}"
    return [_line(raw) for raw in _unglued(clean_text(text)) if raw.strip()]


_GLUED = re.compile(
    r"(?<=[\w\]%)|>.:^])[ \t]*"
    r"(?=Traceback \(most recent call last\):|(?:\[rank\d+\]|\[default\d+\]): ?Traceback \(most)"
    r"|(?<=\])(?=(?:[a-z_]\w*\.){0,6}[A-Z]\w{2,60}(?:Error|Exception|Interrupt): )"
    r"|(?<=it/s\])(?=[^\s,\]])|(?<=s/it\])(?=[^\s,\]])"
)


def _unglued(text: str) -> Iterator[str]:
    """Lines, with what a progress bar or another rank left in front of a traceback cut off."""
    for raw in _unsquashed(text):
        if len(raw) > LINE_CHARACTERS:
            raw = f"{raw[: LINE_CHARACTERS * 3 // 4]} ... {raw[-LINE_CHARACTERS // 4 :]}"
        if "Traceback" in raw or "/it]" in raw or "it/s]" in raw or "Error: " in raw:
            yield from _GLUED.split(raw)
        else:
            yield raw


_SQUASHED = re.compile(r"Traceback \(most recent call last\):\s+(?=File )")
_SQUASHED_PARTS = re.compile(
    r"\s+(?=File \"[^\"]{1,300}\", line \d+)"
    r"|\s+(?=(?:[a-z_]\w{0,40}\.){0,6}[A-Z]\w{2,60}(?:Error|Exception|Interrupt): )"
    r"|\s+(?=During handling of the above|The above exception was)|(?<=\S)\s*(?=Traceback \(most recent)"
)


def _unsquashed(text: str) -> Iterator[str]:
    """Lines; a traceback that was pasted without line ends gets them back."""
    for raw in _unescaped(text):
        if "Traceback" in raw and _SQUASHED.search(raw):
            for number, part in enumerate(_SQUASHED_PARTS.split(raw[: 8 * LINE_CHARACTERS])):
                yield f"  {part}" if number and part.startswith("File ") else part.rstrip("`")
        else:
            yield raw


def _unescaped(text: str) -> Iterator[str]:
    """Lines; a traceback that stands in a JSON string gets its line ends back."""
    for raw in text.split("\n"):
        if "(most recent call last):\\n" in raw:
            yield from raw.replace('\\"', '"').split("\\n")
        else:
            yield raw


_BOX = re.compile(r"^\s*[│┃|](?P<inside>.*?)\s*[│┃]$")
_RANK = r"rank ?\d+|default\d+"
_LEVELS = r"DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL|SEVERE"
_STAMP = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_PREFIX = re.compile(
    rf"\s*(?:"
    rf"\[(?P<rank>{_RANK})\]:? ?"
    rf"|\((?P<actor>[A-Za-z_][\w.\-]*(?:\([^)]*\))?(?: rank=\d+)?,? (?:TP\d+ )?pid=\d+(?:, ip=[\d.]+)?)\) ?"
    rf"|\[?{_STAMP}\]?[ ,:]* ?(?:- |\| )?"
    rf"|\d\d/\d\d(?:/\d{{4}})? \d\d:\d\d:\d\d (?:- )?(?:\w+ - )?"
    rf"|\((?:raylet|autoscaler|gcs_server)[^)]*\) ?"
    rf"|\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]? +"
    rf"|(?P<glog>[EWIF])\d{{4}} \d\d:\d\d:\d\d\.\d+ +(?:\d+ )*[\w./\-<>]+:\d+\] ?"
    rf"|\[(?P<nccl>[EWIF])(?:\d{{3,4}} \d\d:\d\d:\d\d\.\d+)? ?[\w./\-]+:\d+\] ?"
    rf"|\[?(?P<level>{_LEVELS})\]?(?: +\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)?(?: \[[\w./\-<>]+:\d+\])?[:|\-]?(?=[\s:]"
    rf"|$)(?: ?\| ?| ?- | ?:[\w.]+:|:|(?<=:) {{1,8}}| )?"
    rf"|\[[\w.\-]+(?:\.[\w\-]+)+:\d+(?::\w+)?\] ?|\[[\w.]+\.py:\d+(?::\w+)?\] ?"
    rf"|\[(?P<short>[DIWEF])\] +"
    rf"|\[PID:\d+\] ?|\[RANK:\d+\] ?"
    rf"|[\w.\-]{{3,60}} +\| "
    rf"|(?:stderr|stdout): ?"
    rf"|E {{3,12}}"
    rf"|\d{{1,4}}: (?=\S)"
    rf")"
)
_WARNING_WORDS = re.compile(
    r"\b\w*Warning\b|\bwarn(?:ing)?\b\s*[:\]]|\bskipp(?:ing|ed)\b|\bretry(?:ing|\b)|\bwill retry\b"
    r"|\bcaught\b(?! collective)|\brecover(?:ed|ing)\b|^Exception (?:ignored in|in thread)|\bcontinuing\b"
    r"|\bthrown while requesting\b",
    re.IGNORECASE,
)
_ADVICE_WORDS = re.compile(
    r"\bfall(?:ing)? ?back\b|\bignor(?:e|es|ing|ed)\b|\bdeprecated\b|\bfor (?:faster|better)\b|\brecommend",
    re.IGNORECASE,
)
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.){0,8}[A-Z]\w*(?:Error|Exception): ")
"""An exception may give advice in its message, and still be one."""
_ERROR_WORDS = re.compile(
    r"\berror\b|\bfatal\b|\bfailed\b|\bterminate called\b|^\s*what\(\):|\bERR\b|\bpanic|\bKilled\b|\bcritical\b",
    re.IGNORECASE,
)
_QUIET_LEVELS = frozenset({"DEBUG", "INFO", "NOTICE", "WARN", "WARNING", "W", "I", "D"})


def _line(raw: str) -> Line:
    shown = raw.rstrip()
    text = shown
    if box := _BOX.match(text):
        text = box["inside"]
        text = text[1:] if text.startswith(" ") else text
    source, word = "", ""
    for _ in range(5):
        found = _PREFIX.match(text)
        if not found or not found.end():
            break
        source = found["rank"] or found["actor"] or source
        word = found["level"] or found["glog"] or found["nccl"] or found["short"] or word
        text = text[found.end() :]
    if text.startswith(" ") and not text.startswith(("  ", " \t")):
        text = text[1:]  # left over by a prefix; only deeper indentation tells something
    return Line(text, shown.strip(), source, _level(word, text))


def _level(word: str, text: str) -> Level:
    if _WARNING_WORDS.search(text) or (_ADVICE_WORDS.search(text) and not _EXCEPTION.match(text)):
        return Level.QUIET
    if word:
        return Level.QUIET if word in _QUIET_LEVELS else Level.ERROR
    return Level.ERROR if _ERROR_WORDS.search(text) else Level.PLAIN
