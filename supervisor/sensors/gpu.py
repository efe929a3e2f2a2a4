"""The GPUs, asked through a disposable process with a deadline: the supervisor never waits for a sick driver."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import psutil

from supervisor.sensors.snapshot import GpuProcess, GpuReading, Unknown

FIRST_DEADLINE_SECONDS = 20.0
"""For the first reading of a probe: Python starts, and the driver wakes every card."""
DEADLINE_SECONDS = 5.0
RETRY_SECONDS = 600.0
"""Until a new try after a clear answer such as "no driver"."""
HANG_RETRY_SECONDS = 60.0
REAP_SECONDS = 2.0
"""How long a killed probe may take to end before we say that it cannot be killed."""
DRIVER_HANGS = "the NVIDIA driver hangs"
"""How the reason begins when the driver does not answer."""
PROBE = Path(__file__).with_name("nvml_probe.py")

Gpus = tuple[GpuReading, ...] | Unknown


class _Reply(msgspec.Struct, frozen=True):
    gpus: tuple[GpuReading, ...] = ()
    error: str = ""


_decoder = msgspec.json.Decoder(_Reply)


class GpuSensor:
    """Reads the GPUs without ever blocking on the driver: :meth:`request`, then :meth:`poll`.

    At most one probe process exists at a time. It is killed when it misses its deadline; one that not even
    SIGKILL ends (it sits in the driver) is left alone, and no other is started until it is gone.
    ``environment``: of the probe, the supervisor's own by default.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        *,
        first_deadline: float = FIRST_DEADLINE_SECONDS,
        deadline: float = DEADLINE_SECONDS,
        hang_retry: float = HANG_RETRY_SECONDS,
    ) -> None:
        self._environment = dict(os.environ if environment is None else environment)
        self._first_deadline = first_deadline
        self._deadline = deadline
        self._hang_retry = hang_retry
        self._process: subprocess.Popen[bytes] | None = None
        self._undead: subprocess.Popen[bytes] | None = None
        self._killed_at = 0.0
        self._buffer = b""
        self._due: float | None = None
        self._patience = first_deadline
        self._retry_at = 0.0
        self._latest: Gpus = Unknown("the GPUs have not been read yet")

    @property
    def present(self) -> bool:
        """Whether the last reading found a driver with at least one GPU."""
        return not isinstance(self._latest, Unknown) and len(self._latest) > 0

    @property
    def probe_pid(self) -> int | None:
        """The pid of the living probe, also of one that cannot be killed."""
        process = self._process or self._undead
        return process.pid if process is not None and process.poll() is None else None

    def request(self) -> None:
        """Ask for a reading, unless one is under way or it is too early after a failure."""
        if self._due is not None:
            return
        if self._process is not None and self._ask():
            self._patience = self._deadline
        elif self._blocked() or time.monotonic() < self._retry_at or not self._start():
            return
        else:
            self._patience = self._first_deadline
        self._due = time.monotonic() + self._patience

    def poll(self) -> Gpus | None:
        """The newest reading or why there is none; None while one is under way. Never blocks."""
        if self._due is None:
            return self._latest
        line, ended = self._take_line()
        if line is not None:
            self._due = None
            self._latest = self._understand(line)
        elif ended:
            self._fail(self._how_it_ended(), self._hang_retry)
        elif time.monotonic() >= self._due:
            self._fail(f"{DRIVER_HANGS}: no answer within {self._patience:.0f} s", self._hang_retry)
        else:
            return None
        return self._latest

    def read(self) -> Gpus:
        """A fresh reading; waits for it, never longer than the deadline."""
        self.request()
        while (result := self.poll()) is None:
            assert self._process is not None and self._process.stdout is not None and self._due is not None
            select.select([self._process.stdout], [], [], max(0.0, self._due - time.monotonic()))
        return result

    def close(self) -> None:
        """End the probe; waits a moment for it."""
        self._due = None
        self._kill()
        if self._undead is not None:
            try:
                self._undead.wait(REAP_SECONDS)
            except subprocess.TimeoutExpired:
                return
            self._undead = None

    def _start(self) -> bool:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(PROBE)],
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self._fail(f"the probe of the NVIDIA driver cannot be started: {error.strerror}", RETRY_SECONDS)
            return False
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._buffer = b""
        return True

    def _ask(self) -> bool:
        """False when the probe has died while it was idle; it is then out of the way."""
        assert self._process is not None and self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), b"\n")
        except BrokenPipeError:
            self._kill()
            return False
        return True

    def _take_line(self) -> tuple[bytes | None, bool]:
        """A whole line if there is one, and whether the probe has closed its output."""
        assert self._process is not None and self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            try:
                chunk = os.read(descriptor, 1 << 16)
            except BlockingIOError:
                return None, False
            if not chunk:
                return None, True
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line, False

    def _understand(self, line: bytes) -> Gpus:
        try:
            reply = _decoder.decode(line)
        except msgspec.DecodeError as error:
            return self._fail(f"the probe of the NVIDIA driver answered nonsense ({error})", RETRY_SECONDS)
        if reply.error:
            return self._fail(reply.error, RETRY_SECONDS)
        return tuple(_named(gpu) for gpu in reply.gpus)

    def _fail(self, reason: str, retry_seconds: float) -> Unknown:
        self._due = None
        self._retry_at = time.monotonic() + retry_seconds
        self._kill()
        self._latest = Unknown(reason)
        return self._latest

    def _how_it_ended(self) -> str:
        assert self._process is not None
        try:
            code = self._process.wait(REAP_SECONDS)
        except subprocess.TimeoutExpired:
            return "the probe of the NVIDIA driver closed its output"
        if code >= 0:
            return f"the probe of the NVIDIA driver ended with exit code {code}"
        return f"the probe of the NVIDIA driver ended by {signal.Signals(-code).name}"

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        self._undead, self._killed_at = process, time.monotonic()

    def _blocked(self) -> bool:
        """Whether a killed probe is still there: it sits in the driver."""
        if self._undead is None:
            return False
        if self._undead.poll() is not None:
            self._undead = None
            return False
        if time.monotonic() - self._killed_at > REAP_SECONDS:
            self._latest = Unknown(
                f"{DRIVER_HANGS}: process {self._undead.pid}, which asks it, cannot even be killed; "
                "the machine has to be restarted"
            )
        return True


def _named(gpu: GpuReading) -> GpuReading:
    if isinstance(gpu.processes, Unknown):
        return gpu
    return msgspec.structs.replace(gpu, processes=tuple(_who(process) for process in gpu.processes))


def _who(process: GpuProcess) -> GpuProcess:
    """Name and owner of a process on a GPU, looked up here so that the probe stays small."""
    name: str | Unknown
    owner: str | Unknown
    try:
        seen = psutil.Process(process.pid)
        name, owner = seen.name(), seen.username()
    except psutil.NoSuchProcess:
        name = owner = Unknown("there is no such process here: it has ended, or lives in another PID namespace")
    except psutil.AccessDenied:
        name = owner = Unknown("we may not look at this process")
    return GpuProcess(process.pid, process.used_bytes, name, owner)
