"""What the kernel's log says about a death: killed for memory, a lost card, a sick disk. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from supervisor.diagnosis.kinds import FailureKind
from supervisor.diagnosis.loglines import clean_text

KERNEL_CHARACTERS = 512 * 1024
LOST = frozenset({48, 61, 62, 63, 64, 74, 79, 92, 94, 95, 109, 110, 119, 120, 136, 140, 143, 149, 150, 151, 154})
"""Xids of a failing card, link or driver; 13, 31, 43, 45 and 69 are the application's doing."""

_VICTIM = re.compile(
    r"(?:Out of memory|Memory cgroup out of memory):? Kill(?:ed)? process (?P<pid>\d+)[ ,]*\(?(?P<name>[^),\s]*)"
    r"|task=(?P<task>[^,]+),pid=(?P<taskpid>\d+)"
    r"|oom_reaper: reaped process (?P<reaped>\d+) \((?P<reapedname>[^)]*)\)"
    r"|Killed process (?P<oldpid>\d+)[ ,]*\(?(?P<oldname>[^),\s]*)"
)
_OURS = re.compile(
    r"py|torch|train|ray|vllm|VLLM|sglang|accel|deepspeed|axolotl|pt_|worker|jupyter|ipython"
    r"|java|node|EngineCore|llama|mens",
    re.IGNORECASE,
)
_XID = re.compile(r"NVRM: Xid \([^)]*\): (\d+)\b")
_BUS = re.compile(r"fallen off the bus|GPU is lost|rm_init_adapter failed|AER: .*(?:fatal|Uncorrected).*nvidia")
_DISK = re.compile(
    r"EXT4-fs error|I/O error, dev|Buffer I/O error|XFS .*(?:Corruption|shutdown)|nvme\S*: I/O .*timeout"
    r"|Remounting filesystem read-only|BTRFS (?:error|critical)|nfs: server .* not responding"
)
_BLOCKED = re.compile(r"task (\S+?):\d+ blocked for more than \d+ seconds")
_FAULT = re.compile(r"(\S+)\[\d+\]: segfault at|traps: (\S+)\[\d+\]|(\S+)\[\d+\] general protection")


@dataclass(frozen=True)
class KernelSign:
    """One thing that the kernel said, how much it weighs (0..1), and the line itself."""

    kind: FailureKind
    weight: float
    line: str


def read_kernel_log(text: str) -> list[KernelSign]:
    """What a kernel log says that could end a training run; the first Xid decides about the card."""
    lines = [line.strip()[:500] for line in clean_text(text[-KERNEL_CHARACTERS:]).split("\n") if line.strip()]
    signs: list[KernelSign] = []
    first_xid = next((int(found[1]) for line in lines if (found := _XID.search(line))), None)
    for line in lines:
        if found := _VICTIM.search(line):
            name = found["name"] or found["task"] or found["reapedname"] or found["oldname"] or ""
            signs.append(KernelSign(FailureKind.HOST_OOM, 0.97 if not name or _OURS.search(name) else 0.3, line))
        elif (_XID.search(line) and first_xid in LOST) or (
            _BUS.search(line) and (first_xid is None or first_xid in LOST)
        ):
            signs.append(KernelSign(FailureKind.GPU_LOST, 0.97, line))
        elif _DISK.search(line):
            signs.append(KernelSign(FailureKind.FILESYSTEM_ERROR, 0.75, line))
        elif (found := _BLOCKED.search(line)) and _OURS.search(found[1]):
            signs.append(KernelSign(FailureKind.HANG, 0.6, line))
        elif (found := _FAULT.search(line)) and _OURS.search(found[1] or found[2] or found[3] or ""):
            signs.append(KernelSign(FailureKind.NATIVE_CRASH, 0.7, line))
    return signs
