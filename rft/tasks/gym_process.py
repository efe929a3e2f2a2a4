"""Entries of a generator, the same in every run: asked from a process with a fixed order of sets."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from rft.tasks.gym_package import GymError

PATIENCE_SECONDS = 10.0
COMMAND = (sys.executable, "-P", "-m", "rft.tasks.gym_worker")


def entries(
    dataset: str, params: Mapping[str, Any], firsts: Sequence[int], size: int
) -> Generator[tuple[int, dict[str, Any]], None, None]:
    """``(number, entry)`` of ``size`` entries from each of ``firsts``, as JSON values.

    Its process ends with it, also when it is closed. Raises GymError.
    """
    process = subprocess.Popen(
        COMMAND,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        request = {"dataset": dataset, "params": dict(params), "firsts": list(firsts), "size": size}
        with contextlib.suppress(BrokenPipeError):  # its exit code says why
            process.stdin.write(json.dumps(request).encode())
            process.stdin.close()
        for line in process.stdout:
            found = json.loads(line)
            if isinstance(found, str):
                raise GymError(found)
            number, entry = found
            yield number, entry
        if code := process.wait():
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise GymError(f"the process that generates entries of {dataset} {how}")
    finally:
        process.stdout.close()
        process.kill()
        process.wait()


def problem(dataset: str, params: Mapping[str, Any]) -> str | None:
    """Why this generator cannot be used with these parameters, in a sentence; None when it can."""
    try:
        for _ in entries(dataset, params, [0], 1):
            pass
    except GymError as error:
        return str(error)
    return None
