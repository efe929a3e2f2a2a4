"""Process 1 of a warm sandbox: everything is imported, and each request gets a child of its own.

A child is the first process of a new process-id namespace with mounts of its own, an empty /tmp, another user id (or no
capability), and a filter of system calls that allows neither sockets nor anything that outlives a process. It cannot
name this process, let alone reach it. When it ends, the kernel has killed whatever it started before its end is told.

``ROLE CONTROL KIND PACKAGES...``: CONTROL is a sequenced-packet socket. ``{"bounds": ...}`` with descriptors starts a
child, ``end`` ends it; ``{"code": ..., "cpu": ...}`` says how it ended.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import gc
import importlib
import json
import os
import secrets
import select
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from rft.sandbox.inside import candidate, confine, rehearsal, tests
from rft.sandbox.inside.confine import WORK, Bounds, SetupError

_CLONE_NEWPID = 0x20000000
_PR_SET_CHILD_SUBREAPER = 36
_MAX_MESSAGE, _MAX_DESCRIPTORS = 1 << 16, 4
_FIRST_USER, _USERS = 1 << 30, 1 << 29
_NOT_SET_UP = 97
_END = b"end"
_LIKELY = (
    "bisect", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal", "fractions", "functools", "hashlib",
    "heapq", "itertools", "math", "operator", "random", "re", "statistics", "string", "time", "typing",
)  # fmt: skip
"""What programs under test import most; here it costs once."""
_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    role, control = sys.argv[1], socket.socket(fileno=int(sys.argv[2]))
    bare = sys.argv[3] == "bare"
    sys.path += sys.argv[4:]
    control.set_inheritable(False)
    confine.die_with_parent()
    confine.hide_from_others()
    for name in _LIKELY:
        with contextlib.suppress(ImportError):  # left out of this Python
            importlib.import_module(name)
    rehearsal.rehearse()
    gc.collect()
    gc.freeze()  # what is never looked at by the collector is not copied for a child either
    if not bare:
        confine.bar_capabilities()
    else:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    own_ids = None if bare else os.pidfd_open(os.getpid())
    _say(control, {"ready": os.getpid()})
    while True:
        message, descriptors = _hear(control)
        if not message:
            return
        if message == _END:  # what it was to end had ended by itself
            continue
        order = json.loads(message)
        bounds = Bounds(**order["bounds"])
        work = tempfile.mkdtemp(prefix="mens-judge-") if bare else WORK
        try:
            child = _begin(role, order, bounds, descriptors, control, own_ids, work)
        except OSError as error:
            _say(control, {"machine": f"no process can be started: {error.strerror}"})
            continue
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        _say(control, _watch(child, control, bare))
        if bare:
            shutil.rmtree(work, ignore_errors=True)


def _begin(
    role: str,
    order: dict[str, Any],
    bounds: Bounds,
    descriptors: list[int],
    control: socket.socket,
    own_ids: int | None,
    work: str,
) -> int:
    """Raises OSError."""
    request: dict[str, Any] = {}
    suite: tests.Suite | str = ""
    if role == "tests":
        request = json.loads(_content(descriptors[0]))
        try:
            suite = tests.prepared(request["check"])
        except tests.TestsFault as error:
            suite = str(error)
    if own_ids is not None:
        if _LIBC.unshare(_CLONE_NEWPID):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        if os.geteuid() == 0:
            bounds = Bounds(**{**order["bounds"], "user": _FIRST_USER + secrets.randbelow(_USERS)})
    try:
        child = os.fork()
    except OSError:
        if own_ids is not None:
            _LIBC.setns(own_ids, _CLONE_NEWPID)
        raise
    if child:
        if own_ids is not None and _LIBC.setns(own_ids, _CLONE_NEWPID):
            os._exit(1)  # the next child would not be the first of a namespace
        return child
    try:
        _confine(bounds, descriptors, work)
        if role == "tests":
            tests.main(request, suite, descriptors[1], descriptors[2])
        else:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nowhere, stream)
            candidate.main(descriptors[0])
    except SetupError as error:
        os.write(2, f"{error}\n".encode())
        os._exit(_NOT_SET_UP)
    finally:
        os._exit(0)


def _confine(bounds: Bounds, descriptors: list[int], work: str) -> None:
    """Raises SetupError."""
    try:
        os.setsid()
        if not bounds.bare:
            confine.private_mounts()
            confine.fresh_tmp(bounds)
        os.chdir(work)
        os.environ.update(HOME=work, TMPDIR=work)
        confine.give_up_privileges(bounds)
        confine.die_with_parent()
        kept = sorted(descriptors)
        for below, above in zip([2, *kept], [*kept, os.sysconf("SC_OPEN_MAX")], strict=True):
            os.closerange(below + 1, above)
        if not bounds.bare:
            confine.filter_calls(bounds)
    except OSError as error:
        raise SetupError(f"{error.filename or 'the sandbox'}: {error.strerror}") from error


def _watch(child: int, control: socket.socket, bare: bool) -> dict[str, Any]:
    """Wait until the child has ended or shall end; with it ends all it has started."""
    ended = os.pidfd_open(child)
    try:
        waiting = select.poll()
        waiting.register(ended, select.POLLIN)
        waiting.register(control, select.POLLIN)
        asked = control.fileno() in {descriptor for descriptor, _ in waiting.poll()}
        if asked:
            if not _hear(control)[0]:
                os._exit(0)  # the other side is gone: so is everything here
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(ended, signal.SIGKILL)
    finally:
        os.close(ended)
    _, status, usage = os.wait4(child, 0)
    if bare:
        _end_descendants(child)
    return {"code": os.waitstatus_to_exitcode(status), "cpu": usage.ru_utime + usage.ru_stime, "asked": asked}


def _end_descendants(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    me = os.getpid()
    while True:
        for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(pid), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _content(descriptor: int) -> bytes:
    pieces = []
    offset = 0
    while piece := os.pread(descriptor, 1 << 20, offset):
        pieces.append(piece)
        offset += len(piece)
    return b"".join(pieces)


def _say(control: socket.socket, message: dict[str, Any]) -> None:
    try:
        control.send(json.dumps(message).encode())
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)


def _hear(control: socket.socket) -> tuple[bytes, list[int]]:
    """A message and the descriptors with it; nothing when the other side is gone."""
    try:
        message, ancillary, _, _ = control.recvmsg(_MAX_MESSAGE, socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4))
    except ConnectionResetError:
        return b"", []
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    return message, list(descriptors)
