"""The attempt that a supervisor which died left behind: is its trainer alive, has it ended, was it ever started?"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from supervisor.checkpoints import CheckpointInfo
from supervisor.diagnosis.values import Diagnosis
from supervisor.process.adopted import AdoptedProcess
from supervisor.process.identity import Identity, boot_id, identity_of, leads_its_group, read_stat, still_lives
from supervisor.process.leftovers import processes_of
from supervisor.protocol.attempt import AttemptSpec, read_spec
from supervisor.protocol.events import EventReader
from supervisor.protocol.heartbeat import read_heartbeat
from supervisor.protocol.lock import lock_holder
from supervisor.protocol.paths import AttemptPaths, checkpoint_step
from supervisor.sensors.kernel_log import past_events
from supervisor.sensors.snapshot import Unknown
from supervisor.state import RunState
from supervisor.supervise.follow import take_facts
from supervisor.supervise.foreign import inspect_checkpoints
from supervisor.supervise.opening import Run

_OPENING = ("run_continued", "change_accepted", "already_completed")


@dataclass
class Past:
    """What the event log tells about the run's last attempt.

    ``said``: the supervisor's events of that attempt, kind -> message. ``verified``: steps of the checkpoints that
    were announced. ``offset``: where the log ended when it was read.
    """

    said: dict[str, str] = field(default_factory=dict)
    verified: set[int] = field(default_factory=set)
    offset: int = 0


@dataclass(frozen=True)
class Unfinished:
    """An attempt that was started and whose end is not entered yet. ``process``: its trainer, if it lives.

    ``diagnosis``: a verdict that was reached before and is kept, because its evidence (how the trainer ended) is gone.
    """

    paths: AttemptPaths
    spec: AttemptSpec
    process: AdoptedProcess | None
    diagnosis: Diagnosis | None

    @property
    def resumed_step(self) -> int | None:
        if self.spec.resume_step is None and self.spec.resume_from:
            return checkpoint_step(Path(self.spec.resume_from).name)  # written by a supervisor of an earlier version
        return self.spec.resume_step


def read_past(run: Run) -> Past:
    """Read the whole event log once: what the trainers told goes into the run, the rest is returned."""
    past = Past()
    reader = EventReader(run.paths.events)
    for event in reader.new():
        if event.source == "trainer":
            take_facts(run, event)
            continue
        if event.kind not in _OPENING:
            past.said.pop("outcome", None)  # the run went on after it
        if event.attempt != run.state.attempt:
            continue
        past.said[event.kind] = event.message
        if event.kind == "checkpoint_verified" and event.step is not None:
            past.verified.add(event.step)
    past.offset = reader.offset
    return past


def remember_trainer(state: RunState, pid: int) -> None:
    """Who the trainer is, so that a later supervisor can be sure of it."""
    found = identity_of(pid)
    state.trainer_pid = pid
    state.trainer_start = found.start_ticks if found else 0
    state.boot_id = found.boot_id if found else ""


def find_unfinished(run: Run) -> Unfinished | None:
    """None when the last attempt is entered in the ledger, or was prepared but never started (it is taken back)."""
    state = run.state
    if state.attempt <= state.settled:
        return None
    paths = run.paths.attempt(state.attempt)
    if not paths.spec.exists() or not _was_started(run, paths):
        if paths.root.exists():
            shutil.rmtree(paths.root)
        state.attempt -= 1
        return None
    diagnosis = _stored(paths)
    process = None
    if run.adoptable and diagnosis is None and (identity := _living_trainer(run, paths)) is not None:
        try:
            process = AdoptedProcess(identity)
        except ProcessLookupError:
            process = None
    return Unfinished(paths, read_spec(paths.spec), process, diagnosis)


def _was_started(run: Run, paths: AttemptPaths) -> bool:
    """Its log is opened before a trainer is started, but may be deleted later. A standby does not hold the lock."""
    traces = (paths.stderr, paths.heartbeat, paths.exit_report)
    return any(path.exists() for path in traces) or lock_holder(run.paths.trainer_lock) in processes_of(paths.spec)


def _stored(paths: AttemptPaths) -> Diagnosis | None:
    try:
        return msgspec.json.decode(paths.diagnosis.read_bytes(), type=Diagnosis)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError):  # not by us, who write it whole: look at the evidence again
        return None


def _living_trainer(run: Run, paths: AttemptPaths) -> Identity | None:
    """The trainer of this attempt, alive and beyond doubt: it leads its own group, and the lock is its or free.

    The recorded one, whose start time must agree, or, when the supervisor died before it could record it, the
    one whose environment names the attempt.
    """
    ours = processes_of(paths.spec)
    holder = lock_holder(run.paths.trainer_lock)
    state = run.state
    if state.trainer_pid and state.boot_id == boot_id():
        recorded = Identity(state.trainer_pid, state.trainer_start, state.boot_id)
        if still_lives(recorded) and leads_its_group(recorded.pid):
            trusted = holder in (None, recorded.pid) or holder in ours
            return recorded if trusted and (recorded.pid in ours or holder == recorded.pid) else None
    if holder is not None and holder not in ours:
        return None
    leader = _leader(paths, ours, holder)
    return identity_of(leader) if leader is not None else None


def _leader(paths: AttemptPaths, ours: list[int], holder: int | None) -> int | None:
    """Among the attempt's processes the trainer that we spawned, not a daemon that outlived it."""
    beat = read_heartbeat(paths.heartbeat)
    for witness in (holder, beat.pid if beat else None):
        if witness is None:
            continue
        stat = read_stat(witness)
        return stat.group if stat is not None and witness in ours and stat.group in ours else None
    leaders = [pid for pid in ours if leads_its_group(pid)]
    return leaders[0] if len(leaders) == 1 else None


def known_checkpoints(run: Run, past: Past) -> list[CheckpointInfo]:
    """The good checkpoints but those that nobody has announced yet: the follower does it."""
    infos = inspect_checkpoints(run)
    return [info for info in infos if info.good and not _is_new(info, run.state.attempt, past)]


def _is_new(info: CheckpointInfo, attempt: int, past: Past) -> bool:
    return info.manifest is not None and info.manifest.attempt == attempt and info.step not in past.verified


def kernel_words(run: Run, paths: AttemptPaths) -> str | None:
    """What the kernel logged about a trainer that died unobserved; None when that cannot be known."""
    beat = read_heartbeat(paths.heartbeat)
    pid = run.state.trainer_pid or (beat.pid if beat else 0)
    if not pid or run.state.boot_id != boot_id():
        return None
    events = past_events(beat.monotonic_ns / 1e9 if beat else 0.0)
    if isinstance(events, Unknown):
        return None
    return "\n".join(event.text for event in events if event.pid == pid)


def went_down(run: Run) -> bool:
    """Has the machine been started anew since the attempt's trainer was?"""
    return bool(run.state.boot_id) and run.state.boot_id != boot_id()


def not_again(run: Run, past: Past) -> dict[str, str | None]:
    """Events that stand in the log already although what belongs to them was cut short, for `Journal.leave_out`."""
    if not run.cut_short:
        return {}
    whatever, alike = frozenset[str](), frozenset({"outcome", "relaunch", "relief"})
    if run.state.attempt > run.state.settled:
        whatever = frozenset({"attempt_started", "ended_unseen", "attempt_ended", "failure"})
    return {
        kind: message if kind in alike else None
        for kind, message in past.said.items()
        if kind in whatever or kind in alike
    }
