"""Does it fit, and which rung would make it fit; without torch, with the real rungs of the sft kind. proves TRN-16."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from supervisor.config import LoadedConfig, load_config
from supervisor.planning import room
from supervisor.planning.fit import Fit, Room, judge
from supervisor.planning.forecaster import Forecaster, NoForecastError
from supervisor.planning.pace import estimate, measured_rate
from supervisor.planning.plan import judge_config, smaller_model
from supervisor.planning.room import find_room, gpu_room, host_room
from supervisor.planning.wording import verdict
from supervisor.protocol.events import EventLog
from supervisor.protocol.forecast import DataForecast, MemoryForecast, Question
from supervisor.protocol.paths import RunPaths
from supervisor.relief.effective import effective_document
from supervisor.sensors.cgroup import MemoryCgroup
from supervisor.sensors.snapshot import CgroupReading, GpuReading, Unknown
from supervisor.yaml_source import render_yaml

GIB = 1 << 30
CARD = Room("cuda", 16 * GIB, "a card")
BY_PLACE = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.fixture
def config(tmp_path: Path) -> LoadedConfig:
    return configured(tmp_path)


def configured(tmp_path: Path, *sets: str, device: str = "cuda") -> LoadedConfig:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (tmp_path / "run.yaml").write_text(
        f"device: {device}\n"
        "model: {base: Qwen/Qwen3-4B, fallback: {base: Qwen/Qwen3-1.7B}}\n"
        "data: {sources: [{path: rows.jsonl}]}\n"
        "train: {per_device_train_batch_size: 4, max_length: 2048}\n"
    )
    return load_config(tmp_path / "run.yaml", sets)


def simple_model(document: Mapping[str, Any]) -> MemoryForecast:
    """4 GiB of weights (the fallback 1), 2 KiB a token of the micro-batch with checkpointing and 2 MiB without."""
    train, model = document["train"], document["model"]
    tokens = train["per_device_train_batch_size"] * train["max_length"]
    weights = 4 * GIB if model["base"].endswith("4B") else GIB
    size = weights + tokens * ((2 << 10) if train["gradient_checkpointing"] else (2 << 20))
    return MemoryForecast(base=model["base"], peak_bytes=size, tensor_bytes=size)


def rungs_of(fit: Fit) -> list[str]:
    return [step.relief.rung for step in fit.steps]


def test_the_first_rung_that_makes_it_fit_is_the_one_that_the_supervisor_would_come_to(config: LoadedConfig) -> None:
    fit = judge_config(config, CARD, {}, simple_model)
    assert fit.fits is False and fit.forecast.peak_bytes == 20 * GIB
    assert rungs_of(fit) == ["expandable_segments", "halve_micro_batch"]
    assert fit.way_out is not None and fit.way_out.forecast.peak_bytes == 12 * GIB
    assert "halve_micro_batch" in verdict(fit) and "12.0 GiB" in verdict(fit)


def test_the_order_of_the_ladder_is_the_users(tmp_path: Path) -> None:
    config = configured(tmp_path, "relief.ladder=[checkpoint_activations, halve_micro_batch]")
    assert rungs_of(judge_config(config, CARD, {}, simple_model)) == ["checkpoint_activations"]


def test_a_rung_of_the_users_own_is_tried_once(tmp_path: Path) -> None:
    own = "{name: short, set: {train.max_length: 1024}, helps: [cuda_oom], price: shorter}"
    config = configured(tmp_path, f"relief.ladder=[{own}]")
    fit = judge_config(config, Room("cuda", 5 * GIB, "a card"), {}, simple_model)
    assert rungs_of(fit) == ["short"] and fit.way_out is None


def test_the_price_comes_from_the_data(tmp_path: Path) -> None:
    config = configured(tmp_path, "relief.ladder=[shorten_sequence]")
    fit = judge_config(config, CARD, {"histogram": [10] * 32}, simple_model)
    assert "cuts 25.0 % of the rows" in fit.steps[0].relief.price


def test_what_fits_needs_no_relief(config: LoadedConfig) -> None:
    fit = judge_config(config, Room("cuda", 24 * GIB, "a card"), {}, simple_model)
    assert fit.fits and not fit.steps and verdict(fit).startswith("Fits: predicted peak 20.0 GiB of 24.0 GiB")


def test_hopeless_is_only_what_no_relief_brings_near(tmp_path: Path) -> None:
    config = configured(tmp_path, "relief.ladder=[halve_micro_batch]")
    assert judge_config(config, Room("cuda", 6 * GIB, "a card"), {}, simple_model).hopeless  # 8 GiB at micro-batch 1
    assert not judge_config(config, Room("cuda", 7 * GIB, "a card"), {}, simple_model).hopeless
    nothing = configured(tmp_path, "relief.ladder=[]")
    fit = judge_config(nothing, Room("cuda", 15 * GIB, "a card"), {}, simple_model)
    assert fit.hopeless and not fit.steps
    assert not judge_config(nothing, Room("cuda", 16 * GIB, "a card"), {}, simple_model).hopeless  # 20 / 16 < 1.3


def test_an_upper_bound_proves_nothing(tmp_path: Path) -> None:
    def divided(document: Mapping[str, Any]) -> MemoryForecast:
        return msgspec.structs.replace(simple_model(document), at_most=True)

    fit = judge_config(configured(tmp_path, "relief.ladder=[]"), Room("cuda", GIB, "a card"), {}, divided)
    assert fit.fits is False and not fit.hopeless and "at most 20.0 GiB" in verdict(fit)


def test_the_unknown_neither_fits_nor_is_hopeless(config: LoadedConfig) -> None:
    for forecast, there in (
        (lambda _: MemoryForecast(unknown="nobody knows."), CARD),
        (simple_model, Room("cuda", None, "no card here")),
    ):
        fit = judge_config(config, there, {}, forecast)
        assert fit.fits is None and not fit.hopeless and not fit.steps
        assert "not known" in verdict(fit).lower()


def test_the_smaller_model_stands_beside(config: LoadedConfig, tmp_path: Path) -> None:
    found = smaller_model(config, CARD, simple_model)
    assert found is not None
    assert found[0].rung == "switch_model" and found[1].forecast.base == "Qwen/Qwen3-1.7B"
    assert smaller_model(configured(tmp_path, "model.fallback=null"), CARD, simple_model) is None


def test_judging_changes_nothing(config: LoadedConfig) -> None:
    before = effective_document(config.document, {}, [])
    judge(config.document, CARD, config.own.relief.order, lambda _: config.kind.rungs, {}, simple_model)
    assert config.document == before


# --- the memory that there is ---------------------------------------------------------------


def card(index: int, gib: int | Unknown, uuid: str = "") -> GpuReading:
    total = gib * GIB if isinstance(gib, int) else gib
    nothing = Unknown("not read")
    return GpuReading(
        index, uuid or f"GPU-{index}", f"card {index}", total, *(nothing,) * 9  # type: ignore[arg-type]
    )  # fmt: skip


def test_the_card_is_the_one_that_the_trainer_may_use() -> None:
    gpus = (card(0, 8), card(1, 24), card(2, Unknown("x")))
    assert gpu_room(gpus, {}).total == 24 * GIB
    assert gpu_room(gpus, {"CUDA_VISIBLE_DEVICES": "0", **BY_PLACE}).total == 8 * GIB
    assert gpu_room(gpus, {"CUDA_VISIBLE_DEVICES": "GPU-1"}).total == 24 * GIB
    assert gpu_room(gpus, {"CUDA_VISIBLE_DEVICES": "2", **BY_PLACE}).total is None
    assert gpu_room(Unknown("no driver"), {}).total is None


def test_numbers_that_may_mean_another_card_leave_all_of_them() -> None:
    """CUDA's card 0 is the fastest one, and the driver's that in the first slot."""
    gpus = (card(0, 8, "GPU-aa11"), card(1, 80, "GPU-ab22"))
    assert gpu_room(gpus, {"CUDA_VISIBLE_DEVICES": "0"}).total == 80 * GIB
    assert gpu_room(gpus, {"CUDA_VISIBLE_DEVICES": "0", **BY_PLACE}).total == 8 * GIB
    assert gpu_room(gpus, {"CUDA_VISIBLE_DEVICES": "GPU-aa"}).total == 8 * GIB
    assert gpu_room(gpus, {"CUDA_VISIBLE_DEVICES": "GPU-a"}).total is None, "it is the beginning of two"
    assert gpu_room(gpus, {"CUDA_VISIBLE_DEVICES": "0,-1,1", **BY_PLACE}).total == 8 * GIB
    assert gpu_room(gpus, {"CUDA_VISIBLE_DEVICES": "-1"}).total is None


def test_each_process_has_a_card_of_its_own() -> None:
    gpus = (card(0, 8), card(1, 24), card(2, 16))
    assert [gpu_room(gpus, {}, number).total for number in (1, 2, 3)] == [24 * GIB, 16 * GIB, 8 * GIB]
    none = gpu_room(gpus, {}, 4)
    assert none.total is None and "4 processes need as many GPUs" in none.source


def test_the_room_follows_the_device() -> None:
    none = Unknown("no driver")
    assert find_room("cuda", 16, none, {}) == Room("cuda", 16 * GIB, "a GPU of 16 GiB, as asked")
    assert find_room("cuda", None, none, {}).total is None
    assert find_room("auto", None, none, {}).device == "cpu"
    assert find_room("auto", None, (card(0, 8),), {}).device == "cuda"
    assert find_room("cpu", 16, (card(0, 8),), {}) == host_room()
    assert host_room().total


def test_a_control_group_leaves_less(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = host_room()
    group = MemoryCgroup(2, Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/ours"))
    monkeypatch.setattr(room, "find_cgroup", lambda _: group)
    for limit, there in ((GIB, GIB), (1 << 60, whole.total), (None, whole.total), (Unknown("x"), whole.total)):
        reading = CgroupReading(2, "ours", limit, None, Unknown("x"), Unknown("x"))
        monkeypatch.setattr(room, "read_cgroup", lambda _, reading=reading: reading)
        assert host_room().total == there


# --- the program that answers ---------------------------------------------------------------

ANSWERS = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    print("noise", file=sys.stderr)
    print(json.dumps({"base": asked["document"]["base"], "peak_bytes": 7}), flush=True)
"""
ASKED = Question("memory", {"base": "b"}, "cuda")


def forecaster(code: str, patience: float = 60.0, **options: Any) -> Forecaster:
    return Forecaster([sys.executable, "-c", code], {}, patience, **options)


def test_questions_are_answered_one_after_the_other() -> None:
    with forecaster(ANSWERS) as asked:
        assert asked.memory(ASKED).peak_bytes == 7
        assert asked.memory(Question("memory", {"base": "c"}, "cpu")).base == "c"


@pytest.mark.parametrize(
    ("code", "patience", "said"),
    [
        ("import sys; print('out of luck', file=sys.stderr); sys.exit(3)", 60.0, "exit status 3: out of luck"),
        ("import sys; sys.exit('HF_TOKEN=hf_abcdefghijklmnop is bad')", 60.0, r"is bad$"),
        ("import time; time.sleep(600)", 0.2, "no answer within"),
        ("input(); print('what?', flush=True); input()", 60.0, "cannot be understood"),
    ],
)
def test_no_answer_is_said_to_be_none(code: str, patience: float, said: str) -> None:
    with forecaster(code, patience) as asked, pytest.raises(NoForecastError, match=said) as caught:
        asked.memory(ASKED)
    assert "hf_abcdef" not in str(caught.value)


def test_nobody_waits_who_does_not_want_to() -> None:
    with (
        forecaster("import time; time.sleep(600)", going_on=lambda: False) as asked,
        pytest.raises(NoForecastError, match="not waited for"),
    ):
        asked.memory(ASKED)


def test_a_program_that_cannot_be_started() -> None:
    with Forecaster(["/nowhere/python"], {}, 1.0) as asked, pytest.raises(NoForecastError, match="cannot be started"):
        asked.memory(ASKED)


# --- time -----------------------------------------------------------------------------------


def past_run(folder: Path, config: LoadedConfig, rates: list[float]) -> None:
    paths = RunPaths(folder)
    folder.mkdir(parents=True)
    paths.run_yaml.write_text(render_yaml(config.document))
    log = EventLog(paths.events, "trainer", 1)
    for step, rate in enumerate(rates, start=1):
        log.append("progress", step=step, tokens_per_second=rate)


def test_time_comes_from_runs_alike_or_is_unknown(
    config: LoadedConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MENS_CACHE", str(tmp_path / "cache"))
    runs = tmp_path / "runs"
    data = DataForecast(planned_tokens=60_000, planned_steps=10)
    nothing = estimate(config, data, runs)
    assert nothing.seconds is None and "--probe" in nothing.source
    past_run(runs / "other", configured(tmp_path, "model.base=Qwen/Qwen3-8B"), [1.0] * 5)
    assert estimate(config, data, runs).seconds is None
    for unlike in ("train.max_length=512", "train.per_device_train_batch_size=1", "train.gradient_checkpointing=true",
                   "train.packing=false", "model.lora.r=4", "launch.processes=2"):  # fmt: skip
        past_run(runs / unlike, configured(tmp_path, unlike), [1.0] * 5)
        assert estimate(config, data, runs).seconds is None, unlike
    past_run(runs / "longer", configured(tmp_path, "train.learning_rate=1e-5"), [1.0, 1.0, 99.0, 100.0, 101.0])
    found = estimate(config, data, runs)
    assert found.seconds == 600.0 and "longer" in found.source
    assert estimate(config, DataForecast(unknown="x"), runs).seconds is None
    (runs / "broken").mkdir()
    (runs / "broken" / "run.yaml").write_text("kind: sft\nmodel: 5\n")
    assert estimate(config, data, runs).seconds == 600.0


def test_the_first_steps_are_left_out_of_the_speed(config: LoadedConfig, tmp_path: Path) -> None:
    past_run(tmp_path / "run", config, [1.0, 1.0])
    assert measured_rate(tmp_path / "run") is None


def test_answers_survive_the_way() -> None:
    forecast = MemoryForecast(base="b", parts={"weights": 3}, peak_bytes=3)
    assert msgspec.json.decode(msgspec.json.encode(forecast), type=MemoryForecast) == forecast
