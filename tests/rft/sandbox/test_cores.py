"""Where the processes of a judge run. Needs bubblewrap."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from rft.config import JudgeSection
from rft.sandbox import pair
from rft.sandbox.cgroup import Groups
from rft.sandbox.cores import Cores, place
from rft.sandbox.pair import Pair, ProgramLimits
from rft.tasks.task import Check, Task
from rft.verifiers.python_tests import PythonTests, PythonTestsSettings
from rft.verifiers.verdict import Isolation

ALL = sorted(os.sched_getaffinity(0))
HOW_MANY = """
import os, time
def cores(wanted):
    until = time.monotonic() + 15
    while (found := len(os.sched_getaffinity(0))) != wanted and time.monotonic() < until:
        time.sleep(0.01)
    return found
"""


# proves the judging speed of RFT-3
@pytest.mark.skipif(len(ALL) < 2, reason="there is one core only")
def test_a_program_shares_one_core_with_its_tests_until_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = ProgramLimits(seconds=40, cpu_seconds=30, memory_bytes=1 << 29, processes=8, tmp_bytes=1 << 20, files=64)
    groups = Groups()
    os.sched_setaffinity(0, {ALL[-1]})
    try:
        warm = Pair(limits, Isolation.BUBBLEWRAP, (), groups, ALL[-1], set(ALL))
    finally:
        os.sched_setaffinity(0, ALL)
    try:
        for soon, cores in [(30.0, 1), (0.01, len(ALL)), (30.0, 1)]:
            monkeypatch.setattr(pair, "_SOON_SECONDS", soon)
            found = warm.judge(json.dumps({"tests": [f"assert cores({cores}) == {cores}"]}), HOW_MANY)
            assert found.outcome == "accepted", found
    finally:
        warm.close()
        groups.close()


WHERE = """
import os, time
def where():
    core, = os.sched_getaffinity(0)
    time.sleep(2)
    return core + 1000
"""


# proves the judging speed of RFT-3: each judge is on a core of its own, and who asks is not
@pytest.mark.skipif(len(ALL) < 2, reason="there is one core only")
def test_every_judge_has_its_core() -> None:
    verifier = PythonTests(PythonTestsSettings(), JudgeSection(workers=2))
    task = Task("t/1", "t", (), Check("python_tests", {"tests": ["assert where() == 0"], "format": "continuation"}))
    verifier.open()
    try:
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda _: verifier.judge(task, WHERE), range(2)))
    finally:
        verifier.close()
    said = {re.search(r"gave (\d+)", verdict.diagnostic)[1] for verdict in found}  # type: ignore[index]
    assert len(said) == 2, found
    assert os.sched_getaffinity(0) == set(ALL)


def test_the_least_used_core_is_next() -> None:
    cores = Cores()
    used: list[int] = []
    for _ in range(2 * len(ALL)):
        used.append(cores.least_used(used))
    assert sorted(used) == sorted(2 * ALL)


def test_everything_below_a_process_is_placed() -> None:
    script = (
        "import os, sys\n"
        "if os.fork() == 0:\n"
        "    print(os.getpid(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        place(parent.pid, {ALL[-1]})
        assert [os.sched_getaffinity(pid) for pid in (parent.pid, child)] == [{ALL[-1]}, {ALL[-1]}]
        place(parent.pid, set(ALL))
        assert os.sched_getaffinity(child) == set(ALL)
        parent.communicate()
    place(parent.pid, {ALL[0]})  # which has ended
