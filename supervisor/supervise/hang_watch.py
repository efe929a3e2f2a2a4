"""Looks out for a trainer that hangs, and notes where it stands before it is ended."""

from __future__ import annotations

import time

from supervisor.diagnosis.values import Hang
from supervisor.process.adopted import RunningTrainer
from supervisor.process.identity import ProcStat, read_stat
from supervisor.process.leftovers import processes_of
from supervisor.process.ranks import other_ranks
from supervisor.process.stacks import busy_seconds, capture, kernel_view, main_frames, moved_bytes, state_words
from supervisor.process.stop import StopPlan
from supervisor.protocol.heartbeat import Heartbeat, read_heartbeat
from supervisor.sensors.disk import FULL_ERRORS
from supervisor.supervise.foreign import foreign_kind
from supervisor.supervise.hang import MOVING, HangJudge, Judgement, Look
from supervisor.supervise.opening import Run

GRACE_SECONDS = 10.0
"""For a trainer that hangs to save all the same: it may only have been stopped from outside."""
BUSY_CORES = 0.5
STOPPED_SECONDS = 3.0
"""A trainer that is stopped for longer is spoken of."""
_STOPPED = frozenset("Tt")


class HangWatch:
    """One attempt's: :meth:`tick` it beside the trainer."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._paths = run.paths.attempt(run.state.attempt)
        limits = run.config.own.limits
        self._judge = HangJudge(limits.hang_seconds, run.state.beat_gaps, foreign_kind(run) is not None)
        self._silent_since: tuple[float, float | None] | None = None
        self._told_stopped = False
        self._beating = (0, False)
        self.plan = StopPlan(min(limits.stop_grace_seconds, GRACE_SECONDS))

    def tick(self, process: RunningTrainer) -> Hang | None:
        """Look once; a Hang when the trainer is to be ended for it, its stacks noted already."""
        beat = read_heartbeat(self._paths.heartbeat)
        pid = self._worker(process, beat)
        moved = moved_bytes(pid) if beat is None or beat.phase in MOVING else None
        now = time.monotonic()
        found = self._judge.look(Look(now, time.clock_gettime(time.CLOCK_BOOTTIME), beat, moved))
        if found.stood_still:
            self._run.journal.event(
                "stood_still",
                f"for {_duration(found.stood_still)} the supervisor did not run (the machine slept, or it was stopped);"
                " the trainer's silence in that time is not held against it",
                seconds=round(found.stood_still, 1),
            )
        if found.silent == 0.0:
            self._silent_since, self._told_stopped = None, False
            return None
        if self._silent_since is None:
            self._silent_since = (now, busy_seconds(pid))
        stat = read_stat(pid)
        self._announce_stop(pid, stat, found)
        return self._hang(process, pid, stat, found, beat) if found.hung else None

    def _worker(self, process: RunningTrainer, beat: Heartbeat | None) -> int:
        """The process that beats: the trainer itself, or one of its attempt that it launched."""
        if beat is None or beat.pid == process.pid:
            return process.pid
        if beat.pid != self._beating[0]:
            self._beating = (beat.pid, beat.pid in processes_of(self._paths.spec))
        return beat.pid if self._beating[1] else process.pid

    def _announce_stop(self, pid: int, stat: ProcStat | None, found: Judgement) -> None:
        stopped = stat is not None and stat.state in _STOPPED and found.silent > min(STOPPED_SECONDS, found.limit / 2)
        if stopped and not self._told_stopped:
            self._run.journal.event(
                "trainer_stopped",
                f"process {pid}, the trainer, was stopped by a signal; `kill -CONT {pid}` lets it go on. If nobody "
                f"does, it is ended and restarted after {_duration(found.limit)} of silence",
                pid=pid,
            )
        self._told_stopped = stopped

    def _hang(
        self, process: RunningTrainer, pid: int, stat: ProcStat | None, found: Judgement, beat: Heartbeat | None
    ) -> Hang:
        how, cores = self._how(pid, stat)
        attempt = processes_of(self._paths.spec)
        ranks = other_ranks(process.pid, pid, attempt)
        how += "".join(_held_up(rank, other) for other, rank in ranks.items())
        phase = found.phase.name.lower()
        where = f"while {phase.replace('_', ' ')}" if beat is not None else "before its first heartbeat"
        silence = f"silent for {found.silent:.0f} s where {found.limit:.0f} s are allowed"
        cause = f"It stopped making progress {where}: {silence}; {how}."
        kernel = [line for line in kernel_view(pid).splitlines() if line.startswith(f"thread {pid} ")]
        try:
            others = [other for other in attempt if other != pid]
            frames = main_frames(capture([pid, *others], self._paths.stacks, ranks))
        except OSError as error:
            if error.errno not in FULL_ERRORS:
                raise
            frames = ()
        shown = tuple(f"in {frame}" for frame in frames) or ("its Python stacks could not be read",)
        self._run.journal.event(
            "hang",
            f"{cause} Where every thread stood is in {self._paths.stacks.relative_to(self._run.paths.root)}; "
            "it is ended now",
            step=beat.step if beat is not None else None,
            phase=phase,
            silent_seconds=round(found.silent, 1),
            limit_seconds=round(found.limit, 1),
            cores=cores,
            state=stat.state if stat is not None else None,
        )
        return Hang(cause, beat.step if beat else 0, phase if beat else "", (*shown, *kernel))

    def _how(self, pid: int, stat: ProcStat | None) -> tuple[str, float | None]:
        """What it did meanwhile, in words, and the cores that it kept busy; None when that is not known."""
        since, before = self._silent_since or (time.monotonic(), None)
        now = busy_seconds(pid)
        cores = None
        if now is not None and before is not None and time.monotonic() > since:
            cores = round((now - before) / (time.monotonic() - since), 2)
        state = stat.state if stat is not None else ""
        if state in _STOPPED or state == "D":
            return f"the process is {state_words(state)}", cores
        if cores is None:
            return "whether it was busy is not known", None
        if cores >= BUSY_CORES:
            return "it was busy on the CPU all the time", cores
        return "it slept", cores


def _held_up(rank: int, pid: int) -> str:
    """What keeps another rank, for which the one that beats may wait; empty when nothing of that kind does."""
    stat = read_stat(pid)
    held = stat is not None and (stat.state in _STOPPED or stat.state == "D")
    return f", and rank {rank} (process {pid}) is {state_words(stat.state)}" if held and stat is not None else ""


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
