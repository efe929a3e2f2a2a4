"""How a process gives up all it does not need, before it runs what nobody vouches for.

Each part is a list of calls into the C library, made ready by a parent: a child that has just been forked copies every
page of Python's that it touches, and so touches as few as it can.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rft.sandbox.inside import seccomp

TMP = "/tmp"
WORK = "/tmp/work"
HOME = "/tmp/home"
KEPT = "/run/mens/kept"
"""Below here a sandbox has once more what it was given to read below /tmp, which gets covered."""
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_BIND, _MS_PRIVATE = 2, 4, 16384, 4096, 1 << 18
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 1, 4, 24, 38, 47
_AMBIENT_CLEAR_ALL = 4
_CAPABILITIES_V3 = 0x20080522
_OPEN_FILES = 512
_LIBC = ctypes.CDLL(None, use_errno=True)

Call = tuple[Callable[..., Any], tuple[Any, ...], str]
"""A function that answers 0 or None when it has done its work, its arguments, and what it is for."""


class SetupError(Exception):
    """The sandbox could not be made as asked; a sentence. Nothing of the candidate has run."""


@dataclass(frozen=True)
class Bounds:
    """What a command gets. ``address_space``: of each process, in bytes, None for no bound. ``user``: uid and gid to
    become, None to stay who one is (inside a user namespace). ``bare``: there is no sandbox around, so nothing is
    mounted. ``sockets``: there may be sockets; the network namespace is empty all the same."""

    cpu_seconds: int
    address_space: int | None
    processes: int
    tmp_bytes: int
    files: int
    user: int | None
    bare: bool = False
    sockets: bool = True


class _Limit(ctypes.Structure):
    _fields_ = [("soft", ctypes.c_ulong), ("hard", ctypes.c_ulong)]


def perform(calls: Sequence[Call]) -> None:
    """Raises SetupError."""
    for function, arguments, what in calls:
        if function(*arguments):
            raise SetupError(f"{what}: {os.strerror(ctypes.get_errno())}")


def private_mounts() -> list[Call]:
    """What is mounted from here on is not seen elsewhere."""
    return [(_LIBC.mount, (b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "private mounts")]


def below_tmp(folders: Sequence[str]) -> list[str]:
    return [folder for folder in folders if Path(folder).is_relative_to(TMP)]


def fresh_tmp(bounds: Bounds, user: int | None, readable: Sequence[str]) -> list[Call]:
    """An empty /tmp of bounded size and number of files, also reachable as /dev/shm, for ``user`` alone; but for those
    of the ``readable`` folders that lie in it."""
    owner = "" if user is None else f",uid={user},gid={user}"
    options = f"size={bounds.tmp_bytes},nr_inodes={bounds.files + 2},mode=0700{owner}"
    tmp = TMP.encode()
    calls: list[Call] = [
        (_LIBC.mount, (b"tmpfs", tmp, b"tmpfs", _MS_NOSUID | _MS_NODEV, options.encode()), "its /tmp"),
        (_LIBC.mount, (tmp, b"/dev/shm", None, _MS_BIND, None), "its /dev/shm"),
    ]
    for folder in below_tmp(readable):
        calls.append((os.makedirs, (folder, 0o755, True), "its /tmp"))
        calls.append((_LIBC.mount, (f"{KEPT}{folder}".encode(), folder.encode(), None, _MS_BIND, None), folder))
    return calls


def no_tmp() -> list[Call]:
    """Undo :func:`fresh_tmp`; what was in it is gone."""
    return [(_LIBC.umount2, (place, _MNT_DETACH), "an end of its /tmp") for place in (b"/dev/shm", TMP.encode())]


def put_files(files: dict[str, bytes], folder: str, owner: int | None) -> None:
    """Write the files that a command gets, and its home. Raises SetupError."""
    for name, content in files.items():
        path = Path(folder, name)
        try:
            _own_folder(path.parent, owner)
            path.write_bytes(content)
            path.chmod(0o700)
            if owner is not None:
                os.chown(path, owner, owner)
        except OSError as error:
            raise SetupError(f"the file {name} cannot be put into the sandbox: {error.strerror}") from error


def put_folders(folders: Sequence[str], owner: int | None) -> None:
    """Raises SetupError."""
    try:
        for folder in folders:
            _own_folder(Path(folder), owner)
    except OSError as error:
        raise SetupError(f"the folders of the sandbox cannot be made: {error.strerror}") from error


def surrender(bounds: Bounds, user: int | None, grace: int) -> list[Call]:
    """Become ``user`` without any capability, bounded, for good. ``grace``: seconds of processor time between the
    signal that says it is used up and the end."""
    calls: list[Call] = []
    if not bounds.bare:
        calls.append((_LIBC.prctl, (_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0), "no ambient capabilities"))
        if user is not None:
            calls += [
                (_LIBC.setgroups, (0, None), "no groups"),
                (_LIBC.setresgid, (user, user, user), "another group"),
                (_LIBC.setresuid, (user, user, user), "another user"),
            ]
        header, none = (ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0), (ctypes.c_uint32 * 6)()
        calls.append((_LIBC.capset, (ctypes.byref(header), ctypes.byref(none)), "no capabilities"))
    for limit, soft, hard in _limits(bounds, grace):
        highest = resource.getrlimit(limit)[1]
        if highest != resource.RLIM_INFINITY:
            soft, hard = min(soft, highest), min(hard, highest)
        calls.append((_LIBC.setrlimit, (limit, ctypes.byref(_Limit(soft, hard))), "limits"))
    return [*calls, (_LIBC.prctl, (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges"), *with_parent()]


def with_parent() -> list[Call]:
    """Die when the parent does. A change of user takes that back, so it comes after."""
    return [(_LIBC.prctl, (_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "an end with its parent")]


def filtered(bounds: Bounds, makes_children: bool = False) -> list[Call]:
    """The last step: what was needed to get here is denied from now on. Raises SetupError."""
    try:
        return [seccomp.call(_LIBC, seccomp.program(os.uname().machine, bounds.sockets, makes_children))]
    except seccomp.NoFilterError as error:
        raise SetupError(str(error)) from error


def bar_capabilities() -> None:
    """No program that this process or a descendant starts can gain a capability. Those that it has stay."""
    capability = 0
    while _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:  # until there is no such capability
        capability += 1


def hide_from_others() -> None:
    """Nobody of the same user may look into this process."""
    _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def end_descendants() -> None:
    """Kill and reap everything below this process, which is a subreaper: also what sits in sessions of its own, and
    what becomes a child only when its parent has been killed."""
    me = os.getpid()
    while True:
        for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(pid), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def default_signals() -> None:
    """Undo what Python ignores or handles, for the program that takes this process over."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def _limits(bounds: Bounds, grace: int) -> list[tuple[int, int, int]]:
    limits = [
        (resource.RLIMIT_CPU, bounds.cpu_seconds, bounds.cpu_seconds + grace),
        (resource.RLIMIT_FSIZE, bounds.tmp_bytes, bounds.tmp_bytes),
        (resource.RLIMIT_NOFILE, _OPEN_FILES, _OPEN_FILES),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_MEMLOCK, 1 << 16, 1 << 16),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
    ]
    if not bounds.bare:  # outside a sandbox the number counts all that the user runs anywhere
        limits.append((resource.RLIMIT_NPROC, bounds.processes, bounds.processes))
    if bounds.address_space is not None:
        limits.append((resource.RLIMIT_AS, bounds.address_space, bounds.address_space))
    return limits


def _own_folder(folder: Path, owner: int | None) -> None:
    for missing in reversed([place for place in (folder, *folder.parents) if not place.exists()]):
        missing.mkdir(0o700)
        if owner is not None:
            os.chown(missing, owner, owner)
