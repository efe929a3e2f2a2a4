"""`mens-sup daemon` in a process of its own, with the kinds of job for tests; a test may kill it and start it again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripted_runs import alive, document, wait_for

from supervisor.daemon.control.client import DaemonClient
from supervisor.daemon.control.errors import NoDaemonError
from supervisor.daemon.launched import read_started
from supervisor.daemon.paths import DaemonPaths
from supervisor.daemon.service import Entry, EntryState
from supervisor.protocol.lock import lock_holder
from supervisor.protocol.paths import RunPaths
from supervisor.yaml_source import render_yaml


class DaemonProcess:
    """One state folder and its daemons, one after the other; :meth:`clear` ends what is left of them and the runs."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.paths = DaemonPaths(place / "state")
        self.socket = place / "s"
        self.client = DaemonClient(self.socket)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, environment: Mapping[str, str] | None = None, pass_fds: Sequence[int] = ()) -> None:
        """Returns once it answers."""
        self.launch(environment, pass_fds)
        wait_for(self._answers, 60)

    def launch(self, environment: Mapping[str, str] | None = None, pass_fds: Sequence[int] = ()) -> None:
        """Start it without waiting for anything."""
        stand_ins = str(Path(__file__).parent)
        with open(self.place / "daemon.log", "ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "supervisor.cli", "daemon"),
                    *("--state-dir", str(self.paths.root), "--socket", str(self.socket)),
                ],
                env={**os.environ, "PYTHONPATH": stand_ins, **(environment or {})},
                stdout=log,
                stderr=log,
                pass_fds=pass_fds,
            )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self, *signals: int) -> int:
        """Ask it to end, SIGTERM unless told; its exit code."""
        assert self.process is not None
        for number in signals or (signal.SIGTERM,):
            self.process.send_signal(number)
        return self.process.wait(60)

    def submit(self, name: str, *faults: dict[str, Any], kind: str = "scripted", **sections: Any) -> Entry:
        """``after``, ``priority`` and ``run_dir`` are of the submission, the rest of the configuration."""
        request = {key: sections.pop(key) for key in ("after", "priority", "run_dir") if key in sections}
        content = document(*faults, **sections) if kind == "scripted" else {"kind": kind, **sections}
        file = self.place / f"{name}.yaml"
        file.write_text(render_yaml(content))
        return self.client.submit({"config": str(file), **request})

    def entry(self, entry: Entry) -> Entry:
        return self.client.entry(entry.id)

    def until(self, entry: Entry, *states: EntryState) -> Entry:
        """Wait for the entry to be in one of the states."""

        def there() -> Entry | None:
            found = self.entry(entry)
            return found if found.state in states else None

        try:
            found: Entry = wait_for(there, 90)
        except AssertionError:
            raise AssertionError(f"{self.entry(entry)}\n{self.log[-3000:]}") from None
        return found

    @property
    def log(self) -> str:
        return (self.place / "daemon.log").read_text()

    def clear(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        for folder in sorted(self.paths.root.glob("jobs/*")):
            started = read_started(self.paths.job(int(folder.name)))
            if started is not None and lock_holder(folder / "lock") and alive(started.pid):
                os.kill(started.pid, signal.SIGKILL)
        for run in sorted(self.paths.runs.glob("*")):
            if holder := lock_holder(RunPaths(run).trainer_lock):
                os.kill(holder, signal.SIGKILL)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log[-3000:]
        try:
            self.client.health()
        except NoDaemonError:
            return False
        return True
