"""The command line of bubblewrap, and the interpreter that works inside."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import rft.sandbox.inside
from rft.sandbox.inside.confine import KEPT, below_tmp

INSIDE = "/run/mens"
"""Where the programs of :mod:`rft.sandbox.inside` are, in a sandbox."""
_INSIDE_FOLDER = f"{INSIDE}/rft/sandbox/inside"
_DEVICES = ("null", "zero", "full", "random", "urandom")
_LIBRARIES = ("/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin")
_CAPABILITIES = (
    "CAP_SYS_ADMIN", "CAP_SETPCAP", "CAP_SETUID", "CAP_SETGID", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER",
    "CAP_KILL",
)  # fmt: skip
"""What process 1 needs to make the sandbox; the command gets none of them."""
_INSIDE_USER = 1000
_FROM_ETC = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime")


class NoBubblewrapError(Exception):
    """There is no bubblewrap on this machine."""


@dataclass(frozen=True)
class Interpreter:
    """A Python that is there inside and outside: ``program`` lies in one of ``folders``."""

    program: str
    folders: tuple[str, ...]


def find() -> str:
    """The path of bubblewrap. Raises NoBubblewrapError."""
    found = shutil.which("bwrap")
    if found is None:
        raise NoBubblewrapError
    return found


def own_interpreter() -> Interpreter:
    """The Python that runs this, without the packages of its virtual environment."""
    prefix = os.path.realpath(sys.base_prefix)
    program = os.path.realpath(sys.executable)
    folders = {prefix, os.path.realpath(sys.base_exec_prefix)}
    if not any(Path(program).is_relative_to(folder) for folder in folders):
        folders.add(str(Path(program).parent))
    return Interpreter(program, tuple(sorted(folders)))


def runs_as_root() -> bool:
    return os.geteuid() == 0


def command(
    program: Sequence[str],
    *,
    readable: Sequence[str],
    whole_system: bool,
    processes_visible: bool,
    extra_files: Mapping[int, str] | None = None,
    info: int | None = None,
) -> list[str]:
    """bubblewrap and its arguments, to run ``program`` as process 1 with the capabilities that it needs to finish the
    sandbox. ``readable`` folders are bound where they are; ``whole_system`` binds /usr and not its libraries alone;
    ``processes_visible`` mounts /proc. ``extra_files``: descriptors whose content stands under a path."""
    line = [find(), "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try"]
    line += ["--die-with-parent", "--new-session", "--as-pid-1", "--hostname", "sandbox"]
    if not runs_as_root():
        line += ["--unshare-user", "--uid", str(_INSIDE_USER), "--gid", str(_INSIDE_USER)]
    # Folders that bubblewrap makes on the way to others would be closed to the plain user.
    readable = list(dict.fromkeys(readable))
    inner = (*readable, *(f"{KEPT}{folder}" for folder in below_tmp(readable)), _INSIDE_FOLDER, *_FROM_ETC, "/dev/null")
    for folder in sorted({str(above) for path in inner for above in Path(path).parents}):
        if folder != "/" and not folder.startswith("/usr"):
            line += ["--perms", "0755", "--dir", folder]
    line += ["--cap-drop", "ALL"]
    for capability in _CAPABILITIES:
        line += ["--cap-add", capability]
    for folder in ["/usr"] if whole_system else ["/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32"]:
        line += ["--ro-bind-try", folder, folder]
    for folder in _LIBRARIES:
        if Path(folder).is_symlink():
            line += ["--symlink", str(Path(folder).readlink()), folder]
        elif whole_system or "lib" in folder:
            line += ["--ro-bind-try", folder, folder]
    for path in _FROM_ETC:
        line += ["--ro-bind-try", path, path]
    for folder in readable:
        if not folder.startswith("/usr/") or not whole_system:
            line += ["--ro-bind", folder, folder]
    for folder in below_tmp(readable):
        line += ["--ro-bind", folder, f"{KEPT}{folder}"]
    line += ["--ro-bind", str(Path(rft.sandbox.inside.__file__).parent), _INSIDE_FOLDER]
    for device in _DEVICES:
        line += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        line += ["--symlink", f"/proc/self/fd/{number}", f"/dev/{name}"]
    line += ["--symlink", "/proc/self/fd", "/dev/fd", "--dir", "/dev/shm", "--dir", "/tmp"]
    for descriptor, path in (extra_files or {}).items():
        line += ["--ro-bind-data", str(descriptor), path]
    if processes_visible:
        line += ["--proc", "/proc"]
    if info is not None:
        line += ["--info-fd", str(info)]
    return [*line, "--chdir", "/", "--remount-ro", "/", "--", *program]
