"""Waiting for a program of our own that does the work: what is asked of us is asked of it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from typing import IO

_PASSED_ON = (signal.SIGTERM, signal.SIGHUP)


def run_forwarding(command: Sequence[str], stdout: IO[str] | None = None) -> int:
    """The exit code of ``command``. SIGTERM and SIGHUP go on to it; Ctrl-C reaches it from the terminal by itself, and
    how soon it ends is its business. Main thread only."""
    process = subprocess.Popen(command, stdout=stdout)
    before = {signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None)}
    for name in _PASSED_ON:
        before[name] = signal.signal(name, lambda number, _frame: process.send_signal(number))
    try:
        return process.wait()
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
