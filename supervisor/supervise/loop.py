"""Attempts one after the other until the run is completed, stopped or given up."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import msgspec

from supervisor.checkpoints import (
    CheckpointInfo,
    best_checkpoint,
    ever_saved,
    inspect_checkpoint,
    inspect_lineage,
    link_checkpoint,
    linked_checkpoint,
    planned_checkpoint,
)
from supervisor.diagnosis.diagnose import Diagnosis, Evidence, diagnose, fingerprint
from supervisor.diagnosis.kinds import FailureKind
from supervisor.jobs import Relief
from supervisor.notify import notify
from supervisor.process.leftovers import subreaper
from supervisor.process.signals import SignalQueue
from supervisor.process.spawn import ExitStatus
from supervisor.process.stop import StopPlan, StuckProcessError
from supervisor.protocol.atomic import remove_staging, write_atomic
from supervisor.protocol.paths import AttemptPaths
from supervisor.redact import shown_value
from supervisor.relief.effective import taken
from supervisor.relief.ledger import forgiven, place
from supervisor.relief.policy import Decision, PolicyInput, Relaunch, StepBack, Stop, WaitForGpu, decide
from supervisor.relief.retention import plan_trim
from supervisor.sensors.disk import FULL_ERRORS, disk_space, human_bytes
from supervisor.state import Failure, Outcome
from supervisor.supervise.attempt import (
    TICK_SECONDS,
    Ended,
    StopRequest,
    collect_evidence,
    launch,
    prepare_attempt,
    watch,
)
from supervisor.supervise.follow import Follower, apply_retention, needed_bytes, quarantine, update_best
from supervisor.supervise.foreign import (
    foreign_kind,
    how_it_goes_on,
    inspect_checkpoints,
    note_newest_checkpoint,
    quarantine_folder,
    shown_place,
    watched,
)
from supervisor.supervise.gpu_wait import GpuWait
from supervisor.supervise.opening import Run, RunRefused, RunRequest, open_run, unusable
from supervisor.supervise.sensing import Sensing
from supervisor.supervise.snapshots import drop_snapshots, end_snapshots, rescue, with_snapshot
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
            _check_completed(run)
            return Outcome.COMPLETED
        past = read_past(run)
        environment = {**os.environ, **run.config.own.launch.env}
        with (
            closing(Sensing(run.paths, run.journal, environment)) as sensing,
            closing(Spare(run, sensing, signals)) as spare,
        ):
            return _Loop(run, signals, spare.beside(on_tick), sensing, past, spare).until_over()


def _check_completed(run: Run) -> None:
    """A completed run is one whose last checkpoint still verifies; a lost ``final`` link is made again."""
    state, paths = run.state, run.paths
    if foreign_kind(run) is not None:
        return  # what it left behind is its own business
    last = paths.checkpoint(state.planned_steps, state.lineage)
    if not last.is_dir():
        problem = "is gone"
    elif faults := inspect_checkpoint(last).faults:
        problem = f"does not verify: {'; '.join(map(str, faults))}"
    elif paths.final.exists() and not paths.final.is_symlink():
        raise RunRefused(f"{paths.final} should be a link to {last}, but something else has that name. Move it away.")
    else:
        link_checkpoint(paths.final, last)
        # Said anew, because the folder may have been moved since.
        state.explanation = f"All planned steps, tokens and rows are done. The adapter is in {paths.final}."
        run.journal.save()
        return
    raise RunRefused(
        f"{paths.root} was completed, but its last checkpoint {last} {problem}. Restore it from a backup, or train "
        "again in a new --run-dir."
    )


@dataclass(frozen=True)
class _Prepared:
    """What the next attempt starts from. ``good``: all verified checkpoints of the lineage."""

    resume: CheckpointInfo | None
    good: tuple[CheckpointInfo, ...]


class _Loop:
    def __init__(
        self, run: Run, signals: SignalQueue, on_tick: Callable[[], None], sensing: Sensing, past: Past, spare: Spare
    ) -> None:
        self.run = run
        self.past = past
        self.signals = signals
        self.wall = TimeWall(run, self._tell)
        self.stop = StopRequest(signals, self.wall)
        self.on_tick = on_tick
        self.sensing = sensing
        self.gpu_wait = GpuWait(run, sensing, signals, self.stop, on_tick)
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
        if left is None or left.process is None:
            end_stray_trainer(run, self.signals, StopPlan(run.config.own.limits.stop_grace_seconds))
        if left is None:
            return None
        self.resumed_step = left.resumed_step
        asked = "stop_requested" in self.past.said
        follower = Follower(run, known_checkpoints(run, self.past), self.sensing, self.past.offset)
        self.wall.add_unobserved(alive=left.process is not None)
        if left.process is not None:
            message = f"process {left.process.pid}, the trainer of attempt {state.attempt}, lives; watching on"
            run.journal.event("adopted", message, pid=left.process.pid)
            ended = watch(run, watched(run, left.process), follower, self.signals, self.stop, self.on_tick)
            return self._conclude(left, ended, follower, asked=asked)
        run.journal.event("ended_unseen", f"the trainer of attempt {state.attempt} ended while no supervisor lived")
        follower.tick(last=True)
        # The configuration was changed and the trainer ended for it: no failure either.
        asked = asked or not run.adoptable
        unseen = Ended(ExitStatus(None, None), stop_requested=False, killed_by_us=False, leftovers=0)
        return self._conclude(left, unseen, follower, asked=asked)

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
        self._record(found, evidence, str(ended.status), ended.leftovers)
        over = asked and found.kind is FailureKind.INTERRUPTED and not ended.stop_requested
        decision = None if over else self._decide(found, follower.good, stop_requested=ended.stop_requested)
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
        evidence = replace(evidence, bare=foreign_kind(self.run) is not None)
        if evidence.report is not None:
            self.run.state.planned_steps = evidence.report.planned.get("steps", self.run.state.planned_steps)
        return evidence

    def _attempt(self) -> Decision:
        """Observe and diagnose one attempt, from the choice of its checkpoint to the decision after it."""
        run, state = self.run, self.run.state
        prepared = self._prepare()
        if isinstance(prepared, Stop):
            return prepared
        if shortage := self._shortage(prepared.good):
            return self._decide(shortage, prepared.good, foreseen=True)
        if self.stop.poll():
            return Stop(Outcome.STOPPED, "Stopped on request before the next attempt.")
        state.attempt += 1
        paths = prepare_attempt(run, prepared.resume)
        self.resumed_step = prepared.resume.step if prepared.resume else None
        state.step = prepared.resume.step if prepared.resume else 0
        manifest = prepared.resume.manifest if prepared.resume else None
        state.tokens_seen = manifest.tokens_seen if manifest else 0
        where = f"from the checkpoint of step {state.step}" if prepared.resume else "from step 0"
        follower = Follower(run, prepared.good, self.sensing)
        run.journal.event(
            "attempt_started",
            f"attempt {state.attempt} starts {where} (launch {self.launches} of at most {self._launches_allowed()})",
            step=state.step,
        )
        try:
            process = launch(run, paths, self.spare)
        except (FileNotFoundError, PermissionError) as error:
            return Stop(
                Outcome.GAVE_UP,
                f"The trainer cannot be started: {error.strerror} ({error.filename}). Correct launch.python or the "
                "command and run again.",
            )
        ended = watch(run, process, follower, self.signals, self.stop, self.on_tick)
        rescue(run, follower)
        evidence = self._evidence(paths, ended)
        found = diagnose(evidence)
        self._record(found, evidence, str(ended.status), ended.leftovers)
        return self._decide(found, follower.good, stop_requested=ended.stop_requested)

    def _prepare(self) -> _Prepared | Stop:
        """Clean up, verify every checkpoint, quarantine the bad ones, choose the newest good one."""
        run, state = self.run, self.run.state
        folder = run.paths.checkpoints(state.lineage)
        for parent in (run.paths.root, folder, run.paths.attempts):
            if removed := remove_staging(parent):
                run.journal.event("staging_removed", f"half-written leftovers removed: {', '.join(removed)}")
        existed = ever_saved(run.paths, state.lineage) or state.last_checkpoint is not None
        infos = inspect_checkpoints(run)
        for info in infos:
            if not info.good:
                quarantine(run, info.path, info.step, info.faults)
        good = tuple(info for info in infos if info.good)
        good = with_snapshot(run, good)
        update_best(run, good)
        if best_checkpoint(good) is None:
            state.best_checkpoint = None
            run.paths.best.unlink(missing_ok=True)
        if good:
            state.last_checkpoint = shown_place(run, good[-1].path)
            return _Prepared(good[-1], good)
        if existed:
            folder = infos[-1].path.parent if infos else folder
            return Stop(
                Outcome.GAVE_UP,
                f"No trustworthy checkpoint is left in {folder}, although there were some: the bad ones are in "
                f"{quarantine_folder(run, folder / 'any')}, the reason for each stands in {run.paths.events.name}. A "
                "run never starts from zero again by itself. Restore a good checkpoint from a backup into that folder, "
                "or start again on purpose with a new --run-dir.",
            )
        state.last_checkpoint = None
        return _Prepared(None, ())

    def _shortage(self, good: Sequence[CheckpointInfo]) -> Diagnosis | None:
        """A full disk foreseen: there is no room to save beside what is there."""
        space = disk_space(self.run.paths.root)
        needed = needed_bytes(good)
        if space.free_bytes >= needed and space.free_inodes != 0:
            return None
        cause = "There is no room for the next checkpoint."
        return Diagnosis(
            kind=FailureKind.DISK_FULL,
            confidence=1.0,
            step=self.run.state.step,
            where="before launch",
            evidence=(),
            retryable=True,
            explanation=cause,
            fingerprint=fingerprint(FailureKind.DISK_FULL, cause),
        )

    def _final_verified(self, planned_steps: int) -> bool:
        return planned_checkpoint(self.run.paths, self.run.state.lineage, planned_steps) is not None

    def _record(self, found: Diagnosis, evidence: Evidence, status: str, leftovers: int) -> None:
        """Write the diagnosis down: diagnosis.json, and the events of the attempt's end."""
        run, state = self.run, self.run.state
        try:
            data = msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"
            write_atomic(run.paths.attempt(state.attempt).diagnosis, data)
        except OSError as error:
            if error.errno not in FULL_ERRORS:
                raise
            run.journal.event("warning", f"diagnosis.json could not be written: {error.strerror}")
        if leftovers:
            run.journal.event("leftovers_killed", f"{leftovers} process(es) that the trainer left behind were ended")
        run.journal.event("attempt_ended", f"attempt {state.attempt} ended: {status}", step=found.step, status=status)
        asked = evidence.stop_requested and found.kind is FailureKind.INTERRUPTED
        if found.kind is FailureKind.COMPLETED or asked:
            return
        run.journal.event(
            "failure",
            f"{found.kind.value} {found.where}: {found.explanation}",
            step=found.step,
            failure=found.kind.value,
            confidence=found.confidence,
            evidence=list(found.evidence),
            fingerprint=found.fingerprint,
        )

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
        verified_step = max((info.step for info in good), default=0)
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
            trim=self._trim(good),
            failures=tuple(state.failures),
            relief=tuple(state.relief),
            backoff_seconds=config.own.limits.backoff_seconds,
            backoff_max_seconds=config.own.limits.backoff_max_seconds,
            room=self._room(good) if found.kind is FailureKind.DISK_FULL else "",
            stop_requested=stop_requested or self.stop.poll(),
            verified_step=verified_step,
            planned_steps=state.planned_steps,
            has_room=not foreseen and self._shortage(good) is None,
            foreign=self.gpu_wait.holders(found),
            foreign_wait_seconds=60 * config.own.relief.foreign_wait_minutes,
        )
        decision = decide(given)
        if isinstance(decision, WaitForGpu):
            decision = self.gpu_wait.then_decide(given, decision)
        asked = stop_requested and found.kind is FailureKind.INTERRUPTED
        if found.kind is not FailureKind.COMPLETED and not asked:
            state.failures.append(
                Failure(
                    attempt=state.attempt,
                    kind=found.kind.value,
                    step=found.step,
                    message=found.explanation,
                    fingerprint=found.fingerprint,
                    time=time.time(),
                    lineage=state.lineage,
                    resumed_step=self.resumed_step,
                    verified_step=verified_step,
                    planned_steps=state.planned_steps,
                )
            )
        return decision

    def _trim(self, good: Sequence[CheckpointInfo]) -> Relief | None:
        if foreign_kind(self.run) is not None:
            return None  # its checkpoints are its own
        best, final = best_checkpoint(good), linked_checkpoint(self.run.paths.final)
        keep = self.run.config.own.checkpoint.keep
        return plan_trim(good, keep, best.path if best else None, [final] if final else [])

    def _room(self, good: Sequence[CheckpointInfo]) -> str:
        space = disk_space(self.run.paths.root)
        inodes = "" if space.free_inodes is None else f" and {space.free_inodes} inodes"
        return (
            f"{space.mount} has {human_bytes(space.free_bytes)}{inodes} free; the next checkpoint needs "
            f"{human_bytes(needed_bytes(good))} there, beside the present ones."
        )

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
        if stop.outcome is Outcome.COMPLETED and foreign_kind(run) is None:
            final = run.paths.checkpoint(state.planned_steps, state.lineage)
            link_checkpoint(run.paths.final, final)
            state.last_checkpoint = final.relative_to(run.paths.root).as_posix()
            explanation = f"{explanation} The adapter is in {run.paths.final}."
        elif stop.outcome is Outcome.STOPPED:
            again = f"`mens-sup run --run-dir {shlex.quote(str(run.paths.root))}` {how_it_goes_on(run)}"
            explanation = f"{explanation} {again}."
        end_snapshots(run, completed=stop.outcome is Outcome.COMPLETED)
        state.outcome = stop.outcome
        state.explanation = explanation
        state.settled = state.attempt
        run.journal.event("outcome", explanation, step=state.step, outcome=stop.outcome.value)
        run.journal.use_reserve()
        self._tell("gave_up" if stop.outcome is Outcome.FAILED_CONFIG else stop.outcome.value, explanation)
        self.on_tick()
        return stop.outcome

    def _tell(self, what: str, message: str) -> None:
        run, own = self.run, self.run.config.own
        if what not in own.notify.on or not own.notify.command:
            return
        payload = {
            "event": what,
            "run": run.state.id,
            "run_dir": str(run.paths.root),
            "attempt": run.state.attempt,
            "step": run.state.step,
            "planned_steps": run.state.planned_steps,
            "message": message,
        }
        if problem := notify(own.notify.command, payload):
            run.journal.event("warning", problem)
