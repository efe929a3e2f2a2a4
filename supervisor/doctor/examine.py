"""All checks, the slow ones side by side."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from supervisor.doctor import machine
from supervisor.doctor.check import Check
from supervisor.doctor.learning import TorchQuestion, torch_checks


def examine(runs: Path) -> list[Check]:
    """``runs``: where run directories go. Takes as long as importing torch does."""
    question = TorchQuestion()
    found = machine.gpus()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    checks = [
        machine.python_check(),
        machine.name_clash_check(),
        machine.gpu_check(found, machine.driver_version(), machine.driver_device()),
        machine.ram_check(),
        *machine.disk_checks({
            "runs": runs.absolute(), "caches": cache.absolute(), "temporary files": Path(tempfile.gettempdir()),
        }),
        machine.shm_check(),
        machine.cgroup_check(),
        machine.systemd_check(),
        machine.bubblewrap_check(),
        machine.vllm_check(),
        machine.apprise_check(),
    ]  # fmt: skip
    at = next(place for place, check in enumerate(checks) if check.name == "gpu") + 1
    return [*checks[:at], *torch_checks(question.answer(), 0 if isinstance(found, str) else len(found)), *checks[at:]]
