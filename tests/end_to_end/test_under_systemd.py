"""The daemon under a real systemd, from `make install-systemd` to `make uninstall-systemd`."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from booted_systemd import PROJECT, BootedSystemd, missing
from real_runs import QUICK, STAND_INS, TINY, sets
from scripted_runs import document, wait_for

from supervisor.protocol.attempt import read_spec
from supervisor.protocol.events import read_events
from supervisor.protocol.lock import lock_holder
from supervisor.protocol.paths import RunPaths
from supervisor.state import Outcome, RunState, read_state
from supervisor.yaml_source import render_yaml

pytestmark = pytest.mark.slow
BIN = Path(sys.executable).parent
STATE = "/var/lib/mens-supervisor"


class Machine(BootedSystemd):
    """With the daemon installed."""

    def mens_sup(self, *arguments: str | Path) -> str:
        kinds = f"PYTHONPATH={STAND_INS}"  # a configuration is looked through before it is sent as well
        return self.run("env", kinds, str(BIN / "mens-sup"), *map(str, arguments), check=True).stdout

    def submit(self, name: str, *options: str, waits: bool = False) -> int:
        """A scripted run of 12 steps, a checkpoint after every third. ``waits``: its first attempt stays before step 8
        until it is asked to stop."""
        faults = [{"at": 8, "do": "hang", "attempt": 1}] if waits else []
        text = render_yaml(document(*faults))
        self.inside(f"/srv/{name}.yaml").write_text(text)
        return int(json.loads(self.mens_sup("submit", f"/srv/{name}.yaml", "--json", *options))["id"])

    def entry(self, number: int) -> dict[str, Any]:
        queue: list[dict[str, Any]] = json.loads(self.mens_sup("queue", "--all", "--json"))
        return next(entry for entry in queue if entry["id"] == number)

    def until(self, number: int, *states: str) -> dict[str, Any]:
        def there() -> dict[str, Any] | None:
            found = self.entry(number)
            ended = found["state"] in ("completed", "failed", "cancelled")
            assert found["state"] in states or not ended, f"{found}\n{self.journal()}"
            return found if found["state"] in states else None

        try:
            found: dict[str, Any] = wait_for(there, 600)
        except AssertionError:
            raise AssertionError(f"{self.entry(number)}\n{self.journal()}") from None
        return found

    def run_paths(self, number: int) -> RunPaths:
        return RunPaths(self.inside(self.entry(number)["run_dir"]))

    def training(self, number: int, step: int) -> str:
        """Wait until the trainer has done ``step``; its pid and when it started, as one text."""
        self.until(number, "running", "completed")
        paths = self.run_paths(number)
        wait_for(lambda: paths.events.exists() and _done(paths) >= step, 600)
        return self.trainer(number)

    def trainer(self, number: int) -> str:
        pid = lock_holder(self.run_paths(number).trainer_lock)
        stat = self.run("cat", f"/proc/{pid}/stat").stdout.rpartition(")")[2].split()
        return f"{pid} since {stat[19]}"

    def state(self, number: int) -> RunState:
        found = read_state(self.run_paths(number).state)
        assert found is not None
        return found

    def show(self, what: str) -> str:
        return self.run("systemctl", "show", "--value", "-p", what, "mens-supervisor").stdout.strip()

    def ours(self) -> str:
        """Every process of the daemon's user."""
        return self.run("pgrep", "-a", "-u", "mens-supervisor").stdout

    def settings(self, *lines: str) -> None:
        """Of the service, besides those of its unit."""
        folder = self.inside("/etc/systemd/system/mens-supervisor.service.d")
        folder.mkdir(exist_ok=True)
        (folder / "test.conf").write_text("\n".join(("[Service]", *lines, "")))
        self.run("systemctl", "daemon-reload", check=True)

    def answers(self) -> bool:
        return self.run(str(BIN / "mens-sup"), "queue").returncode == 0

    def journal(self) -> str:
        return self.run("journalctl", "--no-pager", "-n", "60").stdout


def _done(paths: RunPaths) -> int:
    """The last step that the run's trainer told of."""
    return max((event.step or 0 for event in read_events(paths.events) if event.kind == "progress"), default=0)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    if why := missing():
        warnings.warn(f"NOT TESTED under a real systemd: {why}", stacklevel=1)
        pytest.skip(f"no systemd can be booted here: {why}")
    machine = Machine(tmp_path_factory.mktemp("machine"))
    try:
        machine.boot()
        said = machine.run("make", "-C", str(PROJECT), "install-systemd", check=True).stdout
        assert "made user and group mens-supervisor" in said and "wrote /etc/systemd/system" in said
        with open(machine.inside("/etc/default/mens-supervisor"), "a") as options:
            options.write(f"PYTHONPATH={STAND_INS}\nHF_HUB_OFFLINE=1\n")
        machine.settings("TimeoutStartSec=infinity", "TimeoutStopSec=infinity")  # for machines with other work
        machine.run("systemctl", "start", "mens-supervisor", check=True)
        yield machine
    finally:
        machine.cut_power()


# proves SUP-18: systemctl start; the daemon's death does nothing to a training run, which it takes up again
def test_a_run_completes_although_the_daemon_is_killed(machine: Machine) -> None:
    said = machine.mens_sup("submit", TINY, "--json", *sets(QUICK))
    number = int(json.loads(said)["id"])
    before = machine.training(number, 2)
    machine.run("kill", "-STOP", before.split()[0], check=True)  # so that it is still training afterwards
    machine.run("systemctl", "kill", "-s", "KILL", "--kill-who=main", "mens-supervisor", check=True)
    wait_for(lambda: machine.show("NRestarts") == "1" and machine.answers(), 600)
    assert machine.entry(number)["state"] == "running" and machine.trainer(number) == before
    machine.run("kill", "-CONT", before.split()[0], check=True)
    machine.until(number, "completed")
    state = machine.state(number)
    assert (state.outcome, state.attempt, state.step) == (Outcome.COMPLETED, 1, 12)


# proves SUP-18: neither a restart nor a reload (an upgrade) of the daemon touches a run
def test_restart_and_reload_leave_the_run_alone(machine: Machine) -> None:
    number = machine.submit("upgraded", waits=True)
    before = machine.training(number, 7)
    pid = machine.show("MainPID")
    machine.run("systemctl", "reload", "mens-supervisor", check=True)
    wait_for(machine.answers, 600)
    assert machine.show("MainPID") == pid and machine.trainer(number) == before
    machine.run("systemctl", "restart", "mens-supervisor", check=True)
    wait_for(machine.answers, 600)
    assert machine.show("MainPID") != pid and machine.trainer(number) == before
    assert machine.entry(number)["state"] == "running"
    machine.mens_sup("cancel", number)
    assert machine.until(number, "cancelled")["outcome"] == "stopped"


# proves SUP-18: systemctl stop lets the run save a checkpoint, leaves nothing behind, and start goes on
def test_stop_saves_a_checkpoint_and_start_goes_on(machine: Machine) -> None:
    number = machine.submit("stopped", waits=True)
    machine.training(number, 7)
    paths = machine.run_paths(number)
    machine.run("systemctl", "stop", "mens-supervisor", check=True)
    assert machine.show("Result") == "success"
    assert machine.ours() == ""
    state = read_state(paths.state)
    assert state is not None and state.outcome is Outcome.STOPPED and state.step == 8
    assert state.last_checkpoint == "checkpoints/step-00000008"
    machine.run("systemctl", "start", "mens-supervisor", check=True)
    machine.until(number, "completed")
    assert machine.state(number).attempt == 2 and machine.state(number).failures == []


# proves SUP-18: the watchdog's ping comes from the main loop, not from a thread that goes on when that hangs
def test_a_wedged_main_loop_is_restarted(machine: Machine) -> None:
    machine.settings("TimeoutStartSec=infinity", "TimeoutStopSec=infinity", "WatchdogSec=10")
    machine.run("systemctl", "restart", "mens-supervisor", check=True)
    number = machine.submit("wedged", waits=True)
    before = machine.training(number, 7)
    main = machine.show("MainPID")
    tracer = machine.start(sys.executable, str(STAND_INS / "wedge.py"), main)
    assert tracer.stdout is not None
    tracer_inside = tracer.stdout.readline().strip()
    try:
        assert machine.answers()  # its other threads still do
        wait_for(lambda: machine.show("Result") == "watchdog", 600)
    finally:
        machine.run("kill", "-KILL", tracer_inside)  # a traced process can't be buried
        tracer.wait()
    wait_for(lambda: machine.show("MainPID") not in (main, "0") and machine.answers(), 600)
    assert machine.entry(number)["state"] == "running" and machine.trainer(number) == before
    machine.mens_sup("cancel", number)
    machine.until(number, "cancelled")
    machine.settings("TimeoutStartSec=infinity", "TimeoutStopSec=infinity")


# proves SUP-18: queue and schedules survive a reboot and a power cut, and what was interrupted goes on
@pytest.mark.parametrize("way", ["power_off", "cut_power"])
def test_reboot(machine: Machine, way: str) -> None:
    number = machine.submit("rebooted", waits=True)
    machine.training(number, 7)
    waiting = machine.submit("waits", "--priority", "3")
    last = machine.submit("last", "--after", str(waiting))
    machine.mens_sup("schedule", "add", "/srv/waits.yaml", "--cron", "0 2 * * 0")
    schedules = json.loads(machine.mens_sup("schedule", "list", "--json"))
    getattr(machine, way)()
    machine.boot()
    wait_for(machine.answers, 600)
    assert json.loads(machine.mens_sup("schedule", "list", "--json")) == schedules
    for each in (number, waiting, last):
        assert machine.until(each, "completed")["outcome"] == "completed"
    assert (machine.state(number).attempt, machine.state(number).step) == (2, 12)
    resumed = read_spec(machine.run_paths(number).attempt(2).spec).resume_step
    assert resumed == (8 if way == "power_off" else 6)  # asked to save, or what was saved before
    starts = [machine.entry(each)["started_at"] for each in (number, waiting, last)]
    assert starts == sorted(starts)  # the interrupted one first, whatever the priority of others
    machine.mens_sup("schedule", "remove", schedules[-1]["id"])


# proves SUP-18: hardening as far as CUDA allows
def test_security_is_rated_ok(machine: Machine) -> None:
    for unit in ("mens-supervisor.service", "mens-supervisor-job@x.service"):
        said = machine.run("systemd-analyze", "security", "--no-pager", unit).stdout
        found = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
        assert found is not None and float(found[1]) < 5.0, said


# proves SUP-18: uninstalling removes all of it, but no runs unless that is asked for
def test_uninstalling_leaves_nothing(machine: Machine) -> None:
    runs = sorted(machine.inside(f"{STATE}/runs").iterdir())
    said = machine.run("make", "-C", str(PROJECT), "uninstall-systemd", check=True).stdout
    assert f"KEPT {STATE}/runs" in said
    assert sorted(machine.inside(f"{STATE}/runs").iterdir()) == runs
    said = machine.run("make", "-C", str(PROJECT), "uninstall-systemd", "RUNS=delete", check=True).stdout
    assert f"removed {STATE}" in said
    assert machine.ours() == ""
    accounts = machine.run("getent", "passwd", "mens-supervisor"), machine.run("getent", "group", "mens-supervisor")
    assert [found.stdout for found in accounts] == ["", ""]
    found = machine.run("find", "/etc", "/var", "/run", "-name", "*mens-supervisor*")
    assert found.stdout == ""
