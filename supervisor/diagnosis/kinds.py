"""The kinds of failure and what is known about each, whatever the run."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from supervisor.protocol.attempt import ExitKind


class FailureKind(enum.StrEnum):
    """Why an attempt ended: the trainer's own kinds, and those that only an observer can tell."""

    COMPLETED = "completed"
    COMPLETED_EARLY = "completed_early"
    INTERRUPTED = "interrupted"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"
    CUDA_OOM = "cuda_oom"
    CUDA_OOM_FOREIGN = "cuda_oom_foreign"
    OOM_AT_LOAD = "oom_at_load"
    HOST_OOM = "host_oom"
    SHM_FULL = "shm_full"
    DISK_FULL = "disk_full"
    TOO_MANY_FILES = "too_many_files"
    FILESYSTEM_ERROR = "filesystem_error"
    PERMISSION_DENIED = "permission_denied"
    NETWORK = "network"
    PORT_IN_USE = "port_in_use"
    NCCL_ERROR = "nccl_error"
    HANG = "hang"
    GPU_LOST = "gpu_lost"
    DEVICE_ASSERT = "device_assert"
    DRIVER_MISMATCH = "driver_mismatch"
    NO_GPU = "no_gpu"
    NAN_LOSS = "nan_loss"
    CONFIG_ERROR = "config_error"
    DATA_ERROR = "data_error"
    DEPENDENCY_ERROR = "dependency_error"
    CHECKPOINT_CORRUPT = "checkpoint_corrupt"
    CHECKPOINT_INCOMPATIBLE = "checkpoint_incompatible"
    PROGRAM_ERROR = "program_error"
    WORKER_KILLED = "worker_killed"
    ENGINE_DEATH = "engine_death"
    NATIVE_CRASH = "native_crash"
    KILLED = "killed"
    UNKNOWN = "unknown"


def observed(kind: ExitKind) -> FailureKind:
    """The trainer's own word as a failure kind."""
    return FailureKind(kind.value)


@dataclass(frozen=True)
class KindFacts:
    """What is known about a kind.

    ``retryable``: would the same command, unchanged or after the relief named, have a chance?
    ``helps``: relief by name, mildest first. ``summary``: what happened, a sentence for people.
    ``advice``: what to do when the supervisor gives up on it.
    """

    retryable: bool
    helps: tuple[str, ...]
    summary: str
    advice: str


_MEMORY_RELIEF = (
    "expandable_segments",
    "halve_micro_batch",
    "checkpoint_activations",
    "paged_optimizer",
    "shorten_sequence",
    "switch_model",
)
_READ_LOG = "Read the trainer's stderr.log."

FACTS: dict[FailureKind, KindFacts] = {
    FailureKind.COMPLETED: KindFacts(False, (), "The run did what it was asked to do.", ""),
    FailureKind.COMPLETED_EARLY: KindFacts(
        True,
        ("resume",),
        "The program ended as if all were well, before its work was done.",
        "Look at the trainer's log for why it ended before its plan.",
    ),
    FailureKind.INTERRUPTED: KindFacts(
        True, ("resume",), "Somebody asked the program to stop.", "Run the same command again to go on."
    ),
    FailureKind.PREEMPTED: KindFacts(
        True,
        ("wait", "resume"),
        "The scheduler or the cloud took the machine back.",
        "Run the same command again when the machine is back; the run goes on from its last checkpoint.",
    ),
    FailureKind.TIME_LIMIT: KindFacts(
        True,
        ("resume", "raise_time_limit"),
        "The time allowed was used up.",
        "Ask for more time, or run the same command again to go on from the last checkpoint.",
    ),
    FailureKind.CUDA_OOM: KindFacts(
        True,
        _MEMORY_RELIEF,
        "The GPU ran out of memory for what this program does.",
        "Free the card, choose a smaller base model, or lower train.max_length; then run again.",
    ),
    FailureKind.CUDA_OOM_FOREIGN: KindFacts(
        True,
        ("wait_for_foreign_vram",),
        "The GPU ran out of memory, much of which another process holds.",
        "Close the other programs on the card (`nvidia-smi` names them); a smaller batch would not help.",
    ),
    FailureKind.OOM_AT_LOAD: KindFacts(
        True,
        ("wait_for_foreign_vram", "expandable_segments", "paged_optimizer", "switch_model"),
        "The GPU ran out of memory while loading, before any step; a smaller batch would not help.",
        "Free the card, quantise the model, or choose a smaller base model; then run again.",
    ),
    FailureKind.HOST_OOM: KindFacts(
        True,
        ("fewer_workers", "halve_micro_batch", "checkpoint_activations", "shorten_sequence", "switch_model", "wait"),
        "The machine (or its memory limit) ran out of main memory.",
        "Close what else uses memory, add swap, or choose a smaller base model; then run again.",
    ),
    FailureKind.SHM_FULL: KindFacts(
        True,
        ("fewer_workers", "free_shared_memory"),
        "Shared memory (/dev/shm) is full or too small.",
        "Enlarge /dev/shm (docker: --shm-size or --ipc=host) or use fewer data loader workers; then run again.",
    ),
    FailureKind.DISK_FULL: KindFacts(
        True,
        ("trim_retention", "free_disk"),
        "A disk is full, or a quota is used up.",
        "Free the space named above and run the same command again; the run goes on where it was.",
    ),
    FailureKind.TOO_MANY_FILES: KindFacts(
        True,
        ("raise_file_limit", "fewer_workers"),
        "The limit on open files or processes was reached.",
        "Raise the limit (`ulimit -n 65536`) or use fewer data loader workers; then run again.",
    ),
    FailureKind.FILESYSTEM_ERROR: KindFacts(
        True,
        ("wait",),
        "The file system failed.",
        "Check the mount and the disk (`dmesg`, `mount`); when it is healthy, run the same command again.",
    ),
    FailureKind.PERMISSION_DENIED: KindFacts(
        False,
        (),
        "Access was refused.",
        "Give this user access to the file, or log in to the service with an account that has it; then run again.",
    ),
    FailureKind.NETWORK: KindFacts(
        True,
        ("wait",),
        "A network service could not be reached or broke off.",
        "Check the connection or work offline from a filled cache (HF_HUB_OFFLINE=1); then run again.",
    ),
    FailureKind.PORT_IN_USE: KindFacts(
        True,
        ("wait", "change_port"),
        "Another process holds the port.",
        "End the process that holds the port, or choose another port; then run again.",
    ),
    FailureKind.NCCL_ERROR: KindFacts(
        True,
        ("wait",),
        "Communication between the ranks failed.",
        "Look for a rank that died or stalled first; check the links (NCCL_DEBUG=INFO); then run again.",
    ),
    FailureKind.HANG: KindFacts(
        True,
        ("wait",),
        "The program stopped making progress.",
        "Look at the stacks captured before the end; then run again.",
    ),
    FailureKind.GPU_LOST: KindFacts(
        True,
        ("reset_gpu", "reboot"),
        "The GPU or its driver failed.",
        "Reset the card or reboot the machine (`nvidia-smi -r`); if it comes back, the hardware is suspect.",
    ),
    FailureKind.DEVICE_ASSERT: KindFacts(
        False,
        (),
        "A check inside a GPU kernel failed, nearly always an index out of range (token id, label or position).",
        "Compare vocabulary size, labels and positions with the model; run once on the CPU to see the exact place.",
    ),
    FailureKind.DRIVER_MISMATCH: KindFacts(
        False,
        (),
        "The GPU, its driver and the CUDA build of the libraries do not fit together.",
        "Install a build of torch that fits the driver and the card, or update the driver (and reboot).",
    ),
    FailureKind.NO_GPU: KindFacts(
        False,
        (),
        "No usable GPU was found.",
        "Make the GPU available, or say `device: cpu` or `device: auto` in the configuration.",
    ),
    FailureKind.NAN_LOSS: KindFacts(
        False,
        (),
        "Loss or gradients stopped being finite.",
        "Lower train.learning_rate or train.max_grad_norm, or look for broken rows near this step; then run again with "
        "--accept-change for the keys that you changed, or in a new --run-dir.",
    ),
    FailureKind.CONFIG_ERROR: KindFacts(
        False,
        (),
        "The configuration or the command line is wrong.",
        "Correct the configuration key named above and run again.",
    ),
    FailureKind.DATA_ERROR: KindFacts(
        False, (), "The data cannot be used as they are.", "Correct the file and line named above and run again."
    ),
    FailureKind.DEPENDENCY_ERROR: KindFacts(
        False,
        (),
        "Something that must be installed is missing, or versions do not fit together.",
        "Install what is missing (`make install` in the project) and run again.",
    ),
    FailureKind.CHECKPOINT_CORRUPT: KindFacts(
        True,
        ("step_back",),
        "A checkpoint or weight file is damaged or incomplete.",
        "Look at the quarantine folder; start in a new --run-dir if nothing older is left.",
    ),
    FailureKind.CHECKPOINT_INCOMPATIBLE: KindFacts(
        False,
        (),
        "The checkpoint is whole but does not belong to this model, setting or library version.",
        "Put the data, base model or setting back as it was, accept the difference with --accept-change, or start in a "
        "new --run-dir.",
    ),
    FailureKind.PROGRAM_ERROR: KindFacts(
        False,
        (),
        "The program failed by an error in its code.",
        "Read the trainer's stderr.log; this looks like a bug in the trainer or its libraries.",
    ),
    FailureKind.WORKER_KILLED: KindFacts(
        True,
        ("fewer_workers",),
        "A helper process of the program died.",
        "Use fewer workers; the kernel log (`dmesg`) tells whether memory was the reason. Then run again.",
    ),
    FailureKind.ENGINE_DEATH: KindFacts(
        True,
        ("wait",),
        "The inference engine died.",
        "Read the engine's own log for the first error; then run again.",
    ),
    FailureKind.NATIVE_CRASH: KindFacts(
        True,
        ("wait",),
        "The program crashed in native code.",
        "Suspect the driver or a native library; read stderr.log and the kernel log (`dmesg`).",
    ),
    FailureKind.KILLED: KindFacts(
        True,
        ("wait",),
        "The program was ended by SIGKILL from outside.",
        "Find out who sends SIGKILL: the out-of-memory killer shows in `dmesg`, a batch system in its own log.",
    ),
    FailureKind.UNKNOWN: KindFacts(True, (), "The cause does not show in what was given.", _READ_LOG),
}

MEMORY_KINDS = frozenset({FailureKind.CUDA_OOM, FailureKind.HOST_OOM})
"""Relieved by the rungs of the ladder that save memory."""

NOT_RETRYABLE = frozenset(kind for kind, facts in FACTS.items() if not facts.retryable) - {FailureKind.COMPLETED}
"""The next attempt would meet the very same thing: a person has to change something first."""

ADVICE: dict[FailureKind, str] = {kind: facts.advice for kind, facts in FACTS.items() if facts.advice}
"""What to do now, one sentence per kind."""
