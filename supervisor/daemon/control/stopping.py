"""Asking the supervisor of a run to save a checkpoint and end, by the run directory alone."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from supervisor.problems import InputError
from supervisor.protocol.lock import lock_holder
from supervisor.protocol.paths import RunPaths


def ask_to_stop(run_dir: Path) -> bool:
    """SIGTERM to whoever holds the supervisor's lock now; False when nobody does. Raises InputError."""
    lock = RunPaths(run_dir).supervisor_lock
    holder = lock_holder(lock)
    if holder is None:
        return False
    try:
        handle = os.pidfd_open(holder) if holder else None
        # Looked at again with the process in hand: a pid that was freed meanwhile may be somebody else's by now.
        if handle is None or lock_holder(lock) != holder:
            raise InputError(f"{run_dir}: it is being supervised, by which process is not known. Try again.")
        try:
            signal.pidfd_send_signal(handle, signal.SIGTERM)
        finally:
            os.close(handle)
    except ProcessLookupError:
        return False
    except PermissionError:
        raise InputError(f"{run_dir}: its supervisor (process {holder}) belongs to somebody else.") from None
    return True
