"""Programs that try to pass without solving, to reach out, or to outlive their judge."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attacks
import psutil
import pytest
from plain_user import as_plain_user

from rft.config import JudgeSection
from rft.verifiers.python_tests import PythonTests
from rft.verifiers.verdict import Outcome

ROOT = Path(__file__).parents[3]
Found = dict[str, list[str]]


class Listener:
    """Counts who connects: on loopback, by TCP and UDP, and on an abstract socket."""

    def __init__(self) -> None:
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.tcp.getsockname()[1]
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", self.port))
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind(f"\0mens-attack-{os.getpid()}")
        self.abstract.listen()

    def reached(self) -> list[str]:
        found = []
        for name, line, act in (
            ("tcp", self.tcp, self.tcp.accept), ("udp", self.udp, lambda: self.udp.recv(10)),
            ("abstract", self.abstract, self.abstract.accept),
        ):  # fmt: skip
            line.setblocking(False)
            try:
                act()
                found.append(name)
            except BlockingIOError:
                pass
        return found

    def close(self) -> None:
        for line in (self.tcp, self.udp, self.abstract):
            line.close()


def judge_all(prefix: list[str]) -> tuple[Found, list[str]]:
    listener = Listener()
    try:
        ran = subprocess.run(
            [*prefix, sys.executable, attacks.__file__, str(listener.port), f"mens-attack-{os.getpid()}"],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), attacks.PLANTED: attacks.PLANTED},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout), listener.reached()
    finally:
        listener.close()


@pytest.fixture(scope="module")
def judged() -> tuple[Found, list[str]]:
    return judge_all([])


# proves RFT-2, RFT-3
def test_none_passes_and_none_survives(judged: tuple[Found, list[str]]) -> None:
    check_verdicts(judged[0])


# proves RFT-3
def test_none_reaches_out(judged: tuple[Found, list[str]]) -> None:
    check_reach(*judged)


# proves RFT-2, RFT-3
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests already ran as a plain user")
def test_the_same_as_a_plain_user() -> None:
    found, reached = judge_all(as_plain_user([]))
    check_verdicts(found)
    check_reach(found, reached)


def check_verdicts(found: Found) -> None:
    names = {**attacks.PASSING, **attacks.ENDLESS, **attacks.BOMBS, **attacks.KILLING, **attacks.TELLING}
    assert found.keys() == names.keys()
    outcomes = {name: (outcome, reason) for name, (outcome, reason, _, _) in found.items()}
    assert {name for name, (outcome, _) in outcomes.items() if outcome not in ("rejected", "timeout")} == set()
    assert {outcomes[name][0] for name in attacks.ENDLESS} == {"timeout"}
    assert {name for name in attacks.PASSING if outcomes[name][0] != "rejected"} == set()
    assert {name for name, (_, _, _, after) in found.items() if after != "accepted"} == set()


def check_reach(found: Found, reached: list[str]) -> None:
    assert reached == []
    told = {name: found[name][2] for name in attacks.TELLING}
    for text in told.values():
        assert attacks.PLANTED not in text
    assert "{'PYTHONHASHSEED': '0', 'LD_BIND_NOW': '1', 'LANG': 'C.UTF-8'" in told["tells its environment"]
    assert not re.search(r"environ|cmdline|\\x00", told["tells its environment"].partition("Exception: ")[2])
    for word in ("ssh", "netrc", "shadow", "passwd", "rft", "proc'", "sys'"):
        assert word not in told["tells of homes"].partition("Exception: ")[2]
    assert "('reached', [])" in told["reaches out"]
    assert "('did', [])" in told["breaks out"]
    assert re.search(r"\('open', \[\(0, 'device'\), \(1, 'device'\), \(2, 'device'\), \(\d+, 'socket'\)\]\)",
                     told["tells its descriptors"])  # fmt: skip
    ids = re.search(r"'ids', (\d+), (\d+), (\d+), \[\], 'core', \(0, 0\)", told["tells who it is"])
    assert ids and "0" not in ids.groups()


@pytest.fixture(scope="module")
def verifier() -> Iterator[PythonTests]:
    made = PythonTests(attacks.SETTINGS, JudgeSection(workers=1))
    made.open()
    yield made
    made.close()


# proves RFT-3
def test_nothing_is_left_for_the_next_program(verifier: PythonTests) -> None:
    assert verifier.judge(attacks.TASK, attacks.LEAVING).outcome is Outcome.REJECTED
    found = verifier.judge(attacks.TASK, attacks.FINDING)
    assert "('left', [False, False, False, False, False])" in found.diagnostic


# proves RFT-3
def test_no_process_outlives_its_judge(verifier: PythonTests) -> None:
    before = processes_of_strangers()
    for name in ("stays behind", "forks", "threads"):
        verifier.judge(attacks.TASK, attacks.BOMBS.get(name) or attacks.KILLING[name])
    assert processes_of_strangers() <= before


# proves RFT-2
def test_the_verdict_goes_to_the_program_that_earned_it() -> None:
    verifier = PythonTests(attacks.SETTINGS, JudgeSection(workers=2))
    verifier.open()
    try:
        programs = [attacks.HONEST, attacks.KILLING["kills all"], attacks.PASSING["exits at once when called"]] * 8
        with ThreadPoolExecutor(4) as pool:
            outcomes = list(pool.map(lambda program: verifier.judge(attacks.TASK, program).outcome, programs))
        assert outcomes == [Outcome.ACCEPTED, Outcome.REJECTED, Outcome.REJECTED] * 8
    finally:
        verifier.close()


# proves RFT-2
def test_a_lost_sandbox_is_replaced_and_the_program_judged_again() -> None:
    verifier = PythonTests(attacks.SETTINGS, JudgeSection(workers=1))
    verifier.open()
    try:
        for which in range(3):
            (host,) = verifier._judges._all
            process = psutil.Process(host._process.pid)
            of_programs, of_tests = process.children()
            (process, of_programs, of_tests)[which].kill()
            assert verifier.judge(attacks.TASK, attacks.HONEST).outcome is Outcome.ACCEPTED
            (new,) = verifier._judges._all
            assert new is not host
    finally:
        verifier.close()


# proves RFT-3
def test_sandboxes_end_with_the_program_that_started_them(tmp_path: Path) -> None:
    script = tmp_path / "judges.py"
    script.write_text(
        "import os, signal, sys, psutil\n"
        "sys.path += sys.argv[1:]\n"
        "import attacks\n"
        "from rft.config import JudgeSection\n"
        "from rft.verifiers.python_tests import PythonTests\n"
        "verifier = PythonTests(attacks.SETTINGS, JudgeSection(workers=1))\n"
        "verifier.open()\n"
        "(host,) = verifier._judges._all\n"
        "process = psutil.Process(host._process.pid)\n"
        "print(*(each.pid for each in (process, *process.children(recursive=True))), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, str(script), str(ROOT), str(Path(__file__).parent)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    pids = ran.stdout.split()
    assert len(pids) >= 3, ran.stderr
    gone = threading.Event()
    for _ in range(600):
        if not any(is_alive(pid) for pid in pids):
            return
        gone.wait(0.1)
    raise AssertionError("a sandbox lives on")


def is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def processes_of_strangers() -> int:
    """Processes of ids that sandboxes give to programs; a plain user's have none of their own."""
    found = 0
    for entry in Path("/proc").iterdir():
        try:
            found += entry.name.isdigit() and 1 << 30 <= entry.stat().st_uid < 1 << 31
        except FileNotFoundError:
            continue
    return found
