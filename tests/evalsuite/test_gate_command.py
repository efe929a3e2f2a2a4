"""`mens-sup eval gate`: what is missing or differs ends with exit code 2 and the reason, never with a pass."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from evaluated import ToyModel, evaluated, write_bench, write_gate
from ruamel.yaml import YAML

from evalsuite.baselines import remember_baseline
from evalsuite.gate_result import GateVerdict, read_gate
from evalsuite.scores import SCORES_NAME, read_scores, write_scores
from rft.store import STORE_NAME
from supervisor.cli import main


@pytest.fixture(scope="module")
def evaluations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bench, the base's evaluation, a candidate's, and a worse candidate's."""
    folder = tmp_path_factory.mktemp("evaluations")
    bench = write_bench(folder)
    evaluated(bench, folder / "base", ToyModel())
    evaluated(bench, folder / "candidate", ToyModel("a1"), seed=8)
    evaluated(bench, folder / "worse", ToyModel("a2", drop=0.8), seed=9)
    return folder


@pytest.fixture
def place(evaluations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy that may be spoilt."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copytree(evaluations, tmp_path / "work"))


def gated(gate: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["eval", "gate", str(gate)])
    said = capsys.readouterr()
    assert not said.err
    result = read_gate(gate.with_name("gate.result.json"))
    assert result.verdict.exit_code == code
    return code, said.out


# proves EVL-2: the exit codes of a gate, and its artefact with the digests of all that was read
def test_a_gate_passes_fails_and_says_what_it_read(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = gated(write_gate(place), capsys)
    assert code == 0 and "toy: PASS" in said and "smallest drop that it finds" in said
    result = read_gate(place / "gate.result.json")
    digests = {each.role: each.sha256 for each in result.inputs}
    assert set(digests) == {"gate", "bench", "candidate", "base"}
    candidate = read_scores(place / "candidate")
    assert digests["bench"] == candidate.bench.digest
    assert json.loads((place / "candidate" / SCORES_NAME).read_text())["sha256"] == digests["candidate"]
    assert [each.model.adapter for each in result.inputs if each.model] == ["a1", None]
    code, said = gated(write_gate(place, candidate="worse"), capsys)
    assert code == 1 and "worse beyond doubt" in said
    code, said = gated(write_gate(place, checks=[{"margin": 0.001}]), capsys)
    assert code == 3 and "tasks of this kind" in said


def without_base(place: Path) -> None:
    shutil.rmtree(place / "base")


def without_base_scores(place: Path) -> None:
    (place / "base" / SCORES_NAME).unlink()


def without_bench(place: Path) -> None:
    (place / "bench.yaml").unlink()


def without_tasks(place: Path) -> None:
    (place / "sums.jsonl").unlink()


def with_other_tasks(place: Path) -> None:
    write_bench(place, change=lambda at: "Think." if at == 3 else "")


def with_fewer_tasks(place: Path) -> None:
    write_bench(place, tasks=39)


def without_half_of_the_samples(place: Path) -> None:
    with sqlite3.connect(place / "candidate" / STORE_NAME) as db:
        db.execute("DELETE FROM sample WHERE place >= 2")
    db.close()


def without_half_of_the_scores(place: Path) -> None:
    scores = read_scores(place / "base")
    half = scores.tasks[::2]
    missing = tuple(task.task for task in scores.tasks[1::2])
    write_scores(place / "base", msgspec.structs.replace(scores, tasks=half, missing=missing, whole=False))
    (place / "base" / STORE_NAME).unlink()


def without_samples(place: Path) -> None:
    (place / "candidate" / STORE_NAME).unlink()


def with_the_base_as_candidate(place: Path) -> None:
    shutil.rmtree(place / "candidate")
    evaluated(place / "bench.yaml", place / "candidate", ToyModel())


def with_an_adapter_of_no_effect(place: Path) -> None:
    shutil.rmtree(place / "candidate")
    evaluated(place / "bench.yaml", place / "candidate", ToyModel("a1", effect=0.0))


def with_an_unproven_adapter(place: Path) -> None:
    shutil.rmtree(place / "candidate")
    evaluated(place / "bench.yaml", place / "candidate", ToyModel("a1", effect=None))


def with_another_template(place: Path) -> None:
    shutil.rmtree(place / "candidate")
    model = ToyModel("a1")
    model.template = "t2"
    evaluated(place / "bench.yaml", place / "candidate", model)


def with_other_sampling(place: Path) -> None:
    shutil.rmtree(place / "candidate")
    sampling = {"samples_per_task": 4, "temperature": 0.3}
    evaluated(place / "bench.yaml", place / "candidate", ToyModel("a1"), sampling=sampling)


def with_changed_scores(place: Path) -> None:
    path = place / "candidate" / SCORES_NAME
    document = json.loads(path.read_text())
    task = document["scores"]["tasks"][0]
    task["accepted"], task["values"]["accepted"] = 4, [1.0] * 4
    path.write_text(json.dumps(document))


def with_scores_of_others(place: Path) -> None:
    shutil.copy(place / "worse" / SCORES_NAME, place / "candidate" / SCORES_NAME)


def with_both_cut_short(place: Path) -> None:
    """Two models that may say one token are equal."""
    for role, model in (("candidate", ToyModel("a1")), ("base", ToyModel())):
        shutil.rmtree(place / role)
        evaluated(place / "bench.yaml", place / role, model, sampling={"samples_per_task": 4, "max_new_tokens": 1})


def with_an_empty_store(place: Path) -> None:
    (place / "candidate" / STORE_NAME).write_bytes(b"")


def without_a_table(place: Path) -> None:
    with sqlite3.connect(place / "candidate" / STORE_NAME) as db:
        db.execute("DROP TABLE sample")
    db.close()


def with_a_torn_configuration(place: Path) -> None:
    (place / "candidate" / "run.yaml").write_text("{[")


def with_an_empty_configuration(place: Path) -> None:
    (place / "candidate" / "run.yaml").write_text("")


def with_scores_nested_without_end(place: Path) -> None:
    (place / "base" / SCORES_NAME).write_text('{"scores":' + '{"a":' * 3000 + "1" + "}" * 3000 + "}")


# proves EVL-2: a gate cannot be skipped by taking something away, or by comparing what is not comparable
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (without_base, "base does not exist"),
        (without_base_scores, "nothing was evaluated there"),
        (without_bench, "bench.yaml: there is no such file"),
        (without_tasks, "sums.jsonl"),
        (with_other_tasks, "asks other tasks"),
        (with_fewer_tasks, "asks other tasks"),
        (without_half_of_the_samples, "its scores are not those of its samples"),
        (without_half_of_the_scores, "20 of 40 tasks have no score"),
        (without_samples, "scores and no samples"),
        (with_the_base_as_candidate, "it is the base itself, without an adapter"),
        (with_an_adapter_of_no_effect, "the adapter was not applied"),
        (with_an_unproven_adapter, "was not measured that the adapter"),
        (with_another_template, "another chat template"),
        (with_other_sampling, "temperature 1, the candidate with 0.3"),
        (with_changed_scores, "changed by hand"),
        (with_scores_of_others, "its scores are not those of its samples"),
        (with_both_cut_short, "max_new_tokens 256, the candidate with 1"),
        (with_an_empty_store, "no such table"),
        (without_a_table, "no such table"),
        (with_a_torn_configuration, "is not valid YAML"),
        (with_an_empty_configuration, "holds no configuration"),
        (with_scores_nested_without_end, "is no file of scores"),
    ],
)
def test_a_gate_is_never_skipped(
    place: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], None], reason: str
) -> None:
    spoil(place)
    code, said = gated(write_gate(place), capsys)
    assert code == 2 and "COULD NOT BE JUDGED" in said and reason in said, said
    assert not read_gate(place / "gate.result.json").checks


# proves EVL-3: the adapter that is to be released must be the one that was evaluated
def test_another_adapter_is_no_candidate(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = gated(write_gate(place, adapter="gone"), capsys)
    assert code == 2 and "has no adapter that can be read" in said
    (place / "other").mkdir()
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        (place / "other" / name).write_text("{}")
    code, said = gated(write_gate(place, adapter="other"), capsys)
    assert code == 2 and "is not what was evaluated as the candidate" in said


# proves EVL-2: a release that is named must be there
def test_the_release_is_a_reference(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = gated(write_gate(place, release="released"), capsys)
    assert code == 2 and "release:" in said and "does not exist" in said
    code, said = gated(write_gate(place, release="candidate"), capsys)
    assert code == 2 and "it is the candidate's own evaluation" in said
    code, said = gated(write_gate(place, candidate="worse", release="candidate"), capsys)
    assert code == 1 and "against release" in said
    code, said = gated(write_gate(place, release="base"), capsys)
    assert code == 2 and "release: it is the base itself, without an adapter" in said


# proves EVL-2: a baseline is asked once and found again by what it is a baseline of
def test_baselines_are_cached_by_digest(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gate = write_gate(place, base="cached")
    code, said = gated(gate, capsys)
    assert code == 2 and "no scores of toy on sums are cached" in said
    assert remember_baseline(read_scores(place / "candidate")) is None, "not a base"
    assert remember_baseline(read_scores(place / "base")) is not None
    shutil.rmtree(place / "base")
    code, said = gated(gate, capsys)
    assert code == 0, said
    with_other_sampling(place)
    assert gated(gate, capsys)[0] == 2


# proves EVL-2: whatever goes wrong, the verdict of an earlier gate does not stand
def test_an_old_pass_does_not_survive_a_broken_gate(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gate = write_gate(place)
    assert gated(gate, capsys)[0] == 0
    gate.write_text("name: toy\nbenches: []\n")
    assert main(["eval", "gate", str(gate)]) == 2
    assert "gate.yaml:2: benches must be a list of at least 1" in capsys.readouterr().err
    assert not (place / "gate.result.json").exists()


# proves EVL-2: the result takes no other file's place
def test_a_result_overwrites_nothing_else(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gate = write_gate(place)
    for name in ("gate.yaml", "bench.yaml", "candidate/samples.sqlite", "base/scores.json"):
        before = (place / name).read_bytes()
        assert main(["eval", "gate", str(gate), "--out", str(place / name)]) == 2
        assert "no result of a gate" in capsys.readouterr().err and (place / name).read_bytes() == before
    assert gated(gate, capsys)[0] == gated(gate, capsys)[0] == 0


# proves EVL-2: a gate's file is read strictly
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"checks": [{"rule": "not_worse"}]}, "needs the margin"),
        ({"checks": [{"rule": "better", "margin": 0.1}]}, "has no margin"),
        ({"checks": [{"margin": 0.1, "against": ["release"]}]}, "and release is none"),
        ({"checks": [{"margin": 0.1, "metric": "pass@x"}]}, "is no metric"),
        ({"checks": [{"rule": "better"}], "sequential": {}}, "needs sequential.effect"),
        ({"checks": [{"margin": 0.1}], "margn": 2}, "is not a known key"),
        ({"checks": [{"margin": 1.5}]}, "less than 1"),
    ],
)
def test_a_wrong_gate_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, object], reason: str
) -> None:
    gate = write_gate(place, **changed)
    assert main(["eval", "gate", str(gate)]) == 2
    said = capsys.readouterr().err
    assert reason in said and "gate.yaml:" in said and "Traceback" not in said


# proves EVL-1: a bound that hardly any draw lies beyond is none
def test_too_few_draws_for_the_confidence_are_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gate = write_gate(place)
    gate.write_text(gate.read_text() + "draws: 1000\nconfidence: 0.999\n")
    assert main(["eval", "gate", str(gate)]) == 2
    said = capsys.readouterr().err
    assert "gate.yaml" in said and "set draws to 5000 or more" in said and "Traceback" not in said


# proves EVL-2: for programs as well
def test_json(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = place / "here.json"
    assert main(["eval", "gate", str(write_gate(place)), "--json", "--out", str(out)]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["verdict"] == "pass" and plain["checks"][0]["method"] == "bounded"
    assert read_gate(out).verdict is GateVerdict.PASS


# proves EVL-1: two evaluations side by side, and what may not be compared
def test_compare(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "compare", str(place / "base"), str(place / "worse"), "--metric", "pass@2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    metric = found["metrics"][0]
    assert found["tasks"] == 40 and metric["metric"] == "pass@2"
    assert metric["low"] < metric["difference"] < metric["high"] < 0 and metric["p_value"] < 0.01
    assert metric["difference"] == pytest.approx(metric["second"] - metric["first"])
    assert metric["better"] + metric["worse"] + metric["same"] == 40
    page = place / "compared.html"
    assert main(["eval", "compare", str(place / "base"), str(place / "candidate"), f"--html={page}"]) == 0
    assert "accepted" in capsys.readouterr().out
    assert "Paired differences with intervals" in page.read_text() and "Samples side by side" in page.read_text()
    with_other_sampling(place)
    assert main(["eval", "compare", str(place / "base"), str(place / "candidate")]) == 2
    assert "cannot be compared: first: it was sampled with temperature 1" in capsys.readouterr().err


# proves EVL-2: what a bench can tell, before and after it was asked
def test_power(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def planned(*words: str) -> dict[str, float]:
        assert main(["eval", "power", *words, "--json"]) == 0
        found: dict[str, float] = json.loads(capsys.readouterr().out)
        return found

    bench = planned(str(place / "bench.yaml"), "--samples", "4")
    known = planned(str(place / "base"), "--samples", "4", "--effect", "0.02")
    more = planned(str(place / "base"), "--samples", "16", "--effect", "0.02")
    assert bench["tasks"] == known["tasks"] == 40 and bench["spread_out"] > known["spread_out"] > more["spread_out"]
    assert known["spread_out"] < known["whole_tasks"] and known["spread_out"] < known["sequential"]
    assert known["tasks_spread_out"] == pytest.approx(40 * (known["spread_out"] / 0.02) ** 2, rel=0.01)
    assert more["tasks_spread_out"] < known["tasks_spread_out"] < known["tasks_whole"]
    pair = planned(str(place / "base"), "--against", str(place / "worse"))
    assert pair["spread_out"] > known["spread_out"], "a change of its own adds to the noise"
    assert main(["eval", "power", str(place / "bench.yaml")]) == 2
    assert "--samples N" in capsys.readouterr().err
    document = YAML(typ="safe").load(place / "bench.yaml")
    assert document["sampling"]["samples_per_task"] == 4


# proves EVL-2: bad numbers are one sentence, and pass@k of all samples has the noise of one answer a task
def test_power_of_what_is_absurd(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = [str(place / "bench.yaml"), "--samples", "4"]
    for words in (
        ["--confidence", "0.000000001"], ["--confidence", "0.5", "--power", "0.5"], ["--effect", "1e-300"],
        ["--tasks", "9" * 400], ["--samples", "9" * 400], ["--power", "0.1"],
    ):  # fmt: skip
        with pytest.raises(SystemExit) as ended:
            main(["eval", "power", *bench, *words])
        assert ended.value.code == 2 and f"argument {words[0]}" in capsys.readouterr().err
    assert main(["eval", "power", str(place / "base"), "--metric", "pass@4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    mean = sum(task.accepted > 0 for task in read_scores(place / "base").tasks) / 40
    assert found["spread_out"] == pytest.approx(2.4865 * (2 * mean * (1 - mean) / 40) ** 0.5, rel=1e-3)
