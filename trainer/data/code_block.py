"""The code in an answer."""

from __future__ import annotations

import re

_FENCED = re.compile(r"^[ \t]*```[^\n]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)


def first_code_block(answer: str) -> str | None:
    """What stands in the first fenced block; None when there is none, or it is never closed."""
    found = _FENCED.search(answer)
    return None if found is None else found.group(1)
