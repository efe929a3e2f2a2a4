"""The scripted trainer, able to wait as a standby. $WARM says how it gets ready: at once, ``die``, or seconds."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import scripted_trainer

from supervisor.protocol.attempt import read_spec
from supervisor.protocol.standby import STANDBY_VARIABLE, await_job


def get_ready(present: Path) -> None:
    how = os.environ.get("WARM", "")
    print(f"a standby beside attempt {read_spec(present).attempt}", file=sys.stderr)
    if how == "die":
        sys.exit("no such library")
    time.sleep(float(how or 0))


if __name__ == "__main__":
    await_job(get_ready)
    print(f"pid {os.getpid()}, nice {os.getpriority(os.PRIO_PROCESS, 0)}, {STANDBY_VARIABLE in os.environ}", flush=True)
    sys.exit(scripted_trainer.main())
