"""What systemd is about to do with this service."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

UNIT_VARIABLE = "MENS_SUP_UNIT"
"""Names the unit that the daemon is; set by it."""
_SECONDS = 5.0


def restarting(environment: Mapping[str, str]) -> bool:
    """Whether this unit is being restarted, so that another daemon comes at once. False where that can't be known."""
    unit = environment.get(UNIT_VARIABLE)
    if not unit:
        return False
    command = ["systemctl", "list-jobs", "--plain", "--no-legend", "--no-pager"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return jobs_restart(done.stdout, unit)


def jobs_restart(listed: str, unit: str) -> bool:
    """Does `systemctl list-jobs` show a restart of ``unit``? Each line is number, unit, type, state."""
    jobs = [line.split() for line in listed.splitlines()]
    return any(len(job) >= 3 and job[1] == unit and job[2] in ("restart", "try-restart") for job in jobs)
