"""Runs an oracle's command on one answer after another, and ends everything that it has started.

A process of its own, started by path with the environment that the command gets: what the command can see of its
parent is this, and what escapes into a session of its own becomes this process's child. It is asked over the socket
that is its standard input, a line of JSON for a line of JSON, and ends with all it runs when the other end is gone,
however that came about. Nothing but the standard library, to start fast.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_WRITTEN_BYTES = 1 << 26
LEAST_FREE_BYTES = 1 << 20
"""With less space left, a command that failed may have failed for want of it."""
ANSWER_NAME = "answer"
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER = 1, 24, 36
_LOOKING_INTO_PROCESSES = (19, 21, 38)
"""CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON: any of them opens the environment of every process."""
_LIBC = ctypes.CDLL(None, use_errno=True)


class _Gone(Exception):
    """The process that asks has ended, or wants no answer any more."""


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the other end's to handle
        signal.signal(number, signal.SIG_IGN)
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Root may look into every process; a command of root's may not.
    for capability in _LOOKING_INTO_PROCESSES:
        _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    with socket.socket(fileno=os.dup(0)) as asker, asker.makefile("rb") as requests:
        for line in requests:
            try:
                reply = _run(json.loads(line), asker)
                asker.sendall(json.dumps(reply).encode() + b"\n")
            except (_Gone, BrokenPipeError, ConnectionResetError):
                return


def _run(request: dict[str, Any], asker: socket.socket) -> dict[str, Any]:
    """``code`` (negative: the signal) or ``timeout``; ``unusable``: it cannot be started; ``machine``: no verdict."""
    try:
        with tempfile.TemporaryDirectory(
            prefix="mens-oracle-", dir=request["temporary"], ignore_cleanup_errors=True
        ) as folder:
            file = Path(folder, ANSWER_NAME + request["suffix"])
            file.write_text(request["text"], encoding="utf-8")
            arguments = [part.replace(request["placeholder"], str(file)) for part in request["command"]]
            reply = _judge(arguments, folder, request["seconds"], asker)
            state = os.statvfs(folder)
            if reply.get("code") and state.f_bavail * state.f_frsize < LEAST_FREE_BYTES:
                return {"machine": f"{request['temporary']} has no space left"}
            return reply
    except OSError as error:
        return {"machine": f"{request['temporary']}: {error.strerror or error}"}


def _judge(arguments: list[str], folder: str, seconds: float, asker: socket.socket) -> dict[str, Any]:
    try:
        process = subprocess.Popen(
            arguments,
            cwd=folder,
            env={**os.environ, "HOME": folder, "TMPDIR": folder},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_bounds(seconds),
        )
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
            return {"machine": f"no process can be started: {error.strerror}"}
        return {"unusable": error.strerror or str(error)}
    ended = os.pidfd_open(process.pid)
    try:
        waiting = select.poll()
        waiting.register(ended, select.POLLIN)
        waiting.register(asker, select.POLLIN)
        ready = {descriptor for descriptor, _ in waiting.poll(seconds * 1000)}
        if asker.fileno() in ready:
            raise _Gone
        return {"code": process.wait()} if ended in ready else {"timeout": True}
    finally:
        os.close(ended)
        _end_all(process.pid)


def _bounds(seconds: float) -> Callable[[], None]:
    """What the command does to itself before it begins. This process has one thread, so its fork may do more."""
    # As much processor time as all cores give until the time is over: it never ends a command before that.
    processor = (int(seconds) + 1) * len(os.sched_getaffinity(0))
    limits = (
        (resource.RLIMIT_CPU, processor),
        (resource.RLIMIT_FSIZE, MAX_WRITTEN_BYTES),
        (resource.RLIMIT_CORE, 0),
    )

    def apply() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        for limit, value in limits:
            hard = resource.getrlimit(limit)[1]
            bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(limit, (bound, bound))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    return apply


def _end_all(leader: int) -> None:
    """Kill and reap the command, its session, and what had left that."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    while True:
        for child in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def _children() -> list[int]:
    """Orphans included, for they become ours."""
    me = os.getpid()
    return [int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split()]


if __name__ == "__main__":
    main()
