"""Tell somebody how a run ended: the user's own command gets the event as JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from supervisor.redact import SECRET_NAME, hide_secrets

LIMIT_SECONDS = 30.0
_TAIL_CHARACTERS = 300


def notify(command: Sequence[str], payload: Mapping[str, Any], *, limit_seconds: float = LIMIT_SECONDS) -> str | None:
    """Run ``command`` with ``payload`` as JSON on its standard input; None if it succeeded, else why not.

    Never raises for a command that is missing, fails or hangs: after ``limit_seconds`` its process
    group is killed. Secrets in texts are hidden, and the environment loses variables whose names
    look like credentials.
    """
    if not command:
        return None
    text = json.dumps(hide_secrets(dict(payload)), default=str)
    environment = {name: value for name, value in os.environ.items() if not SECRET_NAME.search(name)}
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return f"the notification command {command[0]} could not be started: {error.strerror}"
    try:
        _, errors = process.communicate(text.encode(), timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        _kill(process)
        return f"the notification command {command[0]} took longer than {limit_seconds:g} s and was killed"
    if process.returncode == 0:
        return None
    tail = hide_secrets(errors.decode("utf-8", "replace").strip()[-_TAIL_CHARACTERS:])
    how = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
    return f"the notification command {command[0]} failed with {how}" + (f": {tail}" if tail else "")


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()
    process.wait()
    for pipe in (process.stdin, process.stderr):
        if pipe is not None:
            pipe.close()
