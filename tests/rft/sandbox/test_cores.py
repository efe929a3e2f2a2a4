"""Where the processes of a judge run. Needs bubblewrap."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from rft.config import JudgeSection
from rft.sandbox import judges
from rft.sandbox.cores import Cores, beside, place
from rft.tasks.task import Check, Task
from rft.verifiers.python_tests import PythonTests, PythonTestsSettings
from rft.verifiers.verdict import Outcome

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
    verifier = PythonTests(PythonTestsSettings(seconds=40), JudgeSection(workers=1))
    verifier.open()
    try:
        for soon, cores in [(30.0, 1), (0.01, len(ALL)), (30.0, 1)]:
            monkeypatch.setattr(judges, "_SOON_SECONDS", soon)
            data = {"tests": [f"assert cores({cores}) == {cores}"], "format": "continuation"}
            found = verifier.judge(Task("t/1", "t", (), Check("python_tests", data)), HOW_MANY)
            assert found.outcome is Outcome.ACCEPTED, found
    finally:
        verifier.close()


def test_the_thread_that_asks_runs_beside_the_judge_and_is_free_afterwards() -> None:
    def asked() -> set[int]:
        with beside(ALL[-1]):
            return os.sched_getaffinity(0)

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(asked).result() == {ALL[-1]}
        assert thread.submit(os.sched_getaffinity, 0).result() == set(ALL)


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
