"""Process 1 of a warm sandbox: everything is imported, and each program, or the tests of a task, get a child of their
own.

A child is the first process of a new process-id namespace, with an empty /tmp, another user id (or no capability), and
a filter of system calls that allows neither sockets nor anything that outlives a process. It cannot name this process,
let alone reach it. When it ends, the kernel has killed whatever it started, and its /tmp is gone, before that is told.

``ROLE CONTROL BOUNDS PACKAGES...``: CONTROL is a sequenced-packet socket. ``begin`` with the socket that a child
answers on (and for tests the file with their JSON) starts one, ``end`` ends it, ``{"code": ..., "cpu": ...}`` tells how
it ended.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable

from rft.sandbox.inside import candidate, confine, rehearsal
from rft.sandbox.inside.confine import Bounds, SetupError

_CLONE_NEWPID = 0x20000000
_PR_SET_CHILD_SUBREAPER = 36
_MAX_MESSAGE, _MAX_DESCRIPTORS = 64, 4
_FIRST_USER, _USERS = 1 << 30, 1 << 29
_LINK = 3
"""The one descriptor, besides the standard three, that a child has."""
_MANY = 1 << 20
"""Above every number that a descriptor can have."""
_END = b"end"
_LIKELY = (
    "bisect", "collections", "copy", "dataclasses", "functools", "heapq", "itertools", "math", "operator", "re",
    "string", "time", "typing",
)  # fmt: skip
"""What programs under test import most; here it costs once. Each library in C more makes every child dearer, by some
2 % where it brings others along."""
_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    role, control = sys.argv[1], socket.socket(fileno=int(sys.argv[2]))
    bounds = Bounds(**json.loads(sys.argv[3]))
    sys.path += sys.argv[4:]
    control.set_inheritable(False)
    confine.perform(confine.with_parent())
    confine.hide_from_others()
    # The less there is in memory, the sooner it is forked.
    for name in _LIKELY if role == "program" else ("rft.sandbox.inside.tests",):
        with contextlib.suppress(ImportError):  # left out of this Python
            importlib.import_module(name)
    own_ids = None
    if bounds.bare:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    else:
        own_ids = os.pidfd_open(os.getpid())
        confine.bar_capabilities()
        confine.perform(confine.private_mounts())
        os.environ.update(HOME=confine.TMP, TMPDIR=confine.TMP)
    user = None
    if not bounds.bare and os.geteuid() == 0:
        user = _FIRST_USER + int.from_bytes(os.urandom(4)) % _USERS
    # The first process of a namespace is not touched by the signal of a soft limit, and killed at the hard one.
    calls = [*confine.surrender(bounds, user, grace=0), (os.closerange, (_LINK + 1, _MANY), "closed files")]
    readable = [*sys.argv[4:], sys.base_prefix, sys.base_exec_prefix]
    fresh = [] if bounds.bare else confine.fresh_tmp(bounds, user, readable)
    program = None
    if role == "program":
        rehearsal.rehearse()
        program = candidate.ready(_LINK)
    gc.collect()
    gc.freeze()  # what the collector never looks at need not be copied for a child
    if not bounds.bare:
        confine.perform(confine.filtered(bounds, makes_children=True))
    _say(control, b'{"ready": true}')
    while True:
        message, descriptors = _hear(control)
        if not message:
            return
        if message == _END:  # what it was to end had ended by itself
            continue
        work = _folder() if bounds.bare else confine.TMP
        try:
            confine.perform(fresh)
            main_of_child = program or _tests(descriptors[1])
            child = _begin(main_of_child, calls, descriptors[0], own_ids, work)
        except (OSError, SetupError) as error:
            _say(control, json.dumps({"machine": f"no process can be started: {error}"}).encode())
            continue
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        ending = _watch(child, control, bounds.bare)
        if fresh:
            confine.perform(confine.no_tmp())
        _say(control, ending)
        if bounds.bare:
            importlib.import_module("shutil").rmtree(work, ignore_errors=True)


def _tests(file: int) -> Callable[[], None]:
    check = os.pread(file, os.fstat(file).st_size, 0).decode()
    return functools.partial(importlib.import_module("rft.sandbox.inside.tests").main, _LINK, check)


def _begin(
    main_of_child: Callable[[], None], calls: list[confine.Call], line: int, own_ids: int | None, work: str
) -> int:
    """The child's process id. Raises OSError, SetupError."""
    if own_ids is not None:
        confine.perform([(_LIBC.unshare, (_CLONE_NEWPID,), "a namespace of processes")])
    child = -1
    try:
        child = os.fork()
    finally:
        if child != 0 and own_ids is not None and _LIBC.setns(own_ids, _CLONE_NEWPID):
            os._exit(1)  # the next child would not be the first of its namespace
    if child:
        return child
    try:
        os.setsid()
        os.dup2(line, _LINK)
        confine.perform(calls)
        os.chdir(work)
        main_of_child()
    except (SetupError, OSError) as error:
        os.write(2, f"{error}\n".encode())
    finally:
        os._exit(0)


def _folder() -> str:
    """Of its own for a child that is not isolated."""
    made: str = importlib.import_module("tempfile").mkdtemp(prefix="mens-judge-")
    os.environ["HOME"] = made
    return made


def _watch(child: int, control: socket.socket, bare: bool) -> bytes:
    """Wait until the child has ended or shall end, and with it all it has started; how it ended, as JSON."""
    ended = os.pidfd_open(child)
    try:
        waiting = select.poll()
        waiting.register(ended, select.POLLIN)
        waiting.register(control, select.POLLIN)
        if any(descriptor != ended for descriptor, _ in waiting.poll()):
            if not _hear(control)[0]:
                os._exit(0)  # the other side is gone: so is everything here
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(ended, signal.SIGKILL)
    finally:
        os.close(ended)
    _, status, usage = os.wait4(child, 0)
    if bare:
        confine.end_descendants()
    # Written without a library: after a fork each object that is touched costs this process a page.
    return b'{"code": %d, "cpu": %.6f}' % (os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime)


def _say(control: socket.socket, message: bytes) -> None:
    try:
        control.send(message)
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
