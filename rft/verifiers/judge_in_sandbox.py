"""A judge process (see :mod:`.judge_process`) in a sandbox: it has no network, no files of the user's, no way out."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rft.sandbox.run import Limits, Sandbox, SandboxError
from rft.verifiers.inside import judge_server
from rft.verifiers.judge_process import Running, Start

END_SECONDS = 30.0
_SERVER = "judge_server.py"
_FOR_EVER = 7 * 24 * 3600
"""Seconds; a judge that has served for so long is started again."""


def python_folders() -> list[Path]:
    """What a sandbox must see of this interpreter and the packages of its environment."""
    return list(dict.fromkeys([Path(sys.prefix), Path(sys.base_prefix).resolve()]))


def sandboxed(
    sandbox: Sandbox,
    file: str,
    name: str,
    argument: Any,
    files: Mapping[str, bytes],
    memory_bytes: int,
    readable: Sequence[Path] = (),
) -> Start:
    """A judge of ``file``, one of ``files``, with this interpreter's packages. ``argument`` goes to ``name``."""
    given = {**files, _SERVER: Path(judge_server.__file__).read_bytes()}
    argv = [sys.executable, "-I", _SERVER, "0", file, name, json.dumps(argument)]
    limits = Limits(cpu_seconds=_FOR_EVER, wall_seconds=_FOR_EVER, memory_bytes=memory_bytes)

    def start(connection: socket.socket) -> Running:
        return _InSandbox(sandbox, argv, given, limits, [*python_folders(), *readable], connection.dup())

    return start


class _InSandbox:
    def __init__(
        self,
        sandbox: Sandbox,
        argv: Sequence[str],
        files: Mapping[str, bytes],
        limits: Limits,
        folders: Sequence[Path],
        connection: socket.socket,
    ) -> None:
        def run() -> None:
            with connection:
                try:
                    ran = sandbox.run(argv, files, limits, folders, stdin=connection.fileno())
                    words = (ran.stderr or ran.stdout).decode(errors="replace").strip().splitlines()
                    problem = words[-1] if words else f"it ended with {ran.exit_code}"
                except SandboxError as error:
                    problem = str(error)
                _report(connection, problem)

        # The sandbox dies with the thread that started it.
        self._thread = threading.Thread(target=run, name="judge-in-sandbox", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._thread.join(END_SECONDS)


def _report(connection: socket.socket, problem: str) -> None:
    """Tell whoever waits for an answer why none comes; nobody waits when the judge was closed."""
    try:
        connection.settimeout(1)
        connection.sendall(json.dumps({"lost": problem}).encode() + b"\n")
    except OSError:
        return
