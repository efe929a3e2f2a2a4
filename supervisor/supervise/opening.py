"""Open a run directory: a new one, or an old one that goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from supervisor.config import OPERATIONAL, ConfigError, LoadedConfig, differences, load_document, unaccepted
from supervisor.jobs import JobKind, Patch, Rung
from supervisor.problems import InputError
from supervisor.protocol.atomic import write_atomic
from supervisor.protocol.lock import FileLock, LockHeldError
from supervisor.protocol.paths import RunPaths
from supervisor.redact import shown_value
from supervisor.relief.custom import own_rungs
from supervisor.relief.effective import effective_document
from supervisor.sensors.disk import FULL_ERRORS, disk_space, human_bytes
from supervisor.state import Outcome, ReliefTaken, RunState, read_state
from supervisor.supervise.hours import forecast_before_launch, refusal
from supervisor.supervise.journal import Journal
from supervisor.yaml_source import read_yaml, render_yaml


class RunRefused(InputError):
    """A run cannot be started or continued here; the text says why and what to do."""


@dataclass(frozen=True)
class RunRequest:
    """What `mens-sup run` was asked. ``config`` None continues ``run_dir`` as it is.

    ``max_attempts`` None takes limits.max_attempts. ``accept_changes``: dotted keys whose new value
    is taken over although the run began with another one. ``authorize_hours``: may be used in all, beyond
    limits.max_hours. ``force_overfit``: the data may be passed over more often than the trainer would allow.
    """

    config: LoadedConfig | None
    run_dir: Path
    max_attempts: int | None = None
    accept_changes: tuple[str, ...] = ()
    authorize_hours: float | None = None
    force_overfit: bool = False


@dataclass
class Run:
    """An open run, its supervisor lock held."""

    paths: RunPaths
    kind: JobKind
    submitted: dict[str, Any]
    state: RunState
    journal: Journal
    facts: dict[str, Any] = field(default_factory=dict)
    left_at: float = 0.0
    """When a supervisor was last at work on it, Unix seconds; 0 for a new run."""
    cut_short: bool = False
    """The supervisor before us died at work, so that what it was doing may be half done."""
    taken_over: bool = False
    """Somebody has changed the configuration on continuing: what failed before is no reason to stop now."""
    unsaved: str = ""
    """Why the newest snapshot could not be saved when that was last tried; empty when it could, or was not tried."""
    adoptable: bool = True
    """The configuration of a trainer that may still live is the one that was asked for."""

    @property
    def config(self) -> LoadedConfig:
        """The configuration of the next attempt: as submitted, then accepted changes, then relief."""
        document = effective_document(self.submitted, self.state.overrides, self.state.relief)
        return load_document(document, self.kind, source=f"{self.paths.run_yaml} with relief")

    @property
    def rungs(self) -> dict[str, Rung]:
        """The rungs of the kind of job and the user's own."""
        return {**self.kind.rungs, **own_rungs(self.config.own.relief.own_rungs, self.state.relief)}


@contextmanager
def open_run(request: RunRequest) -> Iterator[Run]:
    """Create or reopen the run directory and hold its supervisor lock.

    Raises RunRefused (live elsewhere, other configuration, unusable directory) and ConfigError.
    """
    paths = RunPaths(request.run_dir.absolute())
    lock = FileLock(paths.supervisor_lock)
    try:
        try:
            _check_place(paths, request)
            paths.root.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except LockHeldError as error:
            owner = f"process {error.owner}" if error.owner else "another process"
            raise RunRefused(
                f"{paths.root} is being supervised by {owner} right now. Look at it with "
                f"`mens-sup status {paths.root}`, stop it with `kill {error.owner or 'PID'}`, or choose another "
                "--run-dir."
            ) from None
        run = _continue(paths, request) if paths.run_yaml.exists() else _create(paths, request)
    except OSError as error:
        lock.release()
        raise RunRefused(unusable(paths, error)) from error
    except BaseException:
        lock.release()
        raise
    try:
        yield run
    finally:
        lock.release()


def unusable(paths: RunPaths, error: OSError) -> str:
    """Why the run directory cannot be written, with the room that there is."""
    place = paths.root
    while not os.path.exists(place):  # noqa: PTH110 - Path.exists raises below a folder that may not be searched
        place = place.parent
    what = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in FULL_ERRORS:
        space = disk_space(place)
        inodes = "" if space.free_inodes is None else f" and {space.free_inodes} inodes"
        return (
            f"The run directory {paths.root} cannot be written: {what}. {space.mount} has "
            f"{human_bytes(space.free_bytes)}{inodes} free of {human_bytes(space.total_bytes)}. Free some space there "
            "or choose a --run-dir on another disk."
        )
    return (
        f"The run directory {paths.root} cannot be used: {what} ({error.filename or place}). "
        "Choose a --run-dir that you may read and write, or give this user the right to."
    )


def _check_place(paths: RunPaths, request: RunRequest) -> None:
    if paths.root.exists() and not paths.root.is_dir():
        raise RunRefused(f"{paths.root} is a file, not a run directory. Choose another --run-dir.")
    if paths.run_yaml.exists():
        return
    if request.config is None:
        raise RunRefused(f"{paths.root} holds no run (no run.yaml). Give a configuration, or the right --run-dir.")
    strangers = [entry.name for entry in paths.root.iterdir()] if paths.root.exists() else []
    strangers = [name for name in strangers if name != paths.supervisor_lock.name and not name.startswith(".")]
    if strangers:
        raise RunRefused(
            f"{paths.root} is no run directory (no run.yaml) but holds {', '.join(sorted(strangers)[:3])}. "
            "Choose an empty or new --run-dir."
        )
    _check_hours(RunState(id="", kind="", max_attempts=0, authorized_hours=request.authorize_hours), request.config)


def _check_hours(state: RunState, config: LoadedConfig) -> None:
    forecast = forecast_before_launch(state, config)
    if forecast.over:
        raise RunRefused(refusal(forecast))


def _create(paths: RunPaths, request: RunRequest) -> Run:
    config = request.config
    assert config is not None  # _check_place saw to it
    # First of all: a folder with anything in it but this file is taken for somebody else's.
    write_atomic(paths.run_yaml, render_yaml(config.document).encode(), mode=0o600)
    paths.attempts.mkdir(exist_ok=True)
    paths.checkpoints().mkdir(exist_ok=True)
    state = RunState(
        id=paths.root.name,
        kind=config.kind.name,
        max_attempts=request.max_attempts or config.own.limits.max_attempts,
        authorized_hours=request.authorize_hours,
        force_overfit=request.force_overfit,
        supervisor_pid=os.getpid(),
        started=time.time(),
    )
    run = Run(paths, config.kind, config.document, state, Journal(paths, state))
    run.journal.hold_reserve()
    run.journal.save()
    run.journal.event("run_started", f"run {state.id} of kind {state.kind}", max_attempts=state.max_attempts)
    _announce_overfit(run, request)
    return run


def _continue(paths: RunPaths, request: RunRequest) -> Run:
    submitted, _ = read_yaml(paths.run_yaml)
    stored = load_document(submitted, request.config.kind if request.config else None, source=str(paths.run_yaml))
    state = _state_of(paths, stored)
    if request.config is not None and request.config.kind.name != state.kind:
        raise RunRefused(
            f"{paths.root} belongs to a run of kind {state.kind}, this configuration is of kind "
            f"{request.config.kind.name}. Choose another --run-dir."
        )
    run = Run(paths, stored.kind, submitted, state, Journal(paths, state))
    if state.outcome is Outcome.COMPLETED:
        _refuse_more_training(run, request)
        run.journal.event("already_completed", f"run {state.id} is completed already; there is nothing left to do")
        return run
    changes = _take_over(run, request) if request.config else []
    run.left_at = state.updated
    state.authorized_hours = request.authorize_hours or state.authorized_hours
    state.force_overfit = request.force_overfit or state.force_overfit
    if state.outcome is not Outcome.RUNNING:  # else a trainer may live, which the wall has to stop
        _check_hours(state, run.config)
    run.journal.hold_reserve()
    state.attempt = max(state.attempt, _highest_attempt(paths))
    state.settled = max(state.settled, *(failure.attempt for failure in state.failures), 0)
    run.cut_short = state.outcome is Outcome.RUNNING
    if not run.cut_short:
        state.settled = state.attempt
    run.taken_over = bool(changes or request.accept_changes or request.force_overfit)
    run.adoptable = _is_of_this_configuration(run)
    if run.taken_over or not run.cut_short:
        # Whom a supervisor left by dying goes on with the attempts that it had.
        state.attempts_before = state.settled
    state.outcome = Outcome.RUNNING
    state.explanation = ""
    state.accepted_changes.update(dict.fromkeys(request.accept_changes, state.attempt + 1))
    state.max_attempts = request.max_attempts or run.config.own.limits.max_attempts
    state.supervisor_pid = os.getpid()
    run.journal.save()
    run.journal.event(
        "run_continued", f"run {state.id} goes on after attempt {state.attempt}", max_attempts=state.max_attempts
    )
    for patch in changes:
        run.journal.event("change_accepted", _shown(patch), key=patch.key)
    _announce_overfit(run, request)
    return run


def _announce_overfit(run: Run, request: RunRequest) -> None:
    if request.force_overfit:
        run.journal.event("overfit_forced", "--force-overfit: the data may be passed over as often as is planned")


def _is_of_this_configuration(run: Run) -> bool:
    """Has the last attempt what is asked for now? Who changed it may be a supervisor that died over that, long ago."""
    effective = run.paths.attempt(run.state.attempt).effective
    try:
        document, _ = read_yaml(effective)
        launched = load_document(document, run.kind, source=str(effective)).document
    except ConfigError:  # not told: at worst it is asked to save and stop, and goes on from there
        return False
    return not unaccepted(launched, run.config.document, ())


_NEEDED = (
    "It names the relief taken and the attempts so far, so the run cannot go on safely without it. Restore it from a "
    "backup, or start in a new --run-dir."
)


def _state_of(paths: RunPaths, stored: LoadedConfig) -> RunState:
    state = _read_state(paths)
    if state is not None:
        return state
    if _highest_attempt(paths):
        raise RunRefused(f"{paths.state} is missing although attempts were made. {_NEEDED}")
    paths.attempts.mkdir(exist_ok=True)
    paths.checkpoints().mkdir(exist_ok=True)
    return RunState(
        id=paths.root.name, kind=stored.kind.name, max_attempts=stored.own.limits.max_attempts, started=time.time()
    )


def _read_state(paths: RunPaths) -> RunState | None:
    try:
        return read_state(paths.state)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunRefused(f"{paths.state} is damaged ({error}). {_NEEDED}") from error


def _highest_attempt(paths: RunPaths) -> int:
    if not paths.attempts.is_dir():
        return 0
    return max((int(entry.name) for entry in paths.attempts.iterdir() if entry.name.isdigit()), default=0)


def _take_over(run: Run, request: RunRequest) -> list[Patch]:
    """Compare the submitted configuration with the run's; record what may change, refuse the rest."""
    assert request.config is not None
    stored = effective_document(run.submitted, run.state.overrides, [])
    # A run of an earlier version lacks the newer keys, which have their defaults.
    before = load_document(stored, run.kind, source=str(run.paths.run_yaml)).document
    after = request.config.document
    if refused := unaccepted(before, after, request.accept_changes):
        listed = "; ".join(_shown(patch) for patch in refused)
        flags = " ".join(f"--accept-change {patch.key}" for patch in refused)
        raise RunRefused(
            f"{run.paths.root} was started with another configuration: {listed}. Accept the change(s) one by one with "
            f"{flags}, or choose a new --run-dir."
        )
    patches = differences(before, after)
    for patch in patches:
        section = next((name for name in OPERATIONAL if _covers(name, patch.key)), None)
        key = section or overridden_key(before, after, patch.key)
        below = {name for name in run.state.overrides if _covers(key, name)}
        run.state.overrides = {name: value for name, value in run.state.overrides.items() if name not in below}
        run.state.overrides[key] = _value(after, key)
        run.state.relief = [_without(entry, patch.key) for entry in run.state.relief]
    return patches


def overridden_key(before: Mapping[str, Any], after: Mapping[str, Any], key: str) -> str:
    """The part of the document to replace so that ``key``, which differs, is as in ``after``.

    That is the key itself, or a section above it: one that comes or goes as a whole, or loses a key.
    """
    old, new = before, after
    parts = key.split(".")
    for index, part in enumerate(parts):
        if part not in new:
            return ".".join(parts[:index]) or key
        below_old, below_new = old.get(part), new[part]
        if not isinstance(below_old, Mapping) or not isinstance(below_new, Mapping):
            return ".".join(parts[: index + 1])
        old, new = below_old, below_new
    return key


def _refuse_more_training(run: Run, request: RunRequest) -> None:
    """A completed run has nothing left that another configuration could change."""
    if request.config is None:
        return
    before = effective_document(run.submitted, run.state.overrides, [])
    if changed := unaccepted(before, request.config.document, ()):
        listed = "; ".join(_shown(patch) for patch in changed)
        raise RunRefused(
            f"{run.paths.root} is completed already, with another configuration: {listed}. To train on with the new "
            "one, start a new --run-dir."
        )


def stored_run(run_dir: Path) -> RunState | None:
    """What the run in a directory remembers, None when there is no run. Raises RunRefused: unreadable or damaged."""
    paths = RunPaths(run_dir)
    try:
        return _read_state(paths) if paths.run_yaml.is_file() else None
    except OSError as error:
        raise RunRefused(unusable(paths, error)) from error


def _shown(patch: Patch) -> str:
    return f"{patch.key}: {shown_value(patch.key, patch.old)!r} -> {shown_value(patch.key, patch.new)!r}"


def _covers(name: str, key: str) -> bool:
    return key == name or key.startswith(f"{name}.")


def _without(entry: ReliefTaken, key: str) -> ReliefTaken:
    """What a person sets by hand afterwards is no longer held by a relief."""
    patches = {name: value for name, value in entry.patches.items() if not _covers(name, key)}
    return msgspec.structs.replace(entry, patches=patches)


def _value(document: dict[str, Any], dotted: str) -> Any:
    value: Any = document
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
