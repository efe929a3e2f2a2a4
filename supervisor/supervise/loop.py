"""Attempts one after the other until the run is completed, stopped or given up."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

from supervisor.checkpoints import (
    CheckpointInfo,
    inspect_lineage,
    planned_checkpoint,
)
from supervisor.diagnosis.diagnose import diagnose
from supervisor.diagnosis.kinds import FailureKind
from supervisor.diagnosis.values import Diagnosis, Evidence, fingerprint
from supervisor.jobs import Relief, keeps_own_state
from supervisor.notify import Teller
from supervisor.process.adopted import RunningTrainer
from supervisor.process.leftovers import end_leftovers, subreaper
from supervisor.process.signals import SignalQueue
from supervisor.process.spawn import ExitStatus
from supervisor.process.stop import Stopper, StopPlan, StuckProcessError
from supervisor.protocol.lock import LockHeldError
from supervisor.protocol.paths import AttemptPaths
from supervisor.redact import shown_value
from supervisor.relief.effective import taken
from supervisor.relief.ledger import forgiven, place
from supervisor.relief.policy import Decision, PolicyInput, Relaunch, StepBack, Stop, WaitForGpu, decide
from supervisor.sensors.disk import FULL_ERRORS
from supervisor.state import Failure, Outcome
from supervisor.supervise.admission import admit
from supervisor.supervise.attempt import (
    TICK_SECONDS,
    Ended,
    StopRequest,
    abandon,
    collect_evidence,
    launch,
    prepare_attempt,
    watch,
)
from supervisor.supervise.completed import check_completed, link_final
from supervisor.supervise.follow import Follower, apply_retention, quarantine
from supervisor.supervise.foreign import (
    foreign_kind,
    how_it_goes_on,
    inspect_checkpoints,
    note_newest_checkpoint,
    still_locked,
    watched,
)
from supervisor.supervise.gpu_wait import GpuWait
from supervisor.supervise.opening import Run, RunRefused, RunRequest, open_run, unusable
from supervisor.supervise.prepare import possible_trim, prepare, room, shortage
from supervisor.supervise.record import enter_failure, record
from supervisor.supervise.sensing import Sensing
from supervisor.supervise.snapshots import drop_snapshots, end_snapshots, rescue
from supervisor.supervise.spare import Spare
from supervisor.supervise.stray import end_stray_trainer
from supervisor.supervise.taking_up import (
    Past,
    Unfinished,
    find_unfinished,
    kernel_words,
    known_checkpoints,
    not_again,
    read_past,
    went_down,
)
from supervisor.supervise.time_wall import TimeWall


def supervise(request: RunRequest, on_tick: Callable[[], None]) -> Outcome:
    """Run, or go on with, one run until it has an outcome other than running.

    ``on_tick`` is called about twice a second while something is going on. Main thread only (it
    owns the signals meanwhile). Raises ConfigError and RunRefused before any attempt is made.
    """
    with SignalQueue() as signals, subreaper(), open_run(request) as run:
        if run.state.outcome is Outcome.COMPLETED:
            check_completed(run)
            return Outcome.COMPLETED
        past = read_past(run)
        environment = {**os.environ, **run.config.own.launch.env}
        with (
            closing(Sensing(run.paths, run.journal, environment)) as sensing,
            closing(Spare(run, sensing, signals)) as spare,
        ):
            return _Loop(run, signals, spare.beside(on_tick), sensing, past, spare).until_over()


class _Loop:
    def __init__(
        self, run: Run, signals: SignalQueue, on_tick: Callable[[], None], sensing: Sensing, past: Past, spare: Spare
    ) -> None:
        self.run = run
        self.past = past
        self.signals = signals
        self.wall = TimeWall(run, self._tell)
        self.stop = StopRequest(signals, self.wall)
        self.notify = run.config.own.notify
        self.teller = Teller(lambda sentence: run.journal.event("warning", sentence))
        self.pinged_at: float | None = None
        self.shown = on_tick
        self.on_tick = self._tick
        run.journal.hears = self._hear
        self.sensing = sensing
        self.gpu_wait = GpuWait(run, sensing, signals, self.stop, self._tick)
        self.spare = spare
        self.resumed_step: int | None = None

    @property
    def launches(self) -> int:
        """The attempts that count, those of a supervisor that died among them."""
        return self.run.state.attempt - self.run.state.attempts_before

    def _launches_allowed(self) -> int:
        state = self.run.state
        return state.max_attempts + forgiven(state.failures, state.attempts_before + 1, state.max_attempts)

    def until_over(self) -> Outcome:
        run = self.run
        self.wall.announce()
        self._tick()  # an attempt may be over before it is looked at for the first time
        try:
            decision = self._take_up()
            while not isinstance(decision, Stop):
                if decision is not None:
                    self._act(decision)
                    self._pause(decision.wait_seconds)
                decision = self.gpu_wait.for_our_dead() or self._attempt()
            return self._finish(decision)
        except StuckProcessError as error:
            return self._finish(Stop(Outcome.GAVE_UP, str(error)))
        except RunRefused:
            raise
        except OSError as error:
            stopped = Stop(Outcome.GAVE_UP, f"The supervisor itself failed. {unusable(run.paths, error)}")
            self._finish(stopped)
            if error.errno in FULL_ERRORS:
                return Outcome.GAVE_UP
            raise
        except Exception as error:
            self._finish(Stop(Outcome.GAVE_UP, f"The supervisor itself failed: {type(error).__name__}: {error}"))
            raise

    def _take_up(self) -> Decision | None:
        """Go on with the attempt that a supervisor which died left behind; None when the next one is due."""
        run, state = self.run, self.run.state
        run.journal.leave_out(not_again(run, self.past))
        left = find_unfinished(run)
        try:
            # A standby ends with its supervisor, but only once it gets to run: it is of the lowest priority.
            end_leftovers(run.paths.attempt(state.attempt + 1).spec)
        except StuckProcessError as error:
            if left is None or left.process is None:
                raise
            # The trainer that lives needs somebody to watch it first.
            run.journal.event("alarm", f"the standby of the supervisor that died does not end: {error}")
        if left is None or left.process is None:
            end_stray_trainer(run, self.signals, StopPlan(run.config.own.limits.stop_grace_seconds))
        if left is None:
            return None
        self.resumed_step = left.resumed_step
        asked = "stop_requested" in self.past.said
        if left.process is not None:
            follower, ended = self._watch_on(watched(run, left.process))
            return self._conclude(left, ended, follower, asked=asked)
        follower = Follower(run, known_checkpoints(run, self.past), self.sensing, self.past.offset)
        self.wall.add_unobserved(alive=False)
        run.journal.event("ended_unseen", f"the trainer of attempt {state.attempt} ended while no supervisor lived")
        follower.tick(last=True)
        # The configuration was changed and the trainer ended for it: no failure either.
        asked = asked or not run.adoptable
        unseen = Ended(ExitStatus(None, None), stop_requested=False, killed_by_us=False, leftovers=0)
        return self._conclude(left, unseen, follower, asked=asked)

    def _watch_on(self, process: RunningTrainer) -> tuple[Follower, Ended]:
        """Watch an adopted trainer until it has ended; an error of our own must not leave it alone either."""
        run = self.run
        try:
            # A foreign trainer's checkpoints come and go while it lives, and nobody follows them.
            known = known_checkpoints(run, self.past) if foreign_kind(run) is None else []
            follower = Follower(run, known, self.sensing, self.past.offset)
            self.wall.add_unobserved(alive=True)
            message = f"process {process.pid}, the trainer of attempt {run.state.attempt}, lives; watching on"
            run.journal.event("adopted", message, pid=process.pid)
        except BaseException:
            stopper = Stopper(StopPlan(run.config.own.limits.stop_grace_seconds), time.monotonic())
            abandon(run, process, stopper, self.signals, self.stop)
            raise
        return follower, watch(run, process, follower, self.signals, self.stop, self.on_tick)

    def _conclude(self, left: Unfinished, ended: Ended, follower: Follower, *, asked: bool) -> Decision | None:
        """The end of an attempt that was taken up. ``asked``: a supervisor before us had asked its trainer to stop."""
        run = self.run
        rescue(run, follower)
        evidence = self._evidence(left.paths, ended)
        if left.process is None:
            words = kernel_words(run, left.paths)
            evidence = replace(evidence, kernel_log=words, oom_kills=None, snapshots=(), rebooted=went_down(run))
        evidence = replace(evidence, stop_requested=asked or ended.stop_requested)
        found = left.diagnosis or diagnose(evidence)
        record(run, found, evidence, str(ended.status), ended.leftovers)
        over = asked and found.kind is FailureKind.INTERRUPTED and not ended.stop_requested
        good = follower.good if foreign_kind(run) is None else known_checkpoints(run, self.past)
        decision = None if over else self._decide(found, good, stop_requested=ended.stop_requested)
        if run.taken_over and isinstance(decision, Stop) and decision.outcome not in (
            Outcome.COMPLETED, Outcome.STOPPED,
        ):  # fmt: skip
            decision = None  # whoever changed the configuration means to go on
        if decision is None:
            self._settle()
        return decision

    def _evidence(self, paths: AttemptPaths, ended: Ended) -> Evidence:
        snapshots = self.sensing.snapshots
        evidence = collect_evidence(paths, ended, self.resumed_step or 0, self._final_verified, snapshots)
        kind = self.run.kind
        evidence = replace(evidence, bare=foreign_kind(self.run) is not None, own_state=keeps_own_state(kind))
        if evidence.report is not None:
            self.run.state.planned_steps = evidence.report.planned.get("steps", self.run.state.planned_steps)
        return evidence

    def _attempt(self) -> Decision:
        """Observe and diagnose one attempt, from the choice of its checkpoint to the decision after it."""
        run, state = self.run, self.run.state
        prepared = prepare(run)
        if isinstance(prepared, Stop):
            return prepared
        if lacking := shortage(run, prepared.good):
            return self._decide(lacking, prepared.good, foreseen=True)
        if self.stop.poll():
            return Stop(Outcome.STOPPED, "Stopped on request before the next attempt.")
        if self.launches == 0 and (refused := admit(run, self._going_on)) is not None:
            return refused
        if self.stop.poll():
            return Stop(Outcome.STOPPED, "Stopped on request before the first attempt.")
        state.attempt += 1
        paths = prepare_attempt(run, prepared.resume)
        self.resumed_step = prepared.step or None
        state.step = prepared.step
        if not keeps_own_state(run.kind):
            manifest = prepared.resume.manifest if prepared.resume else None
            state.tokens_seen = manifest.tokens_seen if manifest else 0
        where = f"from the checkpoint of step {state.step}" if prepared.resume else f"from step {state.step}"
        follower = Follower(run, prepared.good, self.sensing)
        run.journal.event(
            "attempt_started",
            f"attempt {state.attempt} starts {where} (launch {self.launches} of at most {self._launches_allowed()})",
            step=state.step,
        )
        run.journal.leave_out({})
        try:
            process = launch(run, paths, self.spare)
        except (FileNotFoundError, PermissionError) as error:
            return Stop(
                Outcome.GAVE_UP,
                f"The trainer cannot be started: {error.strerror} ({error.filename}). Correct launch.python or the "
                "command and run again.",
            )
        except LockHeldError as error:
            return Stop(Outcome.GAVE_UP, still_locked(error.path))
        ended = watch(run, process, follower, self.signals, self.stop, self.on_tick)
        rescue(run, follower)
        evidence = self._evidence(paths, ended)
        found = diagnose(evidence)
        record(run, found, evidence, str(ended.status), ended.leftovers)
        return self._decide(found, follower.good, stop_requested=ended.stop_requested)

    def _going_on(self) -> bool:
        """Whether what the supervisor waits for is still wanted; keeps the view alive meanwhile."""
        self.on_tick()
        return not self.stop.poll()

    def _final_verified(self, planned_steps: int) -> bool:
        return planned_checkpoint(self.run.paths, self.run.state.lineage, planned_steps) is not None

    def _decide(
        self,
        found: Diagnosis,
        good: Sequence[CheckpointInfo],
        *,
        stop_requested: bool = False,
        foreseen: bool = False,
    ) -> Decision:
        """Ask the policy and enter the failure into the ledger. ``foreseen``: no attempt was made."""
        run, state = self.run, self.run.state
        config = run.config
        verified_step = state.step if keeps_own_state(run.kind) else max((info.step for info in good), default=0)
        given = PolicyInput(
            diagnosis=found,
            attempt=state.attempt,
            first_attempt=state.attempts_before + 1,
            launches=self.launches,
            max_attempts=state.max_attempts,
            lineage=state.lineage,
            resumed_step=self.resumed_step,
            older_good=any(info.step < (self.resumed_step or 0) for info in good),
            document=config.document,
            facts=run.facts,
            ladder=config.own.relief.order,
            strict_order=config.own.relief.strict_order and not foreseen,
            rungs=run.rungs,
            trim=possible_trim(run, good),
            failures=tuple(state.failures),
            relief=tuple(state.relief),
            backoff_seconds=config.own.limits.backoff_seconds,
            backoff_max_seconds=config.own.limits.backoff_max_seconds,
            room=room(run, good) if found.kind is FailureKind.DISK_FULL else "",
            stop_requested=stop_requested or self.stop.poll(),
            verified_step=verified_step,
            planned_steps=state.planned_steps,
            has_room=not foreseen and shortage(run, good) is None,
            foreign=self.gpu_wait.holders(found),
            foreign_wait_seconds=60 * config.own.relief.foreign_wait_minutes,
        )
        decision = decide(given)
        if isinstance(decision, WaitForGpu):
            decision = self.gpu_wait.then_decide(given, decision)
        asked = stop_requested and found.kind is FailureKind.INTERRUPTED
        if found.kind is not FailureKind.COMPLETED and not asked:
            enter_failure(run, found, self.resumed_step, verified_step)
        return decision

    def _act(self, decision: Relaunch | StepBack) -> None:
        run = self.run
        run.journal.event("relaunch", decision.reason, wait_seconds=decision.wait_seconds)
        if isinstance(decision, StepBack):
            drop_snapshots(run)
            for info in inspect_checkpoints(run):
                # Only the one that was resumed from: a supervisor that died here may have moved it already.
                if info.good and info.step == self.resumed_step:
                    looks = "its digests are right" if info.manifest else "its files look whole"
                    quarantine(run, info.path, info.step, [f"{looks}, but {decision.fault}"])
        elif decision.relief is not None:
            self._apply(decision.relief)
        self._settle()

    def _settle(self) -> None:
        """The attempt's end is entered: from here on a supervisor that dies leaves nothing of it to be done again."""
        self.run.state.settled = self.run.state.attempt
        self.run.journal.leave_out({})
        self.run.journal.save()

    def _apply(self, relief: Relief) -> None:
        """Announce a rung with its price, then apply it."""
        run, state = self.run, self.run.state
        last = state.failures[-1] if state.failures else None
        why, answers = (last.kind, place(last.fingerprint, last.step)) if last else ("", "")
        message = f"{relief.rung}: {relief.price}"
        if relief.new_lineage:
            message += f" (the checkpoints so far stay in {run.paths.checkpoints(state.lineage)})"
        changes = {
            patch.key: [shown_value(patch.key, value) for value in (patch.old, patch.new)] for patch in relief.patches
        }
        run.journal.event("relief", message, rung=relief.rung, lossless=relief.lossless, changes=changes)
        state.relief.append(taken(relief, state.attempt + 1, why, answers))
        if relief.new_lineage:
            state.lineage += 1
            state.step = state.tokens_seen = 0
            state.seconds_per_step = None
            state.last_checkpoint = state.best_checkpoint = None
        self._settle()  # before anything is deleted for it: the decision must not be made a second time without that
        if relief.new_lineage:
            run.paths.best.unlink(missing_ok=True)
        if foreign_kind(run) is None:
            known = {info.path: info for info in inspect_lineage(run.paths.checkpoints(state.lineage)) if info.good}
            apply_retention(run, known)
        if not relief.lossless:
            self._tell("degraded", message)

    def _pause(self, seconds: float) -> None:
        """Back off; a request to stop ends the pause."""
        until = time.monotonic() + seconds
        while not self.stop.poll() and (left := until - time.monotonic()) > 0:
            self.on_tick()
            self.signals.wait(min(left, TICK_SECONDS))

    def _at_the_wall(self) -> Stop:
        """The run's hours are used up: entered like any other failure, so that status and report name it."""
        run, state = self.run, self.run.state
        cause = "The hours that the run may take are used up."
        kind = FailureKind.TIME_LIMIT
        state.failures.append(
            Failure(state.attempt, kind.value, state.step, cause, fingerprint(kind, cause), time.time(), state.lineage)
        )
        run.journal.event("failure", f"{kind.value} at step {state.step}: {cause}", step=state.step, failure=kind.value)
        return Stop(Outcome.GAVE_UP, self.wall.explanation())

    def _finish(self, stop: Stop) -> Outcome:
        run, state = self.run, self.run.state
        note_newest_checkpoint(run)
        if stop.outcome is Outcome.STOPPED and self.stop.by_wall:
            stop = self._at_the_wall()
        self.wall.remember()
        explanation = stop.explanation
        if stop.outcome is Outcome.COMPLETED and foreign_kind(run) is None and not keeps_own_state(run.kind):
            final = run.paths.checkpoint(state.planned_steps, state.lineage)
            state.last_checkpoint = final.relative_to(run.paths.root).as_posix()
            explanation = f"{explanation} {link_final(run, final)}"
        elif stop.outcome is Outcome.STOPPED:
            again = f"`mens-sup run --run-dir {shlex.quote(str(run.paths.root))}` {how_it_goes_on(run)}"
            explanation = f"{explanation} {again}."
        state.outcome = stop.outcome
        state.explanation = explanation
        state.settled = state.attempt
        run.journal.event("outcome", explanation, step=state.step, outcome=stop.outcome.value)
        run.journal.use_reserve()
        end_snapshots(run, completed=stop.outcome is Outcome.COMPLETED)
        self._tell("gave_up" if stop.outcome is Outcome.FAILED_CONFIG else stop.outcome.value, explanation)
        self.teller.finish()
        self.shown()
        return stop.outcome

    def _tick(self) -> None:
        """About twice a second while something is going on."""
        self.teller.look()
        now = time.monotonic()
        pause = 60 * self.notify.ping_minutes
        if self.notify.ping_file and (self.pinged_at is None or now - self.pinged_at >= pause):
            self.pinged_at = now
            self.teller.ping(self.notify)
        self.shown()

    def _hear(self, kind: str, message: str) -> None:
        """Of the events, what people who aren't watching may want to know at once."""
        if kind in ("disk_forecast", "gate"):
            self._tell(kind, message)

    def _tell(self, what: str, message: str) -> None:
        run = self.run
        payload = {
            "event": what,
            "run": run.state.id,
            "run_dir": str(run.paths.root),
            "attempt": run.state.attempt,
            "step": run.state.step,
            "planned_steps": run.state.planned_steps,
            "message": message,
        }
        self.teller.tell(self.notify, what, payload)
