"""RUN/report.html."""

from __future__ import annotations

from pathlib import Path

from supervisor.protocol.atomic import write_atomic
from supervisor.protocol.paths import RunPaths
from supervisor.report.page import run_page

REPORT_NAME = "report.html"


def write_report(run_dir: Path) -> Path:
    """Write the page of the run into its folder and return the path. Raises InputError and OSError."""
    path = run_dir / REPORT_NAME
    write_atomic(path, run_page(RunPaths(run_dir)))
    return path
