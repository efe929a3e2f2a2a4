"""A trainer of an earlier supervisor that cannot be adopted: it is ended gently before another one may start.

Of another attempt, of another configuration, or leftovers whose trainer is dead. One that is asked to stop saves a
checkpoint at its next step, so nothing but a restart is lost.
"""

from __future__ import annotations

from supervisor.process.leftovers import end_leftovers, holds_open
from supervisor.process.signals import SignalQueue
from supervisor.process.stop import StopPlan, stop_stranger
from supervisor.protocol.lock import lock_holder
from supervisor.supervise.opening import Run, RunRefused


def end_stray_trainer(run: Run, signals: SignalQueue, plan: StopPlan) -> None:
    """Make sure that no trainer of this run lives. Call it with the supervisor lock held.

    Raises RunRefused when there is one that cannot be ended, StuckProcessError when it survives SIGKILL.
    """
    pid = lock_holder(run.paths.trainer_lock)
    if pid is not None:
        _end(run, pid, signals, plan)
    if run.state.attempt and (killed := end_leftovers(run.paths.attempt(run.state.attempt).spec)):
        run.journal.event("leftovers_killed", f"{len(killed)} process(es) of an earlier attempt were ended")
    if lock_holder(run.paths.trainer_lock) is not None:
        raise RunRefused(
            f"{run.paths.trainer_lock} is still held by a process that is no trainer of this run's last attempt. Find "
            "it with `fuser -v` on that file, end it, then run again."
        )
    run.state.trainer_pid = 0


def _end(run: Run, pid: int, signals: SignalQueue, plan: StopPlan) -> None:
    try:
        if not pid or not holds_open(pid, run.paths.trainer_lock):
            return
        _announce(run, pid, plan)
        took = stop_stranger(pid, plan, signals)
    except PermissionError:
        raise RunRefused(
            f"Process {pid}, a trainer of {run.paths.root}, belongs to another user and cannot be ended from here. Let "
            "its owner stop it, then run again."
        ) from None
    how = f"after {took.name}" if took else "by itself"
    run.journal.event("stray_trainer_ended", f"process {pid} ended {how}")


def _announce(run: Run, pid: int, plan: StopPlan) -> None:
    run.journal.event(
        "stray_trainer",
        f"process {pid}, a trainer of this run whose supervisor is gone, is still alive: asking it to save and stop "
        f"(up to {plan.grace_seconds:.0f} s), then the run goes on from its checkpoint",
        pid=pid,
    )
