"""What browsers and Prometheus get: the page of all runs, that of each, and metrics."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, HTTPException, Response
from fastapi import Path as InPath

from supervisor.daemon.control.describe import answers_text
from supervisor.daemon.control.requests import MAX_ID
from supervisor.daemon.service import DaemonService, EntryState
from supervisor.html.page import POLICY
from supervisor.metrics import CONTENT_TYPE, DaemonFigures, MetricsSource
from supervisor.problems import InputError
from supervisor.protocol.paths import RunPaths
from supervisor.report import Summaries, index_page, run_directories

MOST_ENTRIES = 2000
PAGE_SECONDS = 30.0
PAGES_AT_A_TIME = 2

_HEADERS = {
    "content-security-policy": f"{POLICY}; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}


class Pages:
    """Of the runs of ``service``. What was read of runs that have ended is kept."""

    def __init__(self, service: DaemonService) -> None:
        self._service = service
        self._summaries = Summaries()
        self._metrics = MetricsSource(service.health().runs)
        self._lock = threading.Lock()
        self._making = threading.Semaphore(PAGES_AT_A_TIME)

    def index(self) -> bytes:
        """Every run of the queue and of the daemon's folder; those of the queue have a page."""
        entries = self._service.entries(MOST_ENTRIES)
        addresses = {each.run_dir: f"/runs/{each.id}" for each in entries}
        directories = dict.fromkeys((*addresses, *run_directories(self._service.health().runs)))
        with self._lock:
            runs = self._summaries.of(directories)
        return index_page(runs, address=lambda run: addresses.get(run.directory))

    def run(self, entry_id: int) -> bytes:
        """Made by a process of its own: however large or strange a run's files are, the daemon stays as it is.

        Raises InputError, and HTTPException when it takes too long or others are being made.
        """
        run_dir = self._service.entry(entry_id).run_dir
        if not RunPaths(run_dir).state.exists():
            raise InputError(f"{run_dir} holds no run yet.")
        if not self._making.acquire(timeout=PAGE_SECONDS):
            raise HTTPException(503, "Other pages are being made. Try again in a moment.")
        try:
            return _made(run_dir)
        finally:
            self._making.release()

    def metrics(self) -> str:
        health = self._service.health()
        states = Counter(each.state.value for each in self._service.entries(MOST_ENTRIES))
        figures = DaemonFigures(
            queue={state.value: states[state.value] for state in EntryState},
            uptime_seconds=health.uptime_seconds,
            tick_age_seconds=health.tick_age_seconds,
            leases_held={each.resource: each.entry is not None for each in health.leases},
            version=health.version,
        )
        return self._metrics.text(figures)


def page_routes(service: DaemonService) -> APIRouter:
    routes = APIRouter()
    pages = Pages(service)

    @routes.get("/", **answers_text("text/html"))
    def index() -> Response:
        """The page of all runs."""
        return _html(pages.index())

    @routes.get("/runs/{entry_id}", **answers_text("text/html", 404, 409, 422))
    def run(entry_id: Annotated[int, InPath(ge=1, le=MAX_ID)]) -> Response:
        """The page of an entry's run."""
        return _html(pages.run(entry_id))

    @routes.get("/metrics", **answers_text("text/plain"))
    def metrics() -> Response:
        return Response(pages.metrics(), media_type=CONTENT_TYPE)

    return routes


def _made(run_dir: Path) -> bytes:
    command = [sys.executable, "-m", "supervisor.cli", "report", "--out=-", "--", str(run_dir)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PAGE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise HTTPException(503, f"The page was not ready within {PAGE_SECONDS:g} s.") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise InputError(said[-2000:] or f"The page can't be made (exit code {done.returncode}).")
    return done.stdout


def _html(page: bytes) -> Response:
    return Response(page, media_type="text/html; charset=utf-8", headers=_HEADERS)
