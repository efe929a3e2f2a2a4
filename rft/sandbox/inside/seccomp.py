"""A filter of system calls, as a second wall behind namespaces: what no program under judgement has any business with.

Denied are calls that make or enter namespaces, mount, look into other processes, keep things beyond a process's life
(keyrings, System V IPC), go round the size limits (memfd) or only widen the kernel's surface (bpf, io_uring, ...), and
address families that network namespaces do not contain (vsock).
"""

from __future__ import annotations

import ctypes
import errno
import struct
from typing import Any

_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24
"""Offsets into struct seccomp_data; arguments are read by their lower half (little endian)."""
_X32 = 0x40000000
_NAMESPACES = 0x7E020080
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and NEWTIME, the last of which clone cannot have."""
_USER_NAMESPACE = 0x10000000
_TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX."""
_UNIX, _INET, _INET6 = 1, 2, 10

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2

# name: (x86_64, aarch64); None where an architecture has no such call
_ALWAYS: dict[str, tuple[int | None, int | None]] = {
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "syslog": (103, 116), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266), "vhangup": (153, 58),
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None), "lookup_dcookie": (212, 18),
}  # fmt: skip
_FOR_CHILDREN = frozenset({"unshare", "setns", "mount", "umount2"})
_SYSTEM_V: dict[str, tuple[int | None, int | None]] = {
    "shmget": (29, 194), "shmat": (30, 196), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
}  # fmt: skip
_CLONE, _CLONE3, _IOCTL, _SOCKET = (56, 220), (435, 435), (16, 29), (41, 198)
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


class NoFilterError(Exception):
    """For this architecture there is no filter; a phrase."""


def program(machine: str, sockets: bool, makes_children: bool = False) -> bytes:
    """The filter as an array of struct sock_filter. Without ``sockets`` there is neither a socket (but socketpair) nor
    System V IPC. A process that ``makes_children`` in namespaces of their own, which inherit the filter, may still
    mount and make namespaces; its children lack the capability for either, and none may make a user namespace, which
    would give it to them. Raises NoFilterError for an architecture whose calls are not known here."""
    if machine not in _ARCHITECTURES:
        raise NoFilterError(f"no filter of system calls is known for {machine}")
    column, audit = _ARCHITECTURES[machine]
    denied = {name: numbers for name, numbers in _ALWAYS.items() if not (makes_children and name in _FOR_CHILDREN)}
    if not sockets:
        denied |= _SYSTEM_V | {"socket": _SOCKET}
    code = [
        _op(_LOAD, _ARCHITECTURE),
        _op(_JUMP_EQUAL, audit, 1, 0),
        _op(_RETURN, _KILL),
        _op(_LOAD, _NUMBER),
    ]
    if column == 0:
        code += [_op(_JUMP_GREATER_EQUAL, _X32, 0, 1), _op(_RETURN, _KILL)]
    # clone3 takes its flags in memory, where no filter can look: C libraries fall back to clone.
    code += [_op(_JUMP_EQUAL, _CLONE3[column], 0, 1), _op(_RETURN, _ERRNO | errno.ENOSYS)]
    for numbers in denied.values():
        number = numbers[column]
        if number is not None:
            code += [_op(_JUMP_EQUAL, number, 0, 1), _op(_RETURN, _ERRNO | errno.EPERM)]
    for number in (_CLONE[column], _ALWAYS["unshare"][column]) if makes_children else (_CLONE[column],):
        assert number is not None
        code += [
            _op(_JUMP_EQUAL, number, 0, 4),
            _op(_LOAD, _FIRST),
            _op(_JUMP_ANY_BIT, _USER_NAMESPACE if makes_children else _NAMESPACES, 0, 1),
            _op(_RETURN, _ERRNO | errno.EPERM),
            _op(_RETURN, _ALLOW),
        ]
    code += [
        _op(_JUMP_EQUAL, _IOCTL[column], 0, 5),
        _op(_LOAD, _SECOND),
        _op(_JUMP_EQUAL, _TERMINAL_INPUT[0], 1, 0),
        _op(_JUMP_EQUAL, _TERMINAL_INPUT[1], 0, 1),
        _op(_RETURN, _ERRNO | errno.EPERM),
        _op(_RETURN, _ALLOW),
    ]
    if sockets:
        code += [
            _op(_JUMP_EQUAL, _SOCKET[column], 0, 5),
            _op(_LOAD, _FIRST),
            _op(_JUMP_EQUAL, _UNIX, 3, 0),
            _op(_JUMP_EQUAL, _INET, 2, 0),
            _op(_JUMP_EQUAL, _INET6, 1, 0),
            _op(_RETURN, _ERRNO | errno.EAFNOSUPPORT),
        ]
    return b"".join([*code, _op(_RETURN, _ALLOW)])


def call(libc: ctypes.CDLL, filter_program: bytes) -> tuple[Any, tuple[Any, ...], str]:
    """What puts the filter on a process without new privileges and all its descendants, for good."""
    given = _Program(len(filter_program) // 8, filter_program)
    return libc.prctl, (_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(given)), "the filter of system calls"


def _op(code: int, operand: int, when_true: int = 0, when_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, when_true, when_false, operand)
