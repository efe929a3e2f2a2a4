"""Text for terminals: untrusted text made harmless, numbers and durations in few characters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\Z)"  # OSC and other strings: window titles, clipboard, links
    r"|\x1b[ -/]*[0-~]",
    re.DOTALL,
)
_ASCII = {
    0x00B1: "+-",
    0x00B7: "-",  # middle dot
    0x00D7: "x",
    0x2013: "-",
    0x2014: "-",
    0x2018: "'",
    0x2019: "'",
    0x201C: '"',
    0x201D: '"',
    0x2026: "...",
    0x2192: "->",
    0x2212: "-",
}
_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-=+*%#"


def clean(text: str, *, lines: bool = False) -> str:
    """``text`` without escape sequences and control or direction-changing characters.

    White space becomes single blanks; with ``lines`` line ends and indentation are kept.
    """
    text = _ESCAPES.sub("", text).replace("\t", "    ").replace("\r\n", "\n").replace("\r", "\n")
    if not lines:
        text = " ".join(text.split())
    return "".join(char for char in text if char == "\n" or not _dangerous(char))


def printable(text: str, stream: TextIO) -> str:
    """``text`` in characters that ``stream`` can encode."""
    if is_unicode(stream):
        return text
    encoding = stream.encoding or "ascii"
    return text.translate(_ASCII).encode(encoding, "replace").decode(encoding)


def plain_ascii(text: str) -> str:
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def is_unicode(stream: TextIO) -> bool:
    return (stream.encoding or "ascii").lower().replace("-", "").startswith("utf")


def duration(seconds: float) -> str:
    """``3725 -> "1 h 02 m"``; negative counts as zero."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def count(number: float) -> str:
    """``12345 -> "12 345"``, ``8.25 -> "8.2"``."""
    return f"{number:.1f}" if abs(number) < 10 and number != int(number) else f"{round(number):,}".replace(",", " ")


def sparkline(values: Sequence[float], width: int, *, unicode: bool = True) -> str:
    """``values`` in at most ``width`` characters, each the mean of its share; the lowest is the lowest bar."""
    bars = _BARS if unicode else _ASCII_BARS
    means = _means(values, width)
    if not means:
        return ""
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(bars[min(len(bars) - 1, int((mean - low) / span * len(bars)))] for mean in means)


@dataclass(frozen=True)
class Chart:
    """Lines of characters, the highest first; ``high`` and ``low`` are the values of its upper and lower edge."""

    lines: tuple[str, ...]
    high: float
    low: float


def chart(values: Sequence[float], width: int, height: int, *, unicode: bool = True) -> Chart:
    """``values`` (at least one) as bars from the lower edge, each the mean of its share. A bar is never empty."""
    means = _means(values, width)
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    steps = len(_BARS) if unicode else 1
    heights = [1 + round((mean - low) / span * (height * steps - 1)) for mean in means]
    full = _BARS[-1] if unicode else "#"
    lines = []
    for row in range(height - 1, -1, -1):
        above = (tall - row * steps for tall in heights)
        lines.append("".join(full if over >= steps else _BARS[over - 1] if over > 0 else " " for over in above))
    return Chart(tuple(lines), high, low)


def _means(values: Sequence[float], width: int) -> list[float]:
    if not values or width < 1:
        return []
    columns = min(width, len(values))
    means = []
    for column in range(columns):
        share = values[column * len(values) // columns : (column + 1) * len(values) // columns]
        means.append(sum(share) / len(share))
    return means


def progress_bar(done: float, width: int, *, unicode: bool = True) -> str:
    """A bar of ``width`` characters for a share between 0 and 1."""
    filled = round(max(0.0, min(1.0, done)) * width)
    full, empty = ("━", "─") if unicode else ("#", "-")
    return full * filled + empty * (width - filled)


def _dangerous(char: str) -> bool:
    # Cc: control, Cf: format (direction overrides), Cs: lone surrogates, Zl/Zp: line and paragraph ends
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
