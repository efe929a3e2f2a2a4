"""How a process gives up all it does not need, before it runs what nobody vouches for."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path

from rft.sandbox.inside import seccomp

WORK = "/tmp/work"
HOME = "/tmp/home"
_SHARED_MEMORY = "/tmp/.shm"
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_BIND, _MS_PRIVATE = 2, 4, 16384, 4096, 1 << 18
_CLONE_NEWNS = 0x00020000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 1, 4, 24, 38, 47
_AMBIENT_CLEAR_ALL = 4
_CAPABILITIES_V3 = 0x20080522
_OPEN_FILES = 512
_LIBC = ctypes.CDLL(None, use_errno=True)


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


def private_mounts() -> None:
    """From here on what is mounted is seen by this process and its children only. Raises SetupError."""
    _checked(_LIBC.unshare(_CLONE_NEWNS), "a namespace of mounts")
    _checked(_LIBC.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "private mounts")


def fresh_tmp(bounds: Bounds) -> None:
    """An empty /tmp of bounded size and number of files, which /dev/shm is a folder of. Raises SetupError."""
    options = f"size={bounds.tmp_bytes},nr_inodes={bounds.files + 5},mode=1777"
    _checked(_LIBC.mount(b"tmpfs", b"/tmp", b"tmpfs", _MS_NOSUID | _MS_NODEV, options.encode()), "its /tmp")
    for place in (WORK, HOME, _SHARED_MEMORY):
        Path(place).mkdir(0o700)
        if bounds.user is not None:
            os.chown(place, bounds.user, bounds.user)
    _checked(_LIBC.mount(_SHARED_MEMORY.encode(), b"/dev/shm", None, _MS_BIND, None), "its /dev/shm")


def put_files(files: dict[str, bytes], folder: str, owner: int | None) -> None:
    """Write the files that a command gets. Raises SetupError."""
    for name, content in files.items():
        path = Path(folder, name)
        try:
            for missing in reversed([parent for parent in path.parents if not parent.exists()]):
                missing.mkdir(0o700)
                if owner is not None:
                    os.chown(missing, owner, owner)
            path.write_bytes(content)
            path.chmod(0o700)
            if owner is not None:
                os.chown(path, owner, owner)
        except OSError as error:
            raise SetupError(f"the file {name} cannot be put into the sandbox: {error.strerror}") from error


def give_up_privileges(bounds: Bounds) -> None:
    """Become a plain user without any capability, bounded and filtered, for good. Raises SetupError."""
    if not bounds.bare:
        _LIBC.prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0)
        if bounds.user is not None:
            os.setgroups([])
            os.setresgid(bounds.user, bounds.user, bounds.user)
            os.setresuid(bounds.user, bounds.user, bounds.user)
        _drop_capabilities()
    for limit, soft, hard in _limits(bounds):
        highest = resource.getrlimit(limit)[1]
        if highest != resource.RLIM_INFINITY:
            soft, hard = min(soft, highest), min(hard, highest)
        resource.setrlimit(limit, (soft, hard))
    _checked(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")


def bar_capabilities() -> None:
    """No program that this process or a descendant starts can gain a capability. Those that it has stay."""
    capability = 0
    while _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:  # until there is no such capability
        capability += 1


def filter_calls(bounds: Bounds) -> None:
    """The last step: what was needed to get here is denied from now on. Raises SetupError."""
    try:
        seccomp.apply(_LIBC, seccomp.program(seccomp.machine(), bounds.sockets))
    except seccomp.NoFilterError as error:
        raise SetupError(str(error)) from error


def die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def hide_from_others() -> None:
    """Nobody of the same user may look into this process."""
    _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def default_signals() -> None:
    """Undo what Python ignores or handles, for the program that takes this process over."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def _limits(bounds: Bounds) -> list[tuple[int, int, int]]:
    # The first process of a namespace is not touched by the signal of the soft limit, and killed at the hard one.
    grace = 0 if os.getpid() == 1 else 1
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


def _drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0)
    none = (ctypes.c_uint32 * 6)()
    _checked(_LIBC.capset(ctypes.byref(header), ctypes.byref(none)), "giving up capabilities")


def _checked(result: int, what: str) -> None:
    if result != 0:
        raise SetupError(f"{what}: {os.strerror(ctypes.get_errno())}")

