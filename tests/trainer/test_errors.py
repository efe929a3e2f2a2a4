"""proves SUP-2, TRN-15: an exception ends in the exit kind that fits it."""

from __future__ import annotations

import errno

import pytest
import torch

from supervisor.protocol.attempt import EXIT_CODES, ExitKind
from trainer.errors import (
    CheckpointIncompatibleError,
    ConfigurationError,
    NoGpuError,
    NonFiniteError,
    classify,
    evidence_lines,
    one_paragraph,
)


def chained(outer: Exception, inner: Exception) -> Exception:
    outer.__cause__ = inner
    return outer


# proves SUP-2
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), ExitKind.CUDA_OOM),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), ExitKind.CUDA_OOM),
        (MemoryError(), ExitKind.HOST_OOM),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate"),
            ExitKind.HOST_OOM,
        ),
        (OSError(errno.ENOSPC, "No space left on device", "x"), ExitKind.DISK_FULL),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), ExitKind.DISK_FULL),
        (RuntimeError("[enforce fail] PytorchStreamWriter failed writing file data/0"), ExitKind.DISK_FULL),
        (chained(RuntimeError("could not save"), OSError(errno.ENOSPC, "full")), ExitKind.DISK_FULL),
        (RuntimeError("PytorchStreamReader failed reading zip archive"), ExitKind.PROGRAM_ERROR),
        (ImportError("libcudart.so.13"), ExitKind.DEPENDENCY_ERROR),
        (NoGpuError("none"), ExitKind.NO_GPU),
        (NonFiniteError("nan"), ExitKind.NAN_LOSS),
        (ConfigurationError("bad"), ExitKind.CONFIG_ERROR),
        (CheckpointIncompatibleError("rank"), ExitKind.CHECKPOINT_INCOMPATIBLE),
        (KeyError("x"), ExitKind.PROGRAM_ERROR),
        (PermissionError(errno.EACCES, "denied"), ExitKind.PROGRAM_ERROR),
    ],
)
def test_classification(error: Exception, kind: ExitKind) -> None:
    assert classify(error) is kind


def test_every_kind_has_an_exit_code_of_its_own() -> None:
    assert set(EXIT_CODES) == set(ExitKind)
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)


def test_the_message_is_one_paragraph_and_the_evidence_ends_with_the_error() -> None:
    error = ValueError("first line\n   second line")
    assert one_paragraph(error) == "ValueError: first line second line"
    assert one_paragraph(ConfigurationError("plain")) == "plain"
    assert "No space left" in one_paragraph(OSError(errno.ENOSPC, "No space left on device", "/x"))
    assert evidence_lines(error)[-2:] == ("ValueError: first line", "   second line")
