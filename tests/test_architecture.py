"""The rules about the source itself: who may import whom, and the linter's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def at_root(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


# proves law 1: packages meet only where [tool.importlinter] lets them
def test_import_contracts() -> None:
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = at_root("-c", program, "--no-cache")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_ruff() -> None:
    done = at_root("-m", "ruff", "check", "--no-cache", ".")
    assert done.returncode == 0, done.stdout + done.stderr
