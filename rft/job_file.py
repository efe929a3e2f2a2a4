"""A job's file as the supervisor reads it: validated, defaults filled in, paths absolute."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rft.config import RftSections
from supervisor.problems import InputError

SUPERVISOR = (sys.executable, "-P", "-m", "supervisor.cli")
"""The supervisor is another program; this package does not import it."""


def load_job(path: Path, sets: Sequence[str] = ()) -> RftSections:
    """The job's own sections. Raises InputError with all that is wrong with the file."""
    overrides = [word for each in sets for word in ("--set", each)]
    done = subprocess.run(
        [*SUPERVISOR, "validate", str(path), "--json", *overrides], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise InputError(done.stderr.strip() or f"{path} cannot be read (exit code {done.returncode}).")
    found = json.loads(done.stdout)
    if found["kind"] != "rft":
        raise InputError(
            f"{path}: kind is {found['kind']}, not rft. Write `kind: rft` into a job for sampling; anything else is "
            "started by `mens-sup run`."
        )
    return RftSections.model_validate(found["sections"])
