"""The Python that trains: torch, its build, and bitsandbytes, against the GPUs that there are."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec

from supervisor.doctor.check import Check, fail, ok, warn

SECONDS = 60.0
_ASK = """
import importlib.metadata
import json
import os
import sys

def main():
    found = {}
    for name in ("torch", "transformers", "trl", "peft", "bitsandbytes"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if "torch" in found:
        try:
            import torch

            found["cuda_build"] = torch.version.cuda
            found["hip_build"] = torch.version.hip
            found["cuda_works"] = torch.cuda.is_available()
            if found["cuda_works"]:
                found["capability"] = list(torch.cuda.get_device_capability(0))
                found["architectures"] = torch.cuda.get_arch_list()
        except Exception as error:
            found["torch_error"] = f"{type(error).__name__}: {error}"
    if "bitsandbytes" in found and "torch_error" not in found:
        try:
            from bitsandbytes import cextension

            found["bnb_library"] = type(cextension.lib).__name__
            found["bnb_cuda"] = bool(getattr(type(cextension.lib), "compiled_with_cuda", False))
        except Exception as error:
            found["bnb_error"] = f"{type(error).__name__}: {error}"
    os.write(int(sys.argv[1]), json.dumps(found).encode())

main()
"""
"""A program of its own, since the supervisor imports neither torch nor bitsandbytes: JSON on a descriptor. What could
not be found out is left out, ``*_error`` says why."""
INSTALL = "pip install -c constraints.txt '.[cpu]' (or '.[gpu]'), or make install"


class TorchFacts(msgspec.Struct, frozen=True):
    """What the question found; None is unknown."""

    torch: str | None = None
    transformers: str | None = None
    trl: str | None = None
    peft: str | None = None
    bitsandbytes: str | None = None
    cuda_build: str | None = None
    hip_build: str | None = None
    cuda_works: bool | None = None
    capability: tuple[int, int] | None = None
    architectures: tuple[str, ...] = ()
    torch_error: str | None = None
    bnb_library: str | None = None
    bnb_cuda: bool | None = None
    bnb_error: str | None = None


class TorchQuestion:
    """Asked at once, answered later: importing torch takes seconds."""

    def __init__(self, python: str = sys.executable) -> None:
        self._read, write = os.pipe()
        self._until = time.monotonic() + SECONDS
        try:
            self._process = subprocess.Popen(
                [python, "-P", "-c", _ASK, str(write)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[write],
                env={**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
            )
        finally:
            os.close(write)

    def answer(self) -> TorchFacts | str:
        """What it found, or why nothing is known."""
        with open(self._read, "rb") as answers:
            try:
                code = self._process.wait(max(0.0, self._until - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                return f"torch could not be imported within {SECONDS:g} s"
            text = answers.read()
        try:
            return msgspec.json.decode(text, type=TorchFacts)
        except msgspec.DecodeError:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            return f"importing torch ended the Python that tried, with {how}"


def torch_checks(facts: TorchFacts | str, gpus: int) -> Iterator[Check]:
    """``gpus``: NVIDIA GPUs that the driver shows."""
    if isinstance(facts, str):
        yield fail("torch", facts, f"Reinstall it: {INSTALL}")
        return
    if facts.torch is None:
        yield warn("torch", "not installed: nothing can be trained from this environment", INSTALL)
        return
    if facts.torch_error is not None:
        yield fail("torch", f"{facts.torch} cannot be imported ({facts.torch_error[:300]})", f"Reinstall it: {INSTALL}")
        return
    yield _build(facts, gpus)
    if missing := [name for name in ("transformers", "trl", "peft") if getattr(facts, name) is None]:
        yield fail("training", f"{', '.join(missing)} not installed", INSTALL)
    yield _bitsandbytes(facts, gpus)


def _build(facts: TorchFacts, gpus: int) -> Check:
    build = f"CUDA {facts.cuda_build}" if facts.cuda_build else "ROCm" if facts.hip_build else "CPU only"
    what = f"{facts.torch}, built for {build}" if build != "CPU only" else f"{facts.torch}, a build for CPUs only"
    if not gpus:
        return ok("torch", what)
    if facts.cuda_build is None:
        return fail("torch", f"{what}, and there is a GPU", "Install a CUDA build: pip install torch (see pytorch.org)")
    if not facts.cuda_works:
        return fail(
            "torch", f"{what}, but it cannot use the GPU",
            "The driver may be too old for this build: update the driver, or install a build for an older CUDA.",
        )  # fmt: skip
    if facts.capability is not None and facts.architectures and not _runs_on(facts.capability, facts.architectures):
        name = f"sm_{facts.capability[0]}{facts.capability[1]}"
        return fail(
            "torch", f"{what}, without code for this GPU ({name}; it has {', '.join(facts.architectures)})",
            "Install a build of torch that supports this GPU's generation.",
        )  # fmt: skip
    return ok("torch", f"{what}; the GPU works")


def _runs_on(capability: tuple[int, int], architectures: tuple[str, ...]) -> bool:
    """Machine code of the same major version up to this minor one, or any older PTX that is compiled on the spot."""
    for name in architectures:
        kind, _, digits = name.partition("_")
        digits = digits.rstrip("af")
        if not digits.isdigit():
            continue
        major, minor = int(digits[:-1]), int(digits[-1])
        if kind == "sm" and major == capability[0] and minor <= capability[1]:
            return True
        if kind == "compute" and (major, minor) <= capability:
            return True
    return False


def _bitsandbytes(facts: TorchFacts, gpus: int) -> Check:
    if facts.bitsandbytes is None:
        return fail("bitsandbytes", "not installed: no 4-bit base, no 8-bit optimiser", INSTALL)
    if facts.bnb_error is not None or facts.bnb_library is None:
        why = f"{facts.bitsandbytes} cannot be loaded ({(facts.bnb_error or 'unknown')[:300]})"
        return fail("bitsandbytes", why, f"Reinstall it: {INSTALL}")
    if "Mock" in facts.bnb_library:
        why = f"{facts.bitsandbytes} has no library for this build of torch (CUDA {facts.cuda_build or 'none'})"
        return fail("bitsandbytes", why, "Install a newer bitsandbytes, or a torch for a CUDA that it knows.")
    if gpus and facts.cuda_works and not facts.bnb_cuda:
        why = f"{facts.bitsandbytes} works on the CPU only, and there is a GPU"
        return fail("bitsandbytes", why, f"Reinstall it: {INSTALL}")
    return ok("bitsandbytes", f"{facts.bitsandbytes}, {'CUDA' if facts.bnb_cuda else 'CPU'} backend")
