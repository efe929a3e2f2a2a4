"""Run one command in a sandbox of its own."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rft.sandbox import bubblewrap, cgroup
from rft.sandbox.inside import confine
from rft.sandbox.inside.confine import HOME, WORK, Bounds
from rft.verifiers.verdict import Isolation

__all__ = ["HOME", "WORK", "CannotStartError", "Limits", "Ran", "Sandbox", "SandboxError"]

_MIB = 1 << 20
_PATIENCE_SECONDS = 20.0
"""For the kernel to end what was killed, beyond the command's own time."""
_SHELL_ENDED_FOR_CPU = 128 + signal.SIGXCPU
_FIRST_USER, _USERS = 1 << 30, 1 << 29
"""Ids that nobody is given by hand; each sandbox draws one, so that limits per user count one sandbox."""


@dataclass(frozen=True)
class Limits:
    """What a command may use up.

    ``cpu_seconds`` of each process, ``wall_seconds`` of all. ``memory_bytes``: of all processes and their files where
    there are control groups, else address space of each. ``processes`` and threads together. ``output_bytes``: of both
    streams. ``tmp_bytes`` and ``files``: how much, and how many files and folders, its only writable place may hold.
    """

    cpu_seconds: int = 10
    wall_seconds: float = 30.0
    memory_bytes: int = 2048 * _MIB
    processes: int = 64
    output_bytes: int = 1 * _MIB
    tmp_bytes: int = 256 * _MIB
    files: int = 10_000


@dataclass(frozen=True)
class Ran:
    """How a command ended. Exactly one of ``exit_code`` and ``signal`` is set. ``killed_for``: cpu, wall, memory or
    output, where a limit ended it; then its streams may be cut short. ``timed_out``: cpu or wall."""

    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool
    killed_for: str | None
    seconds: float


class SandboxError(Exception):
    """The sandbox failed, and not the command in it; one sentence."""


class CannotStartError(SandboxError):
    """The command's program is not there, or is none."""


class Sandbox:
    """Runs commands, each in a new bubblewrap that nothing is left of afterwards; from several threads.

    A command sees the system's programs, ``toolchains``, the files it was given in :data:`WORK` (where it starts), an
    empty home and nothing else; it has no network, no privileges and no environment but what it is given. Without
    isolation it is merely started in a folder of its own, as you.
    """

    def __init__(self, isolation: Isolation = Isolation.BUBBLEWRAP) -> None:
        self.isolation = isolation
        self._bare = isolation is Isolation.NONE
        self._groups = cgroup.Groups()
        self._interpreter = bubblewrap.own_interpreter()

    def open(self) -> None:
        """Raises SandboxUnusableError when this machine has no isolation."""
        from rft.sandbox.probe import probe

        if self.isolation is Isolation.BUBBLEWRAP:
            probe()

    def close(self) -> None:
        self._groups.close()

    @property
    def limits_memory(self) -> bool:
        """Whether memory is bounded for all processes of a command together; known once one has run."""
        return self._groups.limit_memory

    def run(
        self,
        argv: Sequence[str],
        files: Mapping[str, bytes],
        limits: Limits,
        toolchains: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
        stdin: int | None = None,
    ) -> Ran:
        """Run ``argv`` with ``files`` (paths relative to WORK) beside it. ``toolchains`` are folders that it may read,
        under the same path; their ``bin`` is on its PATH. ``environment`` comes on top of PATH, HOME, TMPDIR and LANG.
        Without isolation WORK is another folder: name files relatively. ``stdin`` is a descriptor to read from, which
        may be a socket to speak with the command; nothing by default.

        Raises CannotStartError, and SandboxError when there is no verdict about the command.
        """
        if self.isolation is Isolation.BUBBLEWRAP:
            return self._run(argv, files, limits, toolchains, environment or {}, WORK, HOME, stdin)
        with tempfile.TemporaryDirectory(prefix="mens-run-", ignore_cleanup_errors=True) as folder:
            home = Path(folder, "home")
            work = Path(folder, "work")
            home.mkdir()
            work.mkdir()
            return self._run(argv, files, limits, toolchains, environment or {}, str(work), str(home), stdin)

    def _run(
        self,
        argv: Sequence[str],
        files: Mapping[str, bytes],
        limits: Limits,
        toolchains: Sequence[Path],
        environment: Mapping[str, str],
        work: str,
        home: str,
        stdin: int | None,
    ) -> Ran:
        bare = self._bare
        for name in files:
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise SandboxError(f"{name} is no path inside the sandbox")
        with self._groups.borrow(limits.memory_bytes + 16 * _MIB, limits.processes + 4, wanted=not bare) as group:
            bounds = Bounds(
                cpu_seconds=limits.cpu_seconds,
                address_space=None if group.limits_memory else limits.memory_bytes,
                processes=limits.processes,
                tmp_bytes=limits.tmp_bytes,
                files=limits.files,
                user=plain_user() if bubblewrap.runs_as_root() and not bare else None,
                bare=bare,
            )
            spec = {
                "argv": list(argv),
                "environment": _environment(toolchains, home, str(Path(work).parent)) | dict(environment),
                "folder": work,
                "readable": self._readable(toolchains),
                "bounds": asdict(bounds),
                "files": [[name, len(content)] for name, content in files.items()],
            }
            given = json.dumps(spec).encode() + b"\n" + b"".join(files.values())
            return self._watch(given, limits, toolchains, group, stdin)

    def _watch(
        self, spec: bytes, limits: Limits, toolchains: Sequence[Path], group: cgroup.Group, stdin: int | None
    ) -> Ran:
        begun = time.monotonic()
        with os.fdopen(os.memfd_create("spec"), "r+b") as given:
            given.write(spec)
            given.flush()
            given.seek(0)
            report_read, report_write = os.pipe()
            info_read, info_write = os.pipe()
            try:
                process = subprocess.Popen(
                    group.entering(self._command(given.fileno(), report_write, info_write, toolchains)),
                    env={},
                    cwd="/",
                    stdin=subprocess.DEVNULL if stdin is None else stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=(given.fileno(), report_write, *([] if self._bare else [info_write])),
                    start_new_session=True,
                )
            except OSError as error:
                os.close(report_read)
                os.close(info_read)
                raise SandboxError(f"no process can be started: {error.strerror}") from error
            finally:
                os.close(report_write)
                os.close(info_write)
        with process, os.fdopen(report_read, "rb") as report, os.fdopen(info_read, "rb") as info:
            first = _first_process(info.read(), process)
            try:
                streams, stopped_for = _collect(process, limits, begun)
            finally:
                _end(process, first)
            ending = report.read()
        seconds = time.monotonic() - begun
        return _ran(ending, streams, stopped_for, seconds, limits, group.ran_out_of_memory())

    def _readable(self, toolchains: Sequence[Path]) -> list[str]:
        return [*self._interpreter.folders, *(os.path.abspath(folder) for folder in toolchains)]  # noqa: PTH100

    def _command(self, spec: int, report: int, info: int, toolchains: Sequence[Path]) -> list[str]:
        root = str(Path(confine.__file__).parents[3]) if self._bare else bubblewrap.INSIDE
        python = [self._interpreter.program, "-I", "-S", "-c", _start(root, "init"), str(spec), str(report)]
        if self._bare:
            return python
        readable = self._readable(toolchains)
        return bubblewrap.command(python, readable=readable, whole_system=True, processes_visible=True, info=info)


def plain_user() -> int:
    """An id that no process has; for commands of root's, which must not be root."""
    return _FIRST_USER + secrets.randbelow(_USERS)


def _start(root: str, module: str) -> str:
    return f"import sys; sys.path.insert(0, {root!r}); from rft.sandbox.inside.{module} import main; main()"


def _environment(toolchains: Sequence[Path], home: str, temporary: str) -> dict[str, str]:
    places = [str(folder / "bin") for folder in toolchains if (folder / "bin").is_dir()]
    path = os.pathsep.join([*places, "/usr/local/bin", "/usr/bin", "/bin"])
    return {"PATH": path, "HOME": home, "TMPDIR": temporary, "LANG": "C.UTF-8"}


def _first_process(info: bytes, process: subprocess.Popen[bytes]) -> int | None:
    """A descriptor of the sandbox's process 1, whose end is the end of all in it; None when there is none yet."""
    if not info:
        return None
    try:
        descriptor = os.pidfd_open(json.loads(info)["child-pid"])
    except ProcessLookupError:
        return None
    if process.poll() is None:  # bubblewrap outlives its child: the number was not given to somebody else
        return descriptor
    os.close(descriptor)
    return None


def _collect(process: subprocess.Popen[bytes], limits: Limits, begun: float) -> tuple[list[bytes], str | None]:
    """Both streams until they end, and the limit that was met first."""
    assert process.stdout is not None and process.stderr is not None
    gathered = [bytearray(), bytearray()]
    with selectors.DefaultSelector() as waiting:
        for number, stream in enumerate((process.stdout, process.stderr)):
            os.set_blocking(stream.fileno(), False)
            waiting.register(stream, selectors.EVENT_READ, number)
        while waiting.get_map():
            left = begun + limits.wall_seconds - time.monotonic()
            if left <= 0:
                return [bytes(part) for part in gathered], "wall"
            for key, _ in waiting.select(left):
                piece = os.read(key.fd, 1 << 16)
                if not piece:
                    waiting.unregister(key.fileobj)
                room = limits.output_bytes - sum(map(len, gathered))
                gathered[key.data] += piece[:room]
                if len(piece) > room:
                    return [bytes(part) for part in gathered], "output"
    try:  # who closes both streams is still running
        process.wait(max(0.0, begun + limits.wall_seconds - time.monotonic()))
    except subprocess.TimeoutExpired:
        return [bytes(part) for part in gathered], "wall"
    return [bytes(part) for part in gathered], None


def _end(process: subprocess.Popen[bytes], first: int | None) -> None:
    """Return when no process of the sandbox is left. Raises SandboxError when the kernel does not get them ended."""
    try:
        if process.poll() is None:
            if first is None:
                process.kill()
            else:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(first, signal.SIGKILL)
        process.wait(_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise SandboxError("a sandbox was killed and does not end; its processes hang in the kernel") from None
    finally:
        if first is not None:
            os.close(first)


def _ran(
    ending: bytes, streams: list[bytes], stopped_for: str | None, seconds: float, limits: Limits, out_of_memory: bool
) -> Ran:
    """Raises CannotStartError, SandboxError."""
    report: dict[str, Any] = json.loads(ending) if ending else {}
    if "start" in report:
        raise CannotStartError(f"the program cannot be started in the sandbox: {report['start']}")
    if "setup" in report:
        raise SandboxError(f"the sandbox cannot be made: {report['setup']}")
    if "code" not in report and stopped_for is None and not out_of_memory:
        words = streams[1].decode(errors="replace").strip().splitlines()
        raise SandboxError(f"the sandbox was lost: {words[-1] if words else 'its first process was killed'}")
    code: int = report.get("code", -signal.SIGKILL)
    killed_for = stopped_for
    if killed_for is None and out_of_memory:
        killed_for = "memory"
    if killed_for is None and (
        code in (-signal.SIGXCPU, _SHELL_ENDED_FOR_CPU)
        or (code == -signal.SIGKILL and report.get("cpu", 0) >= limits.cpu_seconds)
    ):
        killed_for = "cpu"
    return Ran(
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        stdout=streams[0],
        stderr=streams[1],
        timed_out=killed_for in ("cpu", "wall"),
        killed_for=killed_for,
        seconds=seconds,
    )
