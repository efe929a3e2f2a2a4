"""What the daemon decides, by values alone: whose turn it is, what an end means, when a schedule comes."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from scripted_runs import wait_for

sys.path.insert(0, str(Path(__file__).parents[1] / "stand_ins" / "nvml"))

from fake_driver import FakeDriver

from supervisor.daemon.cards import Before, Cards, held_memory
from supervisor.daemon.cron import trigger_of
from supervisor.daemon.sd_notify import Notifier
from supervisor.daemon.service import EntryState, NotPossibleError
from supervisor.daemon.systemd import jobs_restart
from supervisor.daemon.turns import Candidate, Holding, Resources, decide
from supervisor.daemon.verdict import MOST_CRASHES, Ended, judge
from supervisor.sensors.gpu import GpuSensor
from supervisor.sensors.snapshot import GpuProcess, GpuReading, Unknown
from supervisor.state import Outcome, RunState

NOTHING = Resources((), {})
TWO_GPUS = Resources(("GPU-a", "GPU-b"), {})


def job(number: int, device: str = "auto", processes: int = 1, priority: int = 0, resumed: bool = False) -> Candidate:
    return Candidate(number, f"job-{number}", priority, resumed, device, processes, {})


def starts(resources: Resources, *jobs: Candidate) -> dict[int, tuple[str, ...]]:
    return {turn.id: turn.resources for turn in decide(jobs, resources) if turn.resources}


# proves SUP-18: one lease at a time, by priority, and what has begun first
def test_turns() -> None:
    assert starts(NOTHING, job(1), job(2)) == {1: ("cpu",)}
    assert starts(NOTHING, job(1), job(2, priority=1)) == {2: ("cpu",)}
    assert starts(NOTHING, job(1, priority=9), job(2, resumed=True)) == {2: ("cpu",)}
    assert starts(TWO_GPUS, job(1), job(2), job(3)) == {1: ("GPU-a",), 2: ("GPU-b",)}
    assert starts(TWO_GPUS, job(1, device="cpu"), job(2, device="cuda")) == {1: ("cpu",), 2: ("GPU-a",)}
    assert starts(TWO_GPUS, job(1, processes=2), job(2)) == {1: ("GPU-a", "GPU-b")}
    assert starts(NOTHING, job(1, device="cuda")) == {1: ("cpu",)}  # its run says why it can't work


def test_who_needs_several_gpus_is_not_overtaken() -> None:
    busy = replace(TWO_GPUS, held={"GPU-a": Holding(9, "long", ended=False)})
    assert starts(busy, job(1, processes=2), job(2)) == {}
    reasons = {turn.id: turn.why for turn in decide((job(1, processes=2), job(2)), busy)}
    assert reasons[1] == "It needs 2 GPUs. GPU-a is held by entry 9 (long)."
    assert "GPU-b: entry 1 (job-1) is to have it" in reasons[2]


def test_gpus_that_are_not_known_are_not_guessed() -> None:
    unknown = Resources(None, {}, "the NVIDIA driver hangs: no answer within 5 s")
    assert starts(unknown, job(1), job(2, device="cpu")) == {2: ("cpu",)}
    (turn,) = decide((job(1),), unknown)
    assert turn.why == "Which GPUs there are is not known: the NVIDIA driver hangs: no answer within 5 s."


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (EntryState.RUNNING, "It follows entry 7."),
        (EntryState.FAILED, "`mens-sup resume 7` tries that again"),
        (EntryState.CANCELLED, "was cancelled"),
        (EntryState.PAUSED, "is paused"),
    ],
)
def test_who_follows_another_is_blocked_until_that_completes(state: EntryState, words: str) -> None:
    (turn,) = decide((replace(job(8), after={7: state}),), NOTHING)
    assert turn.blocked and not turn.resources and words in turn.why
    (turn,) = decide((replace(job(8), after={7: EntryState.COMPLETED}),), NOTHING)
    assert turn.resources == ("cpu",)


def run(outcome: Outcome, pid: int = 5, step: int = 3) -> RunState:
    return RunState(
        id="r", kind="sft", max_attempts=5, outcome=outcome, supervisor_pid=pid, step=step, explanation="E."
    )


def ended(state: RunState | None, wish: str = "", **more: object) -> Ended:
    given = {"output": "", "rebooted": False, "trainer_alive": False, **more}
    return Ended(wish=wish, run=state, pid=5, **given)  # type: ignore[arg-type]


# proves SUP-18: what the end of a supervisor means
@pytest.mark.parametrize(
    ("end", "state"),
    [
        (ended(run(Outcome.COMPLETED)), EntryState.COMPLETED),
        (ended(run(Outcome.COMPLETED), "cancel"), EntryState.COMPLETED),
        (ended(run(Outcome.GAVE_UP)), EntryState.FAILED),
        (ended(run(Outcome.GAVE_UP), "cancel"), EntryState.CANCELLED),
        (ended(run(Outcome.STOPPED), "pause"), EntryState.PAUSED),
        (ended(run(Outcome.STOPPED), "cancel"), EntryState.CANCELLED),
        (ended(run(Outcome.STOPPED), "yield"), EntryState.WAITING),
        (ended(run(Outcome.STOPPED)), EntryState.PAUSED),
        (ended(run(Outcome.STOPPED), rebooted=True), EntryState.WAITING),
        (ended(run(Outcome.RUNNING), rebooted=True), EntryState.WAITING),
        (ended(run(Outcome.RUNNING), "pause"), EntryState.PAUSED),
        (ended(run(Outcome.RUNNING), "yield", trainer_alive=True), EntryState.WAITING),
        (ended(None, output="x.yaml:3: no good."), EntryState.FAILED),
        (ended(run(Outcome.STOPPED, pid=4), output="Its hours are used up."), EntryState.FAILED),
        (ended(None, "cancel"), EntryState.CANCELLED),
    ],
)
def test_what_an_end_means(end: Ended, state: EntryState) -> None:
    verdict = judge(end)
    assert (verdict.state, verdict.again) == (state, False)


def test_a_refusal_is_told_in_its_own_words() -> None:
    assert judge(ended(None, output="\nx.yaml:3: no good.\n")).explanation == "x.yaml:3: no good."


def test_a_supervisor_that_died_is_started_again_but_not_for_ever() -> None:
    end = ended(run(Outcome.RUNNING))
    for _ in range(MOST_CRASHES):
        verdict = judge(end)
        assert verdict.again
        end = replace(end, crashes=verdict.crashes, mark=verdict.mark)
    assert judge(replace(end, trainer_alive=True)).again  # somebody has to look after it
    assert judge(end).state is EntryState.FAILED and not judge(end).again
    assert judge(replace(end, run=run(Outcome.RUNNING, step=4))).crashes == 1  # it has got ahead


@pytest.mark.parametrize(
    ("wish", "state", "begun", "words"),
    [
        ("cancel", EntryState.CANCELLED, None, "Cancelled before it began."),
        ("pause", EntryState.PAUSED, None, "Paused before it began."),
        ("yield", EntryState.WAITING, None, "stopped before it began"),
        ("cancel", EntryState.CANCELLED, run(Outcome.STOPPED, pid=4), "Cancelled before it went on."),
    ],
)
def test_who_is_stopped_before_it_has_the_run_has_not_died(
    wish: str, state: EntryState, begun: RunState | None, words: str
) -> None:
    verdict = judge(ended(begun, wish))
    assert verdict.state is state and words in verdict.explanation
    assert not judge(ended(begun, "pause", trainer_alive=True)).state.ended  # somebody has to look after that one


def test_pausing_waits_for_a_trainer_whose_supervisor_died() -> None:
    assert judge(ended(run(Outcome.RUNNING), "pause", trainer_alive=True)).again


# proves SUP-18: schedules mean what they mean to cron
@pytest.mark.parametrize(
    ("cron", "first"),
    [
        ("0 2 * * *", "2026-12-01 02:00"),
        ("30 4 * * 0", "2026-12-06 04:30"),  # a Sunday, as 7 is
        ("30 4 * * 7", "2026-12-06 04:30"),
        ("0 0 * * 1-5", "2026-12-01 00:00"),
        ("0 0 * * 6,0", "2026-12-05 00:00"),
        ("0 0 * * */3", "2026-12-02 00:00"),  # Sunday, Wednesday, Saturday
        ("0 0 * * fri", "2026-12-04 00:00"),
        ("*/15 * * * *", "2026-11-30 12:15"),
        ("0 0 1 1 *", "2027-01-01 00:00"),
    ],
)
def test_cron(cron: str, first: str) -> None:
    trigger = trigger_of(cron)
    noon = datetime(2026, 11, 30, 12, 1, tzinfo=ZoneInfo("UTC"))
    trigger.timezone = noon.tzinfo
    assert trigger.get_next_fire_time(None, noon).strftime("%Y-%m-%d %H:%M") == first


@pytest.mark.parametrize(
    "cron", ["", "daily", "0 2 * *", "61 * * * *", "0 0 30 2 *", "0 0 * * 8", "0 0 1 * 1", "a b c d e"]
)
def test_what_is_no_schedule_is_refused(cron: str) -> None:
    with pytest.raises(NotPossibleError):
        trigger_of(cron)


def card(processes: tuple[GpuProcess, ...] | Unknown, used: int = 0) -> GpuReading:
    unknown = Unknown("not asked")
    return GpuReading(
        0,
        "GPU-a",
        "card",
        100_000,
        used,
        100_000 - used,
        unknown,
        unknown,
        unknown,
        unknown,
        unknown,
        unknown,
        processes,
    )


# proves SUP-18: a card is handed over only when its memory is really free
def test_what_a_dead_process_still_holds_keeps_the_card_back() -> None:
    dead, alive = GpuProcess(44, 3 << 30, Unknown("gone")), GpuProcess(45, 1 << 30, "firefox", "anna")
    assert held_memory(card((alive,)), Before(0, ()), 1.0) == ""
    assert "process 44, which has ended" in held_memory(card((alive, dead)), Before(0, ()), 1.0)
    assert "Reboot" in held_memory(card((dead,)), Before(0, ()), 999.0)
    assert held_memory(card((dead,)), Before(0, (44,)), 1.0) == ""  # it was there before


def test_memory_that_the_driver_tells_nobody_of_is_compared_with_before() -> None:
    blind = Unknown("another namespace")
    assert held_memory(card(blind, 2_000), Before(1_000, None), 1.0) == ""
    assert "more than before" in held_memory(card(blind, 50_000), Before(1_000, None), 1.0)
    assert held_memory(card(blind, 50_000), Before(1_000, None), 999.0) == ""


# proves SUP-18: the cards that there are, by the real pynvml and the stand-in driver
def test_cards_are_named_and_watched(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path)
    cards = Cards(GpuSensor(driver.environment))
    assert cards.names is None and not cards.fresh
    try:
        wait_for(lambda: (cards.look(), cards.fresh)[1])
        assert cards.names == ("GPU-8f3a",)
        before = cards.before(("GPU-8f3a",))
        assert cards.still_held("GPU-8f3a", before, 0.0) == ""
        assert cards.still_held("GPU-gone", before, 0.0) == ""
    finally:
        cards.rest()


def test_a_machine_without_a_driver_has_no_cards_and_one_whose_driver_hangs_is_not_known(tmp_path: Path) -> None:
    cards = Cards(GpuSensor({**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}))
    hung = Cards(GpuSensor(FakeDriver(tmp_path / "d").environment, first_deadline=0.0))
    try:
        wait_for(lambda: (cards.look(), cards.fresh)[1])
        wait_for(lambda: (hung.look(), hung.fresh)[1])
        assert cards.names == ()
        assert hung.names is None and hung.unknown.startswith("the NVIDIA driver hangs")
    finally:
        cards.rest()
        hung.rest()


def test_a_restart_is_told_from_a_stop() -> None:
    listed = "12 mens-supervisor.service restart running\n13 other.service stop waiting\n"
    assert jobs_restart(listed, "mens-supervisor.service")
    assert not jobs_restart(listed, "other.service")
    assert not jobs_restart("No jobs running.\n", "mens-supervisor.service")


# proves SUP-18: Type=notify
def test_what_systemd_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "n"))
        notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "n"), "WATCHDOG_USEC": "60000000"})
        notifier.ready()
        notifier.status("one runs")
        notifier.status("one runs")
        notifier.alive()
        notifier.stopping()
        said = [systemd.recv(999).decode() for _ in range(4)]
    assert said == ["READY=1", "STATUS=one runs", "WATCHDOG=1", "STOPPING=1"]
    assert notifier.watchdog_seconds == 60.0
    notifier.alive()  # nobody listens any more
    assert Notifier({"WATCHDOG_USEC": "60000000"}).watchdog_seconds is None
