"""Ways in which the real trainer comes to grief by itself (stand_ins/mishaps.py), one run each."""

import os
from pathlib import Path
from typing import Any

import pytest
from memory_cgroup import NoMemoryCgroupError, memory_cgroup
from real_runs import QUICK, events, faults, log_of, run, same_adapter, state

from supervisor.protocol.paths import RunPaths

pytestmark = pytest.mark.slow


def once(place: Path, what: str, step: int) -> dict[str, Any]:
    """Changes that let ``what`` happen in the course of one step of one attempt."""
    return faults({"do": what, "at": step, "once": str(place / "struck")})


# proves SUP-1, SUP-6: whatever ended the process, the run ends in the very adapter it would have had
@pytest.mark.parametrize(
    ("mishap", "kind"),
    [
        ("bad_pointer", "native_crash"),
        ("abort", "native_crash"),
        ("early_exit_0", "completed_early"),
        ("silent_exit_1", "unknown"),
        ("bug", "program_error"),
        ("connection_lost", "network"),
    ],
)
def test_a_process_that_ends_by_itself(tmp_path: Path, undisturbed: Path, mishap: str, kind: str) -> None:
    place = tmp_path / "run"
    assert run(place, {**QUICK, **once(tmp_path, mishap, 7)}) == 0, log_of(place).read_text()
    assert [failure.kind for failure in state(place).failures] == [kind]
    assert same_adapter(place, undisturbed)


# proves SUP-9: a process that got away by a double fork into another session is found and ended
def test_a_grandchild_does_not_outlive_the_attempt(tmp_path: Path, undisturbed: Path) -> None:
    place = tmp_path / "run"
    assert run(place, {**QUICK, **once(tmp_path, "leave_a_grandchild", 5)}) == 0, log_of(place).read_text()
    (ended,) = events(place, "leftovers_killed")
    assert ended.attempt == 1
    assert same_adapter(place, undisturbed)
    first = os.fsencode(RunPaths(place).attempt(1).root)
    assert not [pid for pid in Path("/proc").glob("[0-9]*") if first in _environment(pid)]


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


# proves SUP-5, SUP-6: the kernel's own counters tell a host OOM from any other SIGKILL
def test_the_kernel_ends_a_trainer_that_eats_the_memory(tmp_path: Path) -> None:
    place = tmp_path / "run"
    try:
        with memory_cgroup(f"mens-test-{os.getpid()}", 2 << 30) as procs:
            code = run(place, {**QUICK, **once(tmp_path, "eat_memory", 5)}, cgroup=procs)
    except NoMemoryCgroupError as error:
        pytest.skip(str(error))
    assert code == 0, log_of(place).read_text()
    (failure,) = state(place).failures
    assert failure.kind == "host_oom"
    assert state(place).relief, "memory that the host lacks is answered by relief"
