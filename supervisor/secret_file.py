"""Files that hold addresses which are secrets themselves: whoever knows one can write there."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

from supervisor.redact import HIDDEN, hide_secrets


def read_addresses(file: Path) -> list[str] | str:
    """The addresses in ``file``, one a line, # begins a comment; or why there are none, without showing any."""
    try:
        mode = file.stat().st_mode
        text = file.read_text()
    except OSError as error:
        return f"{file}: {error.strerror}"
    except UnicodeDecodeError:
        return f"{file} is not text"
    if mode & stat.S_IROTH:
        return f"{file} can be read by everybody on this machine, and holds secrets"
    found = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return found or f"{file} holds no address"


def without(text: str, secrets: Sequence[str]) -> str:
    """``text`` without the addresses, nor any longer part of one that a library may have repeated."""
    parts = {part for secret in secrets for part in (secret, *_parts(secret))}
    for part in sorted(parts, key=len, reverse=True):
        text = text.replace(part, HIDDEN)
    return str(hide_secrets(text))


def _parts(address: str) -> list[str]:
    rest = address.partition("://")[2]
    for sign in "/?&=@:":
        rest = rest.replace(sign, " ")
    return [part for part in rest.split() if len(part) >= 6]
