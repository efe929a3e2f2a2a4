"""The daemon in a process of its own, with the kinds of job for tests; a test may kill it and start it again."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripted_runs import alive, document, wait_for

from supervisor.daemon.desk import Desk, LoopView
from supervisor.daemon.intake import Accepted
from supervisor.daemon.launched import read_started
from supervisor.daemon.paths import DaemonPaths
from supervisor.daemon.queue import Job, Queue
from supervisor.daemon.service import Entry, EntryState, Submission
from supervisor.protocol.lock import lock_holder
from supervisor.protocol.paths import RunPaths
from supervisor.yaml_source import render_yaml

STAND_INS = Path(__file__).parent
PATIENCE = 600.0


class DaemonProcess:
    """One state folder and its daemons, one after the other; :meth:`clear` ends what is left of them and the runs.

    What it is asked goes into its database directly, through a desk in this process.
    """

    def __init__(self, place: Path, device: str = "cpu", environment: Mapping[str, str] | None = None) -> None:
        """``device``: what all jobs ask for."""
        self.place = place
        self._device = device
        self._environment = dict(environment or {})
        self.paths = DaemonPaths(place / "state")
        self.paths.root.mkdir()
        self.queue = Queue(self.paths.queue)
        self.desk = self._desk()
        self.process: subprocess.Popen[bytes] | None = None
        self._systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._systemd.bind(str(place / "notify"))

    def start(self) -> None:
        """Returns once it is ready."""
        self.launch()
        assert self.process is not None
        while b"READY=1" not in self.said():
            assert self.process.poll() is None, self.log[-3000:]

    def launch(self) -> None:
        """Start it without waiting for anything."""
        while self.said(0.0):
            continue
        with open(self.place / "daemon.log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(STAND_INS / "bare_daemon.py"), str(self.paths.root)],
                env={
                    **os.environ,
                    **self._environment,
                    "PYTHONPATH": str(STAND_INS),
                    "NOTIFY_SOCKET": str(self.place / "notify"),
                },
                stdout=log,
                stderr=log,
            )

    def said(self, seconds: float = 1.0) -> bytes:
        """The next word of the daemon to systemd; empty when it says nothing for so long."""
        return self._systemd.recv(4096) if select.select([self._systemd], [], [], seconds)[0] else b""

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self, *signals: int) -> int:
        """Ask it to end, by SIGTERM unless told; its exit code."""
        assert self.process is not None
        for number in signals or (signal.SIGTERM,):
            self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def submit(self, name: str, *faults: dict[str, Any], kind: str = "scripted", **sections: Any) -> Entry:
        """A job. ``after`` and ``priority`` are of the submission, the rest of the configuration."""
        request = {key: sections.pop(key) for key in ("after", "priority") if key in sections}
        content = document(*faults, **sections) if kind == "scripted" else {"kind": kind, **sections}
        file = self.place / f"{name}.yaml"
        file.write_text(render_yaml(content))
        return self.desk.submit(Submission(config=file, kind=kind, name=name, **request))

    def until(self, entry: Entry, *states: EntryState) -> Job:
        """Wait for the entry to be in one of the states."""

        def there() -> Job | None:
            found = self.queue.job(entry.id)
            assert found.state in states or not found.state.ended, f"{found}\n{self.log[-3000:]}"
            return found if found.state in states else None

        found: Job = wait_for(there, PATIENCE)
        return found

    def jobs(self) -> tuple[Job, ...]:
        return tuple(sorted((*self.queue.unfinished(), *self.queue.ended(None)), key=lambda job: job.id))

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
        self.queue.close()
        self._systemd.close()

    def _desk(self) -> Desk:
        def accept(config: Path, arguments: Sequence[str], *, preflight: bool) -> Accepted:
            text = config.read_text()
            return Accepted(
                name="job",
                kind=_kind(text),
                device=self._device,
                processes=1,
                arguments=tuple(arguments),
                document=text,
            )

        nothing: Callable[..., None] = lambda *_: None  # noqa: E731
        return Desk(self.paths, self.paths.runs, self.queue, LoopView(), nothing, nothing, accept)


def _kind(text: str) -> str:
    return next(line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("kind:"))
