"""The pool of faults, each with what must come of it."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.diagnosis.kinds import FailureKind as Kind


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong once in a run.

    ``inside``: a mishap in the trainer's own course (stand_ins/mishaps.py, faulty_trainer.py), otherwise
    it is done to the run from outside (strike.py). ``expected``: the kinds that diagnose it; empty when
    the attempt does not fail at all. ``completes``: whether the run can end in an adapter. ``identical``:
    whether that adapter must be the undisturbed run's bit for bit. ``lost_steps``: how many optimiser
    steps may be done again, None for as many as a checkpoint interval has.
    """

    name: str
    inside: bool
    expected: frozenset[Kind]
    completes: bool = True
    identical: bool = True
    lost_steps: int | None = 1


def _inside(name: str, *expected: Kind, **promises: bool) -> Fault:
    return Fault(name, True, frozenset(expected), **promises)


def _outside(name: str, *expected: Kind, lost_steps: int | None = 1) -> Fault:
    return Fault(name, False, frozenset(expected), lost_steps=lost_steps)


POOL = (
    _inside("bad_pointer", Kind.NATIVE_CRASH),
    _inside("abort", Kind.NATIVE_CRASH),
    _inside("silent_exit_1", Kind.UNKNOWN),
    _inside("early_exit_0", Kind.COMPLETED_EARLY),
    _inside("bug", Kind.PROGRAM_ERROR),
    _inside("connection_lost", Kind.NETWORK),
    _inside("port_taken", Kind.PORT_IN_USE),
    _inside("too_many_files", Kind.TOO_MANY_FILES),
    _inside("deadlock", Kind.HANG),
    _inside("spin_with_the_gil", Kind.HANG),
    _inside("leave_a_grandchild", Kind.PROGRAM_ERROR),
    _inside("save_enospc", Kind.DISK_FULL),
    # Half the micro-batch adds the same gradients up in another order: equal in mathematics, not in the last bit.
    _inside("oom", Kind.CUDA_OOM, identical=False),
    # Needs a memory cgroup: chaos.py leaves it out, and says so, where none can be made. Relieved as above.
    _inside("eat_memory", Kind.HOST_OOM, identical=False),
    _inside("nan", Kind.NAN_LOSS, completes=False),
    _outside("kill", Kind.KILLED),
    _outside("terminate", Kind.INTERRUPTED, Kind.PREEMPTED),
    _outside("freeze", Kind.HANG),
    _outside("damage_newest_and_kill", Kind.KILLED, lost_steps=None),
    _outside("kill_supervisor"),
    _outside("kill_both", Kind.KILLED),
    _outside("lose_power", Kind.KILLED, lost_steps=None),
    _outside("stop_and_go_on"),
)
BY_NAME = {fault.name: fault for fault in POOL}
