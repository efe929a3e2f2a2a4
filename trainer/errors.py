"""Errors that carry their own exit kind, and the classification of everybody else's."""

from __future__ import annotations

import errno
import os
import traceback

from supervisor.protocol.attempt import ExitKind


class TrainerError(Exception):
    """An end of training whose reason is known; the message is one clear paragraph."""

    kind: ExitKind = ExitKind.PROGRAM_ERROR


class ConfigurationError(TrainerError):
    kind = ExitKind.CONFIG_ERROR


class DataProblemError(TrainerError):
    kind = ExitKind.DATA_ERROR


class NetworkError(TrainerError):
    kind = ExitKind.NETWORK


class NoGpuError(TrainerError):
    kind = ExitKind.NO_GPU


class NonFiniteError(TrainerError):
    kind = ExitKind.NAN_LOSS


class CheckpointCorruptError(TrainerError):
    kind = ExitKind.CHECKPOINT_CORRUPT


class CheckpointIncompatibleError(TrainerError):
    kind = ExitKind.CHECKPOINT_INCOMPATIBLE


class StopRequestedError(TrainerError):
    """SIGTERM arrived while there was no step boundary to wait for (loading)."""

    kind = ExitKind.INTERRUPTED


DISK_FULL_TEXTS = (
    "no space left on device",
    "disk quota exceeded",
    "pytorchstreamwriter failed writing",
    "unexpected pos",
)
"""The last two are torch.save's: its archive writer notices a short write and loses the errno."""
CUDA_OOM_TEXTS = ("cuda out of memory", "cublas_status_alloc_failed", "hip out of memory")
HOST_OOM_TEXTS = ("defaultcpuallocator: can't allocate memory", "defaultcpuallocator: not enough memory")


def classify(error: BaseException) -> ExitKind:
    """The exit kind of an exception, from its type first and its text where the type says nothing."""
    if isinstance(error, TrainerError):
        return error.kind
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ExitKind.DISK_FULL
    if isinstance(error, MemoryError):
        return ExitKind.HOST_OOM
    if isinstance(error, ImportError):
        return ExitKind.DEPENDENCY_ERROR
    # Matched by name: this module must not import torch, or a broken torch could not be reported.
    if type(error).__name__ == "OutOfMemoryError":
        return ExitKind.CUDA_OOM
    text = str(error).lower()
    for kind, texts in (
        (ExitKind.DISK_FULL, DISK_FULL_TEXTS),
        (ExitKind.CUDA_OOM, CUDA_OOM_TEXTS),
        (ExitKind.HOST_OOM, HOST_OOM_TEXTS),
    ):
        if any(known in text for known in texts):
            return kind
    # torch and safetensors lose the errno of a failed write; the original is often the context.
    cause = error.__cause__ or error.__context__
    return classify(cause) if cause is not None else ExitKind.PROGRAM_ERROR


def evidence_lines(error: BaseException, limit: int = 12) -> tuple[str, ...]:
    """The innermost lines of the traceback, ending with the error itself."""
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    return tuple(line.rstrip() for line in lines[-limit:])


def one_paragraph(error: BaseException) -> str:
    """The error's own text on one line, with its type unless it is one of ours."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, TrainerError):
        return text
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"{os.strerror(error.errno) if error.errno else error.strerror}{where}"
    return f"{type(error).__name__}: {text}"
