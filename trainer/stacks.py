"""The stacks of all threads for somebody outside, also when Python itself cannot run any more."""

from __future__ import annotations

import faulthandler
import signal
from pathlib import Path


def show_stacks(path: Path) -> None:
    """On SIGUSR1 append the stacks of all threads to ``path``, on a fatal signal write them to stderr.

    The handler is C and needs no lock: it works in a deadlock and while native code keeps the interpreter. That the
    file exists tells the supervisor that it may send the signal. Raises OSError when the file cannot be made.
    """
    stacks = open(path, "ab", buffering=0)  # noqa: SIM115 - stays open for the handler until the end
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    faulthandler.enable()
