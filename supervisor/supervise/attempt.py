"""One attempt: prepare its folder, start the trainer, watch it until it has ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from supervisor.checkpoints import CheckpointInfo
from supervisor.diagnosis.evidence import log_tail
from supervisor.diagnosis.values import Evidence, Hang
from supervisor.jobs import keeps_own_state
from supervisor.process.adopted import RunningTrainer
from supervisor.process.leftovers import end_leftovers, reap_group
from supervisor.process.signals import SignalQueue
from supervisor.process.spawn import ExitStatus
from supervisor.process.stop import Stopper, StopPlan, StuckProcessError, press, stop_trainer
from supervisor.protocol.atomic import fsync_directory, write_atomic
from supervisor.protocol.attempt import AttemptSpec, read_exit_report, write_spec
from supervisor.protocol.heartbeat import Phase, read_heartbeat
from supervisor.protocol.paths import AttemptPaths
from supervisor.sensors.history import kernel_lines, oom_kills
from supervisor.sensors.snapshot import Snapshot
from supervisor.supervise.follow import Follower
from supervisor.supervise.foreign import foreign_kind, start_foreign
from supervisor.supervise.hang_watch import HangWatch
from supervisor.supervise.opening import Run
from supervisor.supervise.snapshots import fresh_home
from supervisor.supervise.spare import Spare, trainer_environment
from supervisor.supervise.taking_up import remember_trainer
from supervisor.supervise.time_wall import TimeWall
from supervisor.yaml_source import render_yaml

TICK_SECONDS = 0.5


@dataclass(frozen=True)
class Ended:
    """An ended attempt: the process's own status and what we did to it."""

    status: ExitStatus
    stop_requested: bool
    killed_by_us: bool
    leftovers: int
    hang: Hang | None = None


class StopRequest:
    """Whether somebody asked the supervisor to stop; a second SIGINT means at once."""

    def __init__(self, signals: SignalQueue, wall: TimeWall) -> None:
        self._signals = signals
        self._wall = wall
        self._at_wall = False
        self._received: list[int] = []

    def poll(self) -> bool:
        self._received += self._signals.take()
        self._at_wall = self._wall.reached() or self._at_wall
        return bool(self._received) or self._at_wall

    @property
    def by_wall(self) -> bool:
        """The run's time is used up, and nobody asked besides."""
        return self._at_wall and not self._received

    @property
    def reason(self) -> str:
        return "The run's hours are used up" if self.by_wall else f"{self.name} received"

    @property
    def hurry(self) -> bool:
        return self._received.count(signal.SIGINT) > 1

    @property
    def name(self) -> str:
        return signal.Signals(self._received[0]).name if self._received else ""


def prepare_attempt(run: Run, resume: CheckpointInfo | None) -> AttemptPaths:
    """Write the attempt's folder: effective.yaml and attempt.json. Raises OSError (full disk)."""
    state, config = run.state, run.config
    paths = run.paths.attempt(state.attempt)
    paths.root.mkdir(parents=True)
    run.paths.checkpoints(state.lineage).mkdir(exist_ok=True)
    write_atomic(paths.effective, render_yaml(config.document).encode(), mode=0o600)
    write_spec(
        paths.spec,
        AttemptSpec(
            run_dir=str(run.paths.root),
            attempt=state.attempt,
            lineage=state.lineage,
            effective_config=str(paths.effective),
            resume_from=str(resume.path) if resume else None,
            resume_step=resume.step if resume else _kept_step(run),
            save_steps=config.own.checkpoint.save_steps,
            accepted_changes=_still_accepted(run, resume),
            force_overfit=state.force_overfit,
            processes=config.own.launch.processes,
            strategy=config.own.launch.strategy,
            snapshots=None if foreign_kind(run) else fresh_home(run),
        ),
    )
    fsync_directory(run.paths.attempts)
    return paths


def _last_that_compared(run: Run) -> int:
    """The last attempt before this one whose program, keeping its own state, found that to be the job's; 0 for none."""
    if keeps_own_state(run.kind):
        for attempt in range(run.state.attempt - 1, 0, -1):
            beat = read_heartbeat(run.paths.attempt(attempt).heartbeat)
            if beat is not None and beat.phase > Phase.LOADING:
                return attempt
    return 0


def _kept_step(run: Run) -> int | None:
    """The steps that a program which keeps them itself has done; None for none, and for any other program."""
    return (run.state.step or None) if keeps_own_state(run.kind) else None


def _still_accepted(run: Run, resume: CheckpointInfo | None) -> tuple[str, ...]:
    """What may differ from the checkpoint: accepted, by the user or a relief, after the attempt that wrote it."""
    writer = resume.manifest.attempt if resume and resume.manifest else _last_that_compared(run)
    accepted = [*run.state.accepted_changes.items()]
    accepted += [(key, taken.attempt) for taken in run.state.relief for key in taken.accepts]
    return tuple(dict.fromkeys(key for key, since in accepted if writer < since))


def launch(run: Run, paths: AttemptPaths, spare: Spare) -> RunningTrainer:
    """Start the attempt's trainer. Raises OSError when the program cannot be started."""
    if (foreign := foreign_kind(run)) is not None:
        return start_foreign(run, foreign, paths, trainer_environment(run, paths.spec))
    return spare.launch(paths)


def watch(
    run: Run,
    process: RunningTrainer,
    follower: Follower,
    signals: SignalQueue,
    stop: StopRequest,
    on_tick: Callable[[], None],
) -> Ended:
    """Follow the trainer until it has ended and nothing of it is left.

    An error of our own first stops the trainer the gentle way, then is raised again. Raises
    StuckProcessError when the trainer survives SIGKILL.
    """
    plan = StopPlan(run.config.own.limits.stop_grace_seconds)
    stopper: Stopper | None = None
    asked, hang, hangs = False, None, HangWatch(run)
    try:
        remember_trainer(run.state, process.pid)
        run.journal.save()
        follower.began(process.pid)
        while not process.ended():
            if stopper is None and (hang := hangs.tick(process)) is not None:
                stopper = Stopper(hangs.plan, time.monotonic())
            if stop.poll() and not asked:
                asked = True
                stopper = stopper or Stopper(plan, time.monotonic())
                run.journal.event("stop_requested", f"{stop.reason}: {_stopping(stop.name)}")
            if stopper is not None:
                press(process, stopper, stop.hurry)
            follower.tick()
            on_tick()
            signals.wait(TICK_SECONDS, [process.pidfd])
    except BaseException as error:
        if not isinstance(error, StuckProcessError):
            abandon(run, process, stopper or Stopper(plan, time.monotonic()), signals, stop)
        raise
    ended = _clear(run, process)
    follower.tick(last=True)
    return Ended(
        ended[0],
        stop_requested=asked,
        killed_by_us=stopper is not None and stopper.sent is signal.SIGKILL,
        leftovers=ended[1],
        hang=hang,
    )


def _stopping(name: str) -> str:
    again = "; a second Ctrl-C kills it at once, without saving" if name == "SIGINT" else ""
    return f"asking the trainer to save and stop{again}"


def abandon(run: Run, process: RunningTrainer, stopper: Stopper, signals: SignalQueue, stop: StopRequest) -> None:
    """Stop a trainer that nobody can follow any more the gentle way, and clear it away."""

    def hurry() -> bool:
        stop.poll()
        return stop.hurry

    stop_trainer(process, stopper, signals, hurry)
    _clear(run, process)


def _clear(run: Run, process: RunningTrainer) -> tuple[ExitStatus, int]:
    """End and reap everything of an ended trainer; its group first, while its pid is still its own."""
    process.kill_group()
    status = process.reap()
    killed = end_leftovers(run.paths.attempt(run.state.attempt).spec)
    reap_group(process.pid)
    run.state.trainer_pid = 0
    return status, len(killed)


def collect_evidence(
    paths: AttemptPaths,
    ended: Ended,
    resumed_step: int,
    final_verified: Callable[[int], bool],
    snapshots: tuple[Snapshot, ...],
) -> Evidence:
    """Everything that the ended attempt left. ``final_verified(planned_steps)`` looks at the checkpoint."""
    report = read_exit_report(paths.exit_report)
    planned = report.planned.get("steps") if report else None
    return Evidence(
        report=report,
        exit_code=ended.status.code,
        signal=ended.status.signal,
        stderr_tail=log_tail(paths.stderr),
        heartbeat=read_heartbeat(paths.heartbeat),
        stop_requested=ended.stop_requested,
        killed_by_us=ended.killed_by_us,
        hang=ended.hang,
        resumed_step=resumed_step,
        final_verified=planned is not None and final_verified(planned),
        kernel_log=kernel_lines(snapshots),
        oom_kills=oom_kills(snapshots),
        snapshots=snapshots,
    )
