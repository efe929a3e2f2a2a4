"""A trainer of an earlier supervisor that cannot be adopted: it is ended gently before another one may start.

Of another attempt, of another configuration, or leftovers whose trainer is dead. One that is asked to stop saves a
checkpoint at its next step, so nothing but a restart is lost.
"""

from __future__ import annotations

import signal
import time

from supervisor.process.adopted import AdoptedProcess, RunningTrainer
from supervisor.process.identity import identity_of
from supervisor.process.leftovers import end_leftovers, holds_open, processes_of
from supervisor.process.signals import SignalQueue
from supervisor.process.stop import Stopper, StopPlan, stop_trainer
from supervisor.protocol.lock import lock_holder
from supervisor.supervise.foreign import still_locked, watched
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
        raise RunRefused(still_locked(run.paths.trainer_lock))
    run.state.trainer_pid = 0


def _end(run: Run, pid: int, signals: SignalQueue, plan: StopPlan) -> None:
    stopper = Stopper(plan, time.monotonic())
    try:
        process = _opened(run, pid)
        if process is None:
            return
        _announce(run, pid, plan)
        # SIGINT stays pending for the caller.
        stop_trainer(process, stopper, signals, lambda: signal.SIGINT in signals.pending())
    except PermissionError:
        raise RunRefused(
            f"Process {pid}, a trainer of {run.paths.root}, belongs to another user and cannot be ended from here. Let "
            "its owner stop it, then run again."
        ) from None
    process.kill_group()
    process.reap()
    how = f"after {stopper.sent.name}" if stopper.sent else "by itself"
    run.journal.event("stray_trainer_ended", f"process {pid} ended {how}")


def _opened(run: Run, pid: int) -> RunningTrainer | None:
    """The holder of the lock, None when it is gone."""
    identity = identity_of(pid) if pid else None
    try:
        process = AdoptedProcess(identity) if identity is not None else None
    except ProcessLookupError:
        return None
    if process is None or not holds_open(pid, run.paths.trainer_lock):
        return None
    # Of another attempt: its helpers are not known, so it is asked itself.
    return watched(run, process) if pid in processes_of(run.paths.attempt(run.state.attempt).spec) else process


def _announce(run: Run, pid: int, plan: StopPlan) -> None:
    run.journal.event(
        "stray_trainer",
        f"process {pid}, a trainer of this run whose supervisor is gone, is still alive: asking it to save and stop "
        f"(up to {plan.grace_seconds:.0f} s), then the run goes on from its checkpoint",
        pid=pid,
    )
