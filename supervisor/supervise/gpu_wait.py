"""Waiting for GPU memory: for what somebody else holds, and for what the driver still holds for our own dead."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from supervisor.config_sections import WAIT_FOR_FOREIGN_VRAM
from supervisor.diagnosis.foreign_gpu import blamed, pressing, still_held, trainer_cards
from supervisor.diagnosis.kinds import FailureKind
from supervisor.diagnosis.values import Diagnosis
from supervisor.jobs import Relief
from supervisor.process.signals import SignalQueue
from supervisor.relief.effective import taken
from supervisor.relief.ledger import place
from supervisor.relief.policy import Decision, PolicyInput, Relaunch, Stop, WaitForGpu, decide
from supervisor.sensors.history import own_pids
from supervisor.sensors.holders import Holder, holders_text
from supervisor.sensors.snapshot import Snapshot, Unknown
from supervisor.state import Outcome
from supervisor.supervise.attempt import TICK_SECONDS, StopRequest
from supervisor.supervise.opening import Run
from supervisor.supervise.sensing import Sensing
from supervisor.view.text import duration

LOOK_SECONDS = 2.0
"""Between two looks at the cards while somebody else is waited for."""
TELL_SECONDS = 60.0
"""Between two words about how the wait goes on."""
RELEASE_SECONDS = 60.0
"""How long a driver may take to free what a dead process held."""
RELEASE_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Waited:
    """``freed``: the memory is there. ``stopped``: somebody asked the supervisor to stop. ``price``: for the report."""

    freed: bool
    stopped: bool
    price: str


class GpuWait:
    """The waits of one run. Both end at once when the supervisor is asked to stop."""

    def __init__(
        self, run: Run, sensing: Sensing, signals: SignalQueue, stop: StopRequest, on_tick: Callable[[], None]
    ) -> None:
        self._run = run
        self._sensing = sensing
        self._signals = signals
        self._stop = stop
        self._on_tick = on_tick

    def holders(self, found: Diagnosis) -> str | None:
        """Who else holds GPU memory, for people; None when the failure is another one or nobody can be watched."""
        snapshots = self._sensing.snapshots
        if found.kind is not FailureKind.CUDA_OOM_FOREIGN or not snapshots or isinstance(snapshots[-1].gpus, Unknown):
            return None
        holders = blamed(found.explanation, snapshots)
        return holders_text(holders) if holders else None

    def for_others(self, decision: WaitForGpu) -> Waited:
        """Wait until the strangers press on the trainer's cards no more."""
        ours, cards = own_pids(self._sensing.snapshots), trainer_cards(self._sensing.snapshots)
        journal, started = self._run.journal, time.monotonic()
        limit = duration(decision.seconds)
        message = f"waiting for GPU memory: {decision.holders}. At most {limit}, then lossless relief is taken instead"
        journal.event("waiting", message, seconds=decision.seconds)
        told, left = started, decision.holders
        while True:
            waited = time.monotonic() - started
            snapshot = self._look(LOOK_SECONDS)
            if snapshot is not None:
                holders = pressing(snapshot.gpus, ours, cards)
                if isinstance(holders, Unknown):
                    left = f"nobody can tell who holds it now ({holders.reason})"
                elif not holders:
                    text = f"GPU memory is free again after {duration(waited)}"
                    journal.event("waited", text, freed=True, seconds=round(waited, 1))
                    return Waited(True, False, f"waited {duration(waited)} for GPU memory: {decision.holders}")
                else:
                    left = holders_text(holders)
            if self._stop.poll():
                return Waited(False, True, f"waited {duration(waited)} for GPU memory until asked to stop")
            if waited >= decision.seconds:
                text = f"waited {duration(waited)} for GPU memory in vain: {left}"
                journal.event("waited", text, freed=False, seconds=round(waited, 1))
                return Waited(False, False, text)
            if time.monotonic() - told >= TELL_SECONDS:
                told = time.monotonic()
                journal.event("waiting", f"still waiting for GPU memory ({duration(waited)} of {limit}): {left}")
            self._pause(min(TICK_SECONDS, decision.seconds - waited))

    def then_decide(self, given: PolicyInput, wait: WaitForGpu) -> Decision:
        """Wait for the strangers, enter it among the relief, and decide anew if it was in vain."""
        waited = self.for_others(wait)
        if waited.stopped:
            return _decided(replace(given, stop_requested=True))
        found = given.diagnosis
        relief = Relief(WAIT_FOR_FOREIGN_VRAM, (), waited.price, lossless=True)
        answers = place(found.fingerprint, found.step)
        entry = taken(relief, given.attempt + 1, found.kind.value, answers, in_vain=not waited.freed)
        self._run.state.relief.append(entry)
        if waited.freed:
            return Relaunch(None, 0.0, f"{wait.reason}, {waited.price}")
        return _decided(replace(given, relief=(*given.relief, entry)))

    def for_our_dead(self) -> Stop | None:
        """Wait until the driver has freed what the last trainer's processes held; the verdict when it never does."""
        snapshots = self._sensing.snapshots
        dead = own_pids(snapshots)
        held = still_held(snapshots[-1].gpus, dead) if snapshots else ()
        if not held:
            return None
        started = time.monotonic()
        self._run.journal.event("waiting", f"waiting for the GPU memory of the ended trainer: {_dead_text(held)}")
        while not self._stop.poll():
            snapshot = self._look(RELEASE_LOOK_SECONDS)
            if snapshot is not None:
                if isinstance(snapshot.gpus, Unknown):
                    self._run.journal.event(
                        "warning", f"whether the GPU memory is free cannot be seen: {snapshot.gpus.reason}"
                    )
                    return None
                held = still_held(snapshot.gpus, dead)
                if not held:
                    waited = time.monotonic() - started
                    self._run.journal.event(
                        "waited", f"the GPU memory of the ended trainer is free after {duration(waited)}", freed=True
                    )
                    return None
            if time.monotonic() - started >= RELEASE_SECONDS:
                return Stop(Outcome.GAVE_UP, _never_freed(held))
            self._pause(RELEASE_LOOK_SECONDS)
        return None

    def _look(self, seconds: float) -> Snapshot | None:
        """A new snapshot, when one is due and the cards have answered."""
        before = self._sensing.snapshots[-1:]
        self._sensing.tick(every=seconds)
        after = self._sensing.snapshots[-1:]
        return after[0] if after and after != before else None

    def _pause(self, seconds: float) -> None:
        self._run.journal.save(force=False)
        self._on_tick()
        self._signals.wait(seconds)


def _decided(given: PolicyInput) -> Decision:
    decision = decide(given)
    assert not isinstance(decision, WaitForGpu)  # the same failure is not waited for twice
    return decision


def _dead_text(held: tuple[Holder, ...]) -> str:
    return "; ".join(text.replace(", which cannot be seen from here,", "") for text in map(_one, held))


def _one(holder: Holder) -> str:
    return holders_text([holder])


def _never_freed(held: tuple[Holder, ...]) -> str:
    return (
        f"The trainer has ended, but its GPU memory was not freed within {duration(RELEASE_SECONDS)}: "
        f"{_dead_text(held)}. The driver still holds it for a process that is gone, so another attempt would only run "
        "out of memory. Reboot the machine (or reset the card with `nvidia-smi -r` when nothing else uses it), then "
        "run again with the same --run-dir; it goes on from its newest verified checkpoint."
    )
