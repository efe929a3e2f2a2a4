"""One tiny real run, the faults that strike it, and what came of it."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import observe
import strike
from faults import BY_NAME, Fault
from memory_cgroup import memory_cgroup
from real_runs import QUICK, log_of, run, same_adapter, start

from supervisor.protocol.heartbeat import Phase, read_heartbeat
from supervisor.protocol.paths import RunPaths

STEPS = 16
SAVE_STEPS = 4
MEMORY_BYTES = 2 << 30
"""Of the cgroup that a run lives in whose trainer eats memory."""
PATIENCE_SECONDS = 300.0
"""For one thing to happen on a busy machine; a run that goes on longer has failed."""
CHANGES: Mapping[str, Any] = {
    **QUICK,
    "train.max_steps": STEPS,
    "checkpoint.save_steps": SAVE_STEPS,
    "limits.stop_grace_seconds": 10.0,
    "limits.hang_seconds": 15.0,
    "kind": "faulty",
}


@dataclass(frozen=True)
class Strike:
    """A fault and the optimiser step in whose course it strikes; ``while_loading`` strikes before the first step."""

    fault: Fault
    step: int
    delay: float
    while_loading: bool = False


@dataclass
class Struck:
    """A fault as it struck: in which attempt, at which step that the trainer had told of, and when."""

    name: str
    attempt: int
    step: int
    time: float


@dataclass
class Result:
    """``problems``: every promise that was not kept, in words; empty for a run that went as it must."""

    number: int
    plan: tuple[Strike, ...]
    exit_code: int | None
    struck: list[Struck] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    identical: bool | None = None
    lost: list[tuple[str, int]] = field(default_factory=list)
    recovery: list[float] = field(default_factory=list)
    diagnosed: list[tuple[str, str, bool]] = field(default_factory=list)
    """(fault, kind, right): the kind that the attempt's end was given."""
    wall_seconds: float = 0.0


def make_plan(choose: random.Random, pool: Sequence[Fault]) -> tuple[Strike, ...]:
    """One to three different faults at rising steps; one that cannot be survived only as the last."""
    number = choose.choice((1, 2, 2, 3))
    survivable = [fault for fault in pool if fault.completes]
    chosen = [choose.choice(survivable) for _ in range(number - 1)] + [choose.choice(pool)]
    unique = {fault.name: fault for fault in chosen}
    steps = sorted(choose.sample(range(2, STEPS), len(unique)))
    strikes = [_strike(fault, step, choose) for fault, step in zip(unique.values(), steps, strict=True)]
    save = BY_NAME["save_enospc"]
    if save in unique.values():
        # Before the third save there would be nothing to trim; no two may strike in one step.
        due = 3 * SAVE_STEPS
        free = (step for step in range(due + 1, STEPS) if step not in steps)
        strikes = [
            replace(entry, step=due if entry.fault is save else next(free) if entry.step == due else entry.step)
            for entry in strikes
        ]
    # They are waited for one after the other.
    return tuple(sorted(strikes, key=lambda entry: entry.step))


def _strike(fault: Fault, step: int, choose: random.Random) -> Strike:
    loading = not fault.inside and fault.name in ("kill", "kill_both", "kill_supervisor") and choose.random() < 0.25
    delay = choose.uniform(0.0, 3.0 if loading else 0.06)
    return Strike(fault, step, delay, loading)


def reference(place: Path, environment: Mapping[str, str]) -> Path:
    """The undisturbed run that all others are compared with."""
    os.environ.update(environment)
    run_dir = place / "reference"
    if run(run_dir, {**CHANGES, "launch.env": {"MENS_FAULTS": "[]"}}) != 0:
        raise SystemExit(f"the undisturbed run failed:\n{log_of(run_dir).read_text()}")
    return run_dir


def carry_out(number: int, plan: Sequence[Strike], place: Path, undisturbed: Path) -> Result:
    """One run under ``plan``, from its start to a verdict on every promise."""
    return _Disturbed(number, tuple(plan), place, undisturbed).result()


class _Disturbed:
    def __init__(self, number: int, plan: tuple[Strike, ...], place: Path, undisturbed: Path) -> None:
        self.plan = plan
        self.run_dir = place / f"run-{number:04d}"
        self.paths = RunPaths(self.run_dir)
        self.undisturbed = undisturbed
        self.marks = place / f"marks-{number:04d}"
        self.marks.mkdir()
        inside = [self._listed(entry) for entry in plan if entry.fault.inside]
        self.changes = {**CHANGES, "launch.env": {"MENS_FAULTS": json.dumps(inside)}}
        self.found = Result(number, plan, None)
        self.opened = ExitStack()
        self.cgroup: Path | None = None
        if any(entry.fault.name == "eat_memory" for entry in plan):
            self.cgroup = self.opened.enter_context(memory_cgroup(f"mens-chaos-{os.getpid()}-{number}", MEMORY_BYTES))
        self.process = self._start()

    def _listed(self, entry: Strike) -> dict[str, Any]:
        if entry.fault.name == "oom":
            return {"do": "oom", "at": entry.step, "limit": 100}
        return {"do": entry.fault.name, "at": entry.step, "once": str(self.marks / entry.fault.name)}

    def _start(self) -> subprocess.Popen[str]:
        return start(self.run_dir, self.changes, "--max-attempts", "12", cgroup=self.cgroup)

    def result(self) -> Result:
        began = time.monotonic()
        try:
            for entry in self.plan:
                if not self._bring_about(entry):
                    break
            self.found.exit_code = self.process.wait(PATIENCE_SECONDS)
        except (subprocess.TimeoutExpired, TimeoutError) as error:
            self.found.problems.append(f"nothing happened for {PATIENCE_SECONDS:.0f} s: {error}")
        finally:
            if self.process.poll() is None:
                strike.end_everything(self.run_dir, self.process)
        self.opened.close()
        self.found.wall_seconds = time.monotonic() - began
        self._judge()
        if not self.found.problems:
            shutil.rmtree(self.run_dir)
            log_of(self.run_dir).unlink()
        return self.found

    # --- striking -----------------------------------------------------------------------------

    def _bring_about(self, entry: Strike) -> bool:
        """Let one fault strike and wait until the run has met it; False when the run ended before."""
        attempt = self._wait_for_moment(entry)
        if attempt is None:
            return False
        time.sleep(0.0 if entry.fault.inside else entry.delay)
        if self.process.poll() is not None:
            return False
        beat = read_heartbeat(self.paths.attempt(attempt).heartbeat)
        step = beat.step if beat else 0
        now = time.time()
        fault = entry.fault
        if not fault.inside and not strike.STRIKES[fault.name](self.run_dir, self.process, attempt):
            if fault.name not in strike.KILLS_BOTH:
                return self.process.poll() is None
            fault = BY_NAME["kill_supervisor"]  # the trainer had just ended by itself
        self.found.struck.append(Struck(fault.name, attempt, step, now))
        if self.process.poll() is not None and fault.name in strike.NEEDS_A_NEW_SUPERVISOR:
            self.process = self._start()
            self._wait(lambda: observe.has_begun(self.paths, now), "the next supervisor to begin")
        elif fault.expected:
            self._wait(lambda: observe.has_ended(self.paths, attempt), f"{fault.name} to be met")
        return self.process.poll() is None

    def _wait_for_moment(self, entry: Strike) -> int | None:
        """The attempt that lives when the moment has come."""
        mark = self.marks / entry.fault.name

        def come() -> int | None:
            attempt = observe.newest_attempt(self.paths)
            if entry.fault.name == "oom":
                return observe.failed_as(self.paths, "cuda_oom")
            if entry.fault.inside:
                # Looked at late, its attempt may have been followed by another.
                return observe.attempt_at(self.paths, mark.stat().st_mtime) if mark.exists() else None
            beat = read_heartbeat(self.paths.attempt(attempt).heartbeat) if attempt else None
            if beat is None:
                return None
            if entry.while_loading:
                return attempt if beat.phase in (Phase.STARTING, Phase.LOADING) else None
            return attempt if beat.step >= entry.step and beat.phase > Phase.LOADING else None

        return self._wait(come, f"{entry.fault.name} at step {entry.step}")

    def _wait(self, come: Any, what: str) -> Any:
        until = time.monotonic() + PATIENCE_SECONDS
        while self.process.poll() is None:
            if found := come():
                return found
            if time.monotonic() > until:
                raise TimeoutError(f"waiting for {what}")
            time.sleep(0.005)
        return come()

    # --- judging ------------------------------------------------------------------------------

    def _judge(self) -> None:
        found, paths = self.found, self.paths
        faults = [BY_NAME[name] for name in dict.fromkeys(struck.name for struck in found.struck)]
        for entry in self.plan:
            # A save that is due may fall to another attempt; anything else inside the trainer must have struck.
            missed = entry.fault not in faults and entry.fault.inside and entry.fault.name != "save_enospc"
            if missed and found.exit_code == 0 and not (self.marks / entry.fault.name).exists():
                found.problems.append(f"{entry.fault.name} at step {entry.step} never struck")
        can_complete = all(fault.completes for fault in faults)
        if found.exit_code != (0 if can_complete else 1):
            found.problems.append(f"exit code {found.exit_code} where {0 if can_complete else 1} was due")
        elif can_complete:
            found.identical = same_adapter(self.run_dir, self.undisturbed)
            if not found.identical and all(fault.identical for fault in faults):
                found.problems.append("the adapter differs from the undisturbed run's")
        found.problems += observe.broken_promises(paths)
        found.problems += [f"orphan: {process}" for process in strike.living(self.run_dir)]
        if found.exit_code == 0:
            found.problems += [f"left in shared memory: {place}" for place in strike.shared_memory_of(self.run_dir)]
        for struck in found.struck:
            self._judge_one(struck, next(fault for fault in faults if fault.name == struck.name))

    def _judge_one(self, struck: Struck, fault: Fault) -> None:
        found, paths = self.found, self.paths
        if fault.expected:
            verdict = observe.diagnosis(paths, struck.attempt)
            kind = verdict.kind.value if verdict else "none"
            expected = fault.expected.union(*(other.expected for other in self._met_inside(struck.attempt)))
            right = verdict is not None and bool(expected & {verdict.kind, *verdict.also})
            found.diagnosed.append((fault.name, kind, verdict is not None and verdict.kind in expected))
            if not right:
                found.problems.append(f"{fault.name} in attempt {struck.attempt} was diagnosed as {kind}")
        lost = observe.steps_lost(paths, struck.attempt)
        if lost is None or not (fault.expected or fault.name == "stop_and_go_on"):
            return  # an attempt that went on is no loss; what ended it later is another strike
        found.lost.append((fault.name, lost))
        limit = SAVE_STEPS * 2 if fault.lost_steps is None else fault.lost_steps
        if lost > limit:
            found.problems.append(f"{fault.name} in attempt {struck.attempt} cost {lost} optimiser steps")
        if (seconds := observe.recovery_seconds(paths, struck.attempt, struck.time)) is not None:
            found.recovery.append(seconds)

    def _met_inside(self, attempt: int) -> list[Fault]:
        """Those inside the trainer that struck this attempt as well: the save for which a signal asks may find no
        room, and that is then what the attempt ended of."""
        marks = ((entry.fault, self.marks / entry.fault.name) for entry in self.plan if entry.fault.inside)
        return [
            fault
            for fault, mark in marks
            if mark.exists() and observe.attempt_at(self.paths, mark.stat().st_mtime) == attempt
        ]
