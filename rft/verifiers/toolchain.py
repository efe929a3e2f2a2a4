"""Where a program really is, and what a sandbox must see for it to run."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from supervisor.protocol.manifest import digest_file

_SYSTEM = ("/usr/", "/bin/", "/sbin/", "/lib/", "/lib64/")
"""What every sandbox sees anyway."""
_CHOOSER_SECONDS = 30


class NoProgramError(Exception):
    """There is no such program; one sentence with the remedy."""


@dataclass(frozen=True)
class Program:
    """``path`` to be started, and the ``folders`` that it needs. ``digest`` changes when it is another version."""

    path: str
    folders: tuple[Path, ...]
    digest: str


def find_program(name: str) -> Program:
    """A program by its name on PATH or its path. Raises NoProgramError."""
    found = shutil.which(os.path.expanduser(name))  # noqa: PTH111
    if found is None:
        raise NoProgramError(f"the program {name} is not on this machine; install it, or name its path")
    path = Path(os.path.abspath(found))  # noqa: PTH100  (a link, such as a venv's python, stays)
    if path.resolve().name == "rustup" and path.name != "rustup":
        path = _behind(path, path.resolve())
    elif path.parent.name == "shims" and (pyenv := path.parent.parent / "bin" / "pyenv").exists():
        path = _behind(path, pyenv)
    folders = _folders(path)
    return Program(str(path), folders, _digest(path, folders))


def _behind(proxy: Path, chooser: Path) -> Path:
    """The program that a proxy of rustup's or pyenv's would start: the proxy itself needs the user's home."""
    try:
        done = subprocess.run(
            [str(chooser), "which", proxy.name], capture_output=True, text=True, timeout=_CHOOSER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoProgramError(f"{chooser.name} does not say where {proxy.name} is: {error}") from None
    if done.returncode:
        words = done.stderr.strip().splitlines()
        said = words[-1] if words else "no reason given"
        raise NoProgramError(f"{chooser.name} does not say where {proxy.name} is: {said}")
    return Path(done.stdout.strip())


def _folders(path: Path) -> tuple[Path, ...]:
    found = []
    for place in dict.fromkeys((path, path.resolve())):
        if not str(place).startswith(_SYSTEM):
            found.append(_prefix(place))
    if (path.parent.parent / "pyvenv.cfg").is_file():  # a venv's python, or a script beside it
        real = (path.parent / "python").resolve()
        if not str(real).startswith(_SYSTEM):
            found.append(_prefix(real))
    return tuple(dict.fromkeys(found))


def _prefix(path: Path) -> Path:
    """The folder above ``bin``; of a program that stands elsewhere, its own; nothing but the program where that folder
    is the user's home, holds it, or holds what else the user keeps."""
    folder = path.parent.parent if path.parent.name == "bin" else path.parent
    home = Path.home()
    homes = {home, home.resolve()}
    private = any(folder in (own, own / ".local") or own.is_relative_to(folder) for own in homes)
    return path if private else folder


def _digest(path: Path, folders: Iterable[Path]) -> str:
    """Of the program, and of names and sizes of what lies beside it: a compiler is mostly in its libraries."""
    parts = [digest_file(path).sha256]
    for folder in folders:
        for below in ("bin", "lib"):
            place = folder / below
            names = sorted(place.iterdir()) if place.is_dir() else []
            parts += [f"{entry.name} {entry.stat().st_size}" for entry in names if entry.is_file()]
        # What a Python program does is mostly in its packages.
        parts += sorted(entry.name for entry in folder.glob("lib/python*/site-packages/*.dist-info"))
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]
