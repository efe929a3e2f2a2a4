"""proves SUP-17: a GPU that was asked for and isn't there is said, and nobody trains on the CPU unasked."""

from __future__ import annotations

import os

import pytest
import torch
from tiny_runs import NotTrained, Tiny, kept_signal_handler

import trainer.__main__
from supervisor.protocol.attempt import EXIT_CODES, SPEC_VARIABLE, ExitKind, read_exit_report
from trainer.errors import NoGpuError
from trainer.model import choose_device

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@without_gpu
def test_cuda_without_a_gpu_ends_with_its_own_exit_code(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tiny.prepare("no-gpu", {"device": "cuda"})
    monkeypatch.setenv(SPEC_VARIABLE, str(spec))
    with kept_signal_handler():
        assert trainer.__main__.main() == EXIT_CODES[ExitKind.NO_GPU] == 77
    report = read_exit_report(spec.with_name("exit.json"))
    assert report is not None and report.kind is ExitKind.NO_GPU
    assert "built without GPU support" in report.message or "NVIDIA" in report.message
    assert "device: auto" in report.message


@without_gpu
def test_auto_takes_the_cpu_and_says_so(tiny: Tiny) -> None:
    attempt = tiny.run("auto", {"device": "auto"}, trainer_class=NotTrained)
    assert attempt.built.args.device.type == "cpu"
    (warning,) = attempt.events("warning")
    assert "CPU" in warning.message


def test_cpu_says_nothing(tiny: Tiny) -> None:
    attempt = tiny.run("cpu", trainer_class=NotTrained)
    assert attempt.built.args.device.type == "cpu"
    assert not attempt.events("warning")


def test_cpu_hides_the_cards(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tiny.prepare("hidden", {"device": "cpu", "model.base": "no-such-folder/./x"})
    monkeypatch.setenv(SPEC_VARIABLE, str(spec))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with kept_signal_handler():
        assert trainer.__main__.main() != 0
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@without_gpu
@pytest.mark.parametrize(
    ("cuda_version", "reason"), [(None, "built without GPU support"), ("13.0", r"/dev/nvidiactl|NVIDIA driver")]
)
def test_the_reason_is_named(monkeypatch: pytest.MonkeyPatch, cuda_version: str | None, reason: str) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda_version)
    with pytest.raises(NoGpuError, match=reason):
        choose_device("cuda")
