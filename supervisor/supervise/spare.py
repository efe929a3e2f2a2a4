"""A spare trainer beside the running one: made ready while it trains, it takes the next attempt over."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from supervisor.diagnosis.evidence import log_tail
from supervisor.diagnosis.kinds import FailureKind
from supervisor.jobs import has_standby
from supervisor.process.signals import SignalQueue
from supervisor.process.spawn import TrainerProcess, spawn_trainer
from supervisor.process.standby import Standby, StandbyLostError
from supervisor.protocol.attempt import SPEC_VARIABLE
from supervisor.protocol.heartbeat import Phase, read_heartbeat
from supervisor.protocol.paths import AttemptPaths
from supervisor.redact import hide_secrets
from supervisor.sensors.disk import FULL_ERRORS, human_bytes
from supervisor.sensors.snapshot import CgroupReading, Snapshot, Unknown
from supervisor.supervise.opening import Run
from supervisor.supervise.sensing import Sensing

START_AFTER_SECONDS = 3.0
"""After the trainer began to train: its first steps shall have the machine to themselves."""
MADE_FOR_BYTES = 1280 << 20
"""Memory that must be free before a standby is started: it takes about 0.6 GiB, and a trainer's needs vary."""
KEPT_FOR_BYTES = 320 << 20
"""With less memory free than this, a waiting standby is given up for the trainer's sake."""
_DRIVER_KINDS = frozenset({FailureKind.GPU_LOST, FailureKind.DRIVER_MISMATCH, FailureKind.NO_GPU})
_AT_WORK = (Phase.TRAINING, Phase.EVALUATING, Phase.SAVING)


def trainer_environment(run: Run, spec: Path) -> dict[str, str]:
    """The whole environment of the trainer of the attempt that ``spec`` describes."""
    return {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        **run.config.own.launch.env,
        SPEC_VARIABLE: str(spec),
    }


def trainer_command(run: Run) -> list[str]:
    config = run.config
    return [config.own.launch.python or sys.executable, *run.kind.command(config.sections)]


def free_memory(snapshot: Snapshot) -> int | Unknown:
    """Bytes that may still be used here: of the machine, or up to the control group's limit."""
    available, group = snapshot.host.ram_available, snapshot.cgroup
    if isinstance(available, Unknown) or not isinstance(group, CgroupReading):
        return available
    if isinstance(group.limit_bytes, int) and isinstance(group.used_bytes, int):
        return min(available, max(0, group.limit_bytes - group.used_bytes))
    return available


def gpu_memory_of(pid: int, snapshot: Snapshot) -> int | None:
    """Bytes of GPU memory that a process holds, 0 where their number is unknown, None when no GPU names it."""
    if isinstance(snapshot.gpus, Unknown):
        return None
    held = [
        0 if isinstance(process.used_bytes, Unknown) else process.used_bytes
        for gpu in snapshot.gpus
        if not isinstance(gpu.processes, Unknown)
        for process in gpu.processes
        if process.pid == pid
    ]
    return sum(held) if held else None


class Spare:
    """The standby of a run: at most one at a time, and at most one started in each attempt."""

    def __init__(self, run: Run, sensing: Sensing, signals: SignalQueue) -> None:
        self._run = run
        self._sensing = sensing
        self._signals = signals
        self._standby: Standby | None = None
        self._announced = False
        self._wanted = run.config.own.launch.standby == "auto"
        self._greedy = False
        self._tried_in = 0
        self._at_work: tuple[int, float] | None = None
        self._log = run.paths.root / ".standby.log"

    def beside(self, on_tick: Callable[[], None]) -> Callable[[], None]:
        """``on_tick`` and our own."""

        def both() -> None:
            on_tick()
            self.tick()

        return both

    def tick(self) -> None:
        """Look after the standby, or start one when it is time; cheap."""
        if self._standby is not None:
            self._look_after(self._standby)
        elif self._tried_in != self._run.state.attempt and self._due():
            self._tried_in = self._run.state.attempt
            self._start()

    def launch(self, paths: AttemptPaths) -> TrainerProcess:
        """The attempt's trainer: the standby if there is one that fits, else a new process.

        Raises OSError when the program cannot be started.
        """
        self._wanted = self._run.config.own.launch.standby == "auto"  # relief may have changed it
        command, environment = trainer_command(self._run), trainer_environment(self._run, paths.spec)
        standby, self._standby = self._standby, None
        if standby is not None:
            if (why := self._unfit(standby, command, environment)) is not None:
                self._say("standby_discarded", f"the standby is not used: {why}; starting a new process")
                self._end(standby)
            elif (process := self._take_over(standby, paths)) is not None:
                return process
        return spawn_trainer(command, environment, paths.stdout, paths.stderr)

    def close(self) -> None:
        """There will be no further attempt."""
        if self._standby is not None:
            self._end(self._standby)
            self._standby = None
        self._log.unlink(missing_ok=True)

    def _unfit(self, standby: Standby, command: list[str], environment: dict[str, str]) -> str | None:
        if not standby.serves(command, environment):
            return "the trainer is to be started with another command or environment than it was"
        if not self._wanted:
            return "launch.standby is off now"
        if self._run.state.failures and self._run.state.failures[-1].kind in _DRIVER_KINDS:
            return "it may have looked at the GPU driver before that failed"
        return None

    def _due(self) -> bool:
        run = self._run
        if not self._wanted or self._greedy or not has_standby(run.kind) or not run.state.trainer_pid:
            return False
        attempt = run.state.attempt
        beat = read_heartbeat(run.paths.attempt(attempt).heartbeat)
        if beat is None or beat.phase not in _AT_WORK:
            return False
        if self._at_work is None or self._at_work[0] != attempt:
            self._at_work = (attempt, time.monotonic())
        return time.monotonic() - self._at_work[1] >= START_AFTER_SECONDS

    def _start(self) -> None:
        run = self._run
        if (processes := run.config.own.launch.processes) > 1:
            what = f"the training has {processes} processes, and a standby replaces only one"
            self._say("standby_skipped", f"no standby is made ready: {what}; a relaunch will take longer")
            return
        free = self._free_memory()
        if isinstance(free, Unknown):
            self._say("standby_skipped", f"no standby is made ready, for the free memory is unknown: {free.reason}")
            return
        if free < MADE_FOR_BYTES:
            what = f"{human_bytes(free)} of memory are free, less than {human_bytes(MADE_FOR_BYTES)}"
            self._say("standby_skipped", f"no standby is made ready: {what}; a relaunch will take longer")
            return
        present, coming = run.paths.attempt(run.state.attempt).spec, run.paths.attempt(run.state.attempt + 1).spec
        try:
            standby = Standby(trainer_command(run), trainer_environment(run, coming), present, self._log)
        except OSError as error:
            if error.errno not in FULL_ERRORS and not isinstance(error, FileNotFoundError | PermissionError):
                raise
            self._say("standby_skipped", f"no standby can be started: {error.strerror}; a relaunch will take longer")
            return
        self._standby, self._announced = standby, False
        self._say("standby_started", f"process {standby.pid} is being made ready to take the next attempt over")

    def _look_after(self, standby: Standby) -> None:
        if (status := standby.ended()) is not None:
            lines = [line.strip() for line in log_tail(self._log).splitlines() if line.strip()]
            said = "".join(f"; {hide_secrets(line[:200])}" for line in lines[-1:])
            self._give_up(standby, f"it ended by itself ({status}{said})")
            return
        if not self._announced and standby.ready():
            self._announced = True
            seconds = time.monotonic() - standby.started
            self._say("standby_ready", f"a standby is ready to take the next attempt over, after {seconds:.1f} s")
        free = self._free_memory()
        if not isinstance(free, Unknown) and free < KEPT_FOR_BYTES:
            self._give_up(standby, f"only {human_bytes(free)} of memory are free")
            return
        held = gpu_memory_of(standby.pid, self._sensing.snapshots[-1]) if self._sensing.snapshots else None
        if held is not None:
            self._greedy = True
            size = human_bytes(held) if held else "an unknown amount"
            self._give_up(standby, f"its imports took {size} of GPU memory, which is the trainer's")

    def _give_up(self, standby: Standby, why: str) -> None:
        self._standby = None
        self._end(standby)
        self._say("standby_lost", f"the standby is gone: {why}; a relaunch will take longer")

    def _take_over(self, standby: Standby, paths: AttemptPaths) -> TrainerProcess | None:
        try:
            process = standby.take_over(paths.stdout, paths.stderr, lambda: bool(self._signals.pending()))
        except StandbyLostError as error:
            self._say("standby_lost", f"the standby did not take the attempt over: {error}; starting a new process")
            return None
        except OSError:  # a log cannot be opened, so a new process would not help either
            self._end(standby)
            raise
        self._say("standby_took_over", f"the standby, process {process.pid}, is the trainer of this attempt")
        return process

    def _free_memory(self) -> int | Unknown:
        snapshots = self._sensing.snapshots
        return free_memory(snapshots[-1]) if snapshots else Unknown("no sensor was read yet")

    def _end(self, standby: Standby) -> None:
        if not standby.end():
            self._say("warning", f"process {standby.pid}, a standby, does not end even after SIGKILL")

    def _say(self, kind: str, message: str) -> None:
        self._run.journal.event(kind, message)
