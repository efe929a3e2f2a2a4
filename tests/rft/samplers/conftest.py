"""What the tests of samplers share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
# One thread: matrices this small gain nothing from more.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)

from rft.samplers.renderer import close_renderers  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def _renderers_end() -> Iterator[None]:
    yield
    close_renderers()


@pytest.fixture(scope="session")
def make_adapter(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, float], Path]:
    """A LoRA adapter on a base, as training writes it; by the scale of its B matrices."""
    made: dict[tuple[str, float], Path] = {}

    def make(base: str, scale: float) -> Path:
        if (base, scale) not in made:
            folder = tmp_path_factory.mktemp("adapter")
            program = Path(__file__).with_name("adapters.py")
            subprocess.run([sys.executable, str(program), base, str(folder), str(scale)], check=True)
            made[base, scale] = folder
        return made[base, scale]

    return make
