"""`mens-sup run` around the scripted trainer in processes of its own, which a test may kill one after the other."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from scripted_runs import document, events, start_supervisor, wait_for

from supervisor.protocol.lock import lock_holder
from supervisor.protocol.paths import RunPaths
from supervisor.yaml_source import render_yaml


class Supervised:
    """One run and its supervisors; :meth:`clear` ends whatever is left of them."""

    def __init__(self, place: Path, *faults: dict[str, Any], **sections: dict[str, Any]) -> None:
        self.place = place / "r"
        self.paths = RunPaths(self.place)
        self.file = place / "config.yaml"
        self.file.write_text(render_yaml(document(*faults, **sections)))
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *options: str, dies_at: str | None = None) -> subprocess.Popen[bytes]:
        """``dies_at``: see dying_supervisor.py."""
        self.processes.append(start_supervisor(self.file, self.place, *options, dies_at=dies_at))
        return self.processes[-1]

    def kill(self) -> None:
        """SIGKILL to the newest supervisor."""
        self.processes[-1].kill()
        self.processes[-1].wait()

    def trainer_at(self, step: int) -> int:
        """Wait until the trainer has done ``step``; its pid."""
        wait_for(lambda: any((event.step or 0) >= step for event in events(self.place, "progress")))
        holder = lock_holder(self.paths.trainer_lock)
        assert holder
        return holder

    @property
    def log(self) -> str:
        return self.place.with_suffix(".log").read_text()

    def clear(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        if holder := lock_holder(self.paths.trainer_lock):
            os.kill(holder, signal.SIGKILL)
