"""How a job stands, from its run directory alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rft.config import RftSections
from rft.effective import read_effective
from rft.scheduler import Scheduler
from rft.store import STORE_NAME, Store
from supervisor.problems import InputError
from supervisor.protocol.attempt import read_exit_report
from supervisor.protocol.lock import lock_holder
from supervisor.protocol.paths import RunPaths
from trainer.errors import ConfigurationError

NO_PASS_AT_K = (
    "pass@k is not computed: the budget is adaptive, so tasks were stopped for their verdicts, and counting those "
    "would be biased. For pass@k sample with budget.adaptive: false in a run of its own."
)


@dataclass(frozen=True)
class Standing:
    """``complete``: nothing is owed. ``capped``: why it ended early, empty when it did not."""

    sections: RftSections
    running: bool
    complete: bool
    capped: str
    scheduler: Scheduler


def sections_of(run_dir: Path) -> RftSections:
    """The job that a run directory belongs to. Raises InputError."""
    path = RunPaths(run_dir).run_yaml
    if not path.is_file():
        raise InputError(f"{run_dir} holds no run (no {path.name}). Name the folder of a run of kind rft.")
    try:
        return read_effective(path).sections
    except ConfigurationError as error:
        raise InputError(f"{error}. Is {run_dir} a run of kind rft?") from None


def standing(run_dir: Path, store: Store) -> Standing:
    """Plans anew from the store, as the job itself would."""
    sections, paths = sections_of(run_dir), RunPaths(run_dir)
    scheduler = Scheduler(store, sections.budget, sections.sampling.samples_per_task, sections.seed, lambda task: ())
    reports = sorted(paths.attempts.glob("*/exit.json")) if paths.attempts.is_dir() else []
    last = read_exit_report(reports[-1]) if reports else None
    return Standing(
        sections,
        lock_holder(paths.trainer_lock) is not None,
        scheduler.complete and scheduler.tasks > 0,
        last.stopped_early if last else "",
        scheduler,
    )


def open_to_read(run_dir: Path) -> Store:
    if not run_dir.is_dir():
        raise InputError(f"{run_dir} is no folder. Name the folder of a run of kind rft.")
    if not (run_dir / STORE_NAME).is_file():
        raise InputError(f"{run_dir} holds no samples (no {STORE_NAME}): nothing was sampled there yet.")
    return Store.read(run_dir)
