"""Builds the stand-in NVIDIA driver library and describes machines to it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml.c")
GIB = 1 << 30
FACTS = {
    "name": "NVIDIA GeForce RTX 4080 SUPER",
    "uuid": "GPU-8f3a",
    "total": 16 * GIB,
    "used": 2 * GIB,
    "utilisation": 97,
    "temperature": 71,
    "reasons": 4,
    "ecc": 0,
    "mode": 0,
}
"""A card in good health, a bit power-limited."""


class FakeDriver:
    """A machine with the stand-in driver; ``environment`` makes the real pynvml find it."""

    def __init__(self, folder: Path, without: Sequence[str] = ()) -> None:
        """Compile into ``folder``. ``without``: functions that this driver is too old to have."""
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("there is no C compiler (cc) to build the stand-in driver library with")
        folder.mkdir(parents=True, exist_ok=True)
        exports = folder / "exports.map"
        exports.write_text("{ global: *; local: nothing; " + "".join(f"{name}; " for name in without) + "};\n")
        subprocess.run(
            [
                compiler, "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Werror", "-shared", "-fPIC",
                "-Wl,-soname,libnvidia-ml.so.1", f"-Wl,--version-script={exports}",
                "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE),
            ],
            check=True,
        )  # fmt: skip
        self._scenario = folder / "scenario"
        self.environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "NVML_SCENARIO": str(self._scenario)}
        self.set()

    def set(self, *lines: str, gpus: Sequence[dict[str, object]] = (FACTS,)) -> None:
        """From now on the machine is like this: facts of its GPUs, and lines as nvml.c explains them."""
        facts = [f"gpu {index} {key} {value}" for index, gpu in enumerate(gpus) for key, value in gpu.items()]
        staged = self._scenario.with_suffix(".new")
        staged.write_text("\n".join([*facts, *lines]) + "\n")
        staged.replace(self._scenario)
