"""What a trainer is told, and what it says when it ends."""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec

from supervisor.protocol.atomic import write_atomic

SPEC_VARIABLE = "MENS_ATTEMPT"
"""Environment variable with the path of the attempt's ``attempt.json``."""

LAUNCHER_VARIABLE = "MENS_LAUNCHER"
"""In the environment of a rank, one of several processes of a training: the pid of the trainer that started it."""


class AttemptSpec(msgspec.Struct, frozen=True):
    """``attempts/0003/attempt.json``: everything a trainer needs to take its part.

    ``resume_from`` is a verified checkpoint folder or None for step 0, ``resume_step`` its step. ``accepted_changes``
    names differences to the checkpoint (see Manifest.identity) that the user or a relief has accepted. ``snapshots`` is
    a folder in shared memory for the state after every optimiser step (see snapshot.py), None for no snapshots.
    ``force_overfit``: the user has accepted that the data is passed over too often. ``processes``: how many train
    together on this machine, ``strategy`` how (ddp, fsdp); the trainer starts them itself.
    """

    run_dir: str
    attempt: int
    lineage: int
    effective_config: str
    resume_from: str | None
    save_steps: int
    accepted_changes: tuple[str, ...] = ()
    snapshots: str | None = None
    resume_step: int | None = None
    force_overfit: bool = False
    processes: int = 1
    strategy: str = "ddp"


class ExitKind(enum.StrEnum):
    """Why a trainer ended, in its own words. The process exit codes are in ``EXIT_CODES``."""

    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    CUDA_OOM = "cuda_oom"
    HOST_OOM = "host_oom"
    DISK_FULL = "disk_full"
    NAN_LOSS = "nan_loss"
    CONFIG_ERROR = "config_error"
    DATA_ERROR = "data_error"
    NO_GPU = "no_gpu"
    CHECKPOINT_CORRUPT = "checkpoint_corrupt"
    CHECKPOINT_INCOMPATIBLE = "checkpoint_incompatible"
    DEPENDENCY_ERROR = "dependency_error"
    NETWORK = "network"
    PROGRAM_ERROR = "program_error"


EXIT_CODES: dict[ExitKind, int] = {
    ExitKind.COMPLETED: 0,
    ExitKind.INTERRUPTED: 3,
    ExitKind.DATA_ERROR: 65,
    ExitKind.CHECKPOINT_CORRUPT: 66,
    ExitKind.CHECKPOINT_INCOMPATIBLE: 67,
    ExitKind.DEPENDENCY_ERROR: 69,
    ExitKind.PROGRAM_ERROR: 70,
    ExitKind.CUDA_OOM: 71,
    ExitKind.HOST_OOM: 72,
    ExitKind.NAN_LOSS: 73,
    ExitKind.DISK_FULL: 74,
    ExitKind.NETWORK: 75,
    ExitKind.NO_GPU: 77,
    ExitKind.CONFIG_ERROR: 78,
}
"""sysexits.h where one fits (65 data, 69 unavailable, 70 software, 74 I/O, 75 try again, 78 configuration)."""


class ExitReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """``exit.json``: the trainer's last words.

    ``done``/``planned`` hold ``steps``, ``tokens`` and ``rows`` so that the supervisor can check
    that "completed" is true. ``evidence`` are the lines (of a traceback, a log) behind ``message``. ``stopped_early``
    says why a completed training ended before the last step that was planned at first; ``planned`` is then what it
    came down to, and ``planned_at_first`` what it was.
    """

    kind: ExitKind
    message: str
    step: int = 0
    phase: str = ""
    evidence: tuple[str, ...] = ()
    planned: dict[str, int] = {}
    done: dict[str, int] = {}
    stopped_early: str = ""
    planned_at_first: dict[str, int] = {}


def write_spec(path: Path, spec: AttemptSpec) -> None:
    write_atomic(path, msgspec.json.format(msgspec.json.encode(spec), indent=2) + b"\n")


def read_spec(path: Path) -> AttemptSpec:
    return msgspec.json.decode(path.read_bytes(), type=AttemptSpec)


def write_exit_report(path: Path, report: ExitReport) -> None:
    write_atomic(path, msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def read_exit_report(path: Path) -> ExitReport | None:
    """The report, or None when the trainer left none or not a whole one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ExitReport)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
