"""How Python is asked for in a chat, and what a right answer looks like."""

from __future__ import annotations


def fenced(code: str) -> str:
    """Code as a whole answer."""
    return f"```python\n{code.strip(chr(10)).rstrip()}\n```"


def code_prompt(code: str) -> str:
    """Asks for a function of which the beginning is there: imports, signature, docstring."""
    return f"Complete this Python function. Answer with the whole function in one code block.\n\n{fenced(code)}"
