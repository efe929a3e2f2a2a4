"""What the end of a job's supervisor means for its place in the queue. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.daemon.service import EntryState
from supervisor.state import Outcome, RunState

MOST_CRASHES = 3
"""Deaths of a run's supervisor in a row, without a step between them, after which it is not started again."""
WISHED = {"pause": EntryState.PAUSED, "cancel": EntryState.CANCELLED, "yield": EntryState.WAITING}


@dataclass(frozen=True)
class Ended:
    """A supervisor that ended.

    ``run``: the state of its run, None without one. ``pid``: its process, 0 when that is not known. ``output``: what it
    said last. ``rebooted``: the machine was restarted since it started. ``trainer_alive``: the run's trainer lives on.
    ``crashes`` and ``mark``: as stored with the job, before this end.
    """

    wish: str
    run: RunState | None
    pid: int
    output: str
    rebooted: bool
    trainer_alive: bool
    crashes: int = 0
    mark: str = ""


@dataclass(frozen=True)
class Verdict:
    """``again``: start it again, the lease kept. Otherwise the job goes into ``state``, and the lease is given back."""

    state: EntryState
    explanation: str
    outcome: str | None = None
    again: bool = False
    crashes: int = 0
    mark: str = ""


def judge(ended: Ended) -> Verdict:
    run = ended.run
    if run is not None and run.outcome is Outcome.COMPLETED:
        return Verdict(EntryState.COMPLETED, run.explanation, run.outcome.value)
    opened = run is not None and bool(ended.pid) and run.supervisor_pid == ended.pid
    if run is None or not opened:
        return _never_opened(ended)
    if run.outcome is Outcome.RUNNING:
        return _died(ended)
    if run.outcome is Outcome.STOPPED:
        return _stopped(ended, run)
    state = EntryState.CANCELLED if ended.wish == "cancel" else EntryState.FAILED
    return Verdict(state, run.explanation, run.outcome.value)


def mark_of(run: RunState | None) -> str:
    """Where a run stands; it differs once the run has got ahead."""
    return "" if run is None else f"{run.lineage}:{run.attempt}:{run.step}"


def _never_opened(ended: Ended) -> Verdict:
    """It ended before it had the run: refused with a paragraph, or it was killed."""
    said = ended.output.strip()
    if said and ended.wish != "cancel":
        return Verdict(EntryState.FAILED, said)
    if not ended.wish or (ended.trainer_alive and not said):
        return _died(ended)
    begun = "began" if ended.run is None else "went on"
    words = {
        "cancel": f"Cancelled before it {begun}.",
        "pause": f"Paused before it {begun}. `mens-sup resume` puts it back.",
        "yield": f"The daemon stopped before it {begun}; it starts when its turn comes.",
    }
    return Verdict(WISHED[ended.wish], words[ended.wish])


def _stopped(ended: Ended, run: RunState) -> Verdict:
    if ended.wish:
        words = {"yield": "Its checkpoint is saved; it goes on when its turn comes."}
        return Verdict(WISHED[ended.wish], words.get(ended.wish, run.explanation), run.outcome.value)
    if ended.rebooted:
        return Verdict(EntryState.WAITING, "The machine was restarted; it goes on from its checkpoint.")
    return Verdict(
        EntryState.PAUSED,
        "Its supervisor was asked to stop by a signal that did not come from the daemon. `mens-sup resume` goes on.",
        run.outcome.value,
    )


def _died(ended: Ended) -> Verdict:
    """The supervisor was killed, or crashed. A trainer that lives needs another one, which takes it up: to go on with
    it, or to stop it gently. When the daemon itself ends there can't be one: giving back the lease ends the trainer,
    which costs a step.
    """
    if ended.wish == "yield" or (ended.wish and not ended.trainer_alive):
        return Verdict(WISHED[ended.wish], "Its supervisor died before it had stopped; nothing of it lives any more.")
    if ended.rebooted:
        return Verdict(EntryState.WAITING, "The machine was restarted; it goes on from its newest checkpoint.")
    mark = mark_of(ended.run)
    crashes = ended.crashes + 1 if mark == ended.mark else 1
    if crashes > MOST_CRASHES and not ended.trainer_alive:
        return Verdict(
            EntryState.FAILED,
            f"The supervisor of the run died {crashes} times in a row without getting ahead, without a word. "
            "`journalctl -k` may tell whether the kernel killed it for memory; `mens-sup resume` tries again.",
        )
    words = "The supervisor of the run died; it is started again."
    return Verdict(EntryState.STARTING, words, again=True, crashes=crashes, mark=mark)
