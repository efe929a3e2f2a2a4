"""Where the final answer of a worked solution stands. Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence

MAX_ANSWER = 2000
"""Characters of a final answer; a longer one is none."""

# Each can be matched in time proportional to the text's length: completions are not written by friends.
_MARKED = re.compile(r"^[ \t]*####(.*)$", re.MULTILINE)
_SAID = re.compile(r"\banswer(?:[ \t]+is|[ \t]*[:=])(.*)$", re.IGNORECASE | re.MULTILINE)
_NUMBER = re.compile(r"(?<![\w.])-?\$?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?%?")


def boxed(text: str) -> str | None:
    r"""What the last ``\boxed{}`` holds, None when there is none or its brace is never closed."""
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        return None
    opened = text.index("{", start)
    depth = 0
    for position in range(opened, min(len(text), opened + MAX_ANSWER + 2)):
        if text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
            if depth == 0:
                return text[opened + 1 : position]
    return None


def tagged(text: str) -> str | None:
    """What stands in the last ``<answer>`` that is closed."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    return None if start < 0 else text[start + len("<answer>") : end]


def _last(pattern: re.Pattern[str]) -> Callable[[str], str | None]:
    def find(text: str) -> str | None:
        last = deque(pattern.finditer(text), 1)
        if not last:
            return None
        return last[0].group(1 if pattern.groups else 0)

    return find


def _said(text: str) -> str | None:
    found = _last(_SAID)(text)
    return None if found is None else found.lstrip(" \t:=").rstrip(" \t.*")


RULES: Mapping[str, Callable[[str], str | None]] = {
    "boxed": boxed,
    "tagged": tagged,
    "marked": _last(_MARKED),
    "said": _said,
    "last_number": _last(_NUMBER),
}
r"""boxed: the last ``\boxed{}``; tagged: the last ``<answer>``; marked: the last line after ``####``; said: what
follows the last "answer is" or "answer:" on its line; last_number: the last number of the text."""


def final_answer(text: str, rules: Sequence[str]) -> tuple[str, str] | None:
    """``(rule, answer)`` by the first of ``rules`` that finds one."""
    for rule in rules:
        found = RULES[rule](text)
        if found is not None and found.strip() and len(found) <= MAX_ANSWER:
            return rule, found.strip()
    return None
