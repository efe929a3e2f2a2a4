"""What a compiler said, from its output. Pure."""

from __future__ import annotations

import json
import re

_CODE = re.compile(r"\berror(?:\[|:? )(E\d{4}|TS\d{4}|CS\d{4})\b")
_MAX_MESSAGES = 50


def diagnostics(stdout: bytes, stderr: bytes) -> tuple[str, str | None]:
    """The diagnostics for people, and the code of the first error where the compiler has codes (E0308).

    ``cargo --message-format=json`` prints a JSON object per line: its errors come first, as it would show them. Of any
    other command it is the standard error output and then the other one.
    """
    plain = "\n".join(part.decode(errors="replace").strip() for part in (stderr, stdout) if part.strip())
    messages = _cargo(stdout)
    if messages:
        codes = [code for level, code, _ in messages if level == "error" and code]
        errors = [text for level, _, text in messages if level == "error"]
        others = [text for level, _, text in messages if level != "error"]
        return "\n".join([*errors, *others])[:200_000], codes[0] if codes else None
    found = _CODE.search(plain)
    return plain, found.group(1) if found else None


def _cargo(stdout: bytes) -> list[tuple[str, str | None, str]]:
    """Level, code and text of each message; empty when this is not cargo's JSON."""
    found: list[tuple[str, str | None, str]] = []
    for line in stdout.splitlines():
        if not line.startswith(b'{"reason":'):
            continue
        try:
            message = json.loads(line).get("message")
        except (ValueError, RecursionError, AttributeError):
            continue
        if not isinstance(message, dict) or not isinstance(message.get("rendered"), str):
            continue
        code = message.get("code")
        named = code.get("code") if isinstance(code, dict) else None
        found.append((str(message.get("level")), named, message["rendered"].strip()))
        if len(found) == _MAX_MESSAGES:
            break
    return found
