"""The gates of a finished training, and what may be exported. # proves EVL-6"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from eval_runs import sealed
from evaluated import ToyModel, evaluated, write_bench, write_gate
from ruamel.yaml import YAML

from evalsuite.after_run import StoppedError, judge_run, trained
from evalsuite.gate_result import GateVerdict
from rft.samplers.weights import adapter_digest
from supervisor.cli import main
from supervisor.problems import InputError
from supervisor.protocol.events import read_events
from supervisor.protocol.paths import RunPaths

TEMPLATE = "ab" * 32


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run that has trained for three steps, with a gate in its configuration."""
    write_bench(tmp_path)
    gate = write_gate(tmp_path, candidate="run", base="cached")
    folder = tmp_path / "runs" / "r"
    checkpoint = folder / "checkpoints" / "step-00000003"
    checkpoint.mkdir(parents=True)
    (checkpoint / "adapter_config.json").write_text("{}")
    (checkpoint / "adapter_model.safetensors").write_bytes(SAFETENSORS)
    (checkpoint / "chat_template.jinja").write_text("{{ messages }}")
    (checkpoint / "template.json").write_text(json.dumps({"template_hash": TEMPLATE}))
    (checkpoint / "sources.json").write_text(json.dumps([{"path": "a|b.jsonl", "rows": 7}]))
    (checkpoint / "run_config.json").write_text(json.dumps({"train": {"learning_rate": 0.0002, "seed": 3}}))
    sealed(checkpoint, TEMPLATE, "toy")
    (folder / "best").symlink_to("checkpoints/step-00000003")
    document = {"name": "r", "kind": "sft", "model": {"base": "toy"}, "gates": [str(gate)]}
    YAML(typ="safe").dump(document, RunPaths(folder).run_yaml)
    return folder


SAFETENSORS = b'\x08\x00\x00\x00\x00\x00\x00\x00{}      '


class Evaluations:
    """`mens-sup eval run` on the toy model; ``drop``: how often the adapter spoils an answer."""

    def __init__(self, drop: float = 0.0, code: int = 0) -> None:
        self._drop, self._code = drop, code
        self.asked: list[Sequence[str]] = []

    def __call__(self, arguments: Sequence[str]) -> int:
        self.asked.append(arguments)
        if self._code:
            return self._code
        given = dict(zip(arguments[1::2], arguments[2::2], strict=True))
        model = ToyModel()
        if "--adapter" in given:
            model = ToyModel(adapter_digest(Path(given["--adapter"])), drop=self._drop)
        out = Path(given["--out"])
        out.mkdir(parents=True, exist_ok=True)
        evaluated(Path(arguments[0]), out, model)
        return 0


def judged(run_dir: Path, evaluations: Evaluations) -> GateVerdict:
    return judge_run(trained(run_dir), run_dir.parents[1] / "gate.yaml", evaluations).verdict


def test_a_run_is_judged_once_and_its_base_is_asked_once(run_dir: Path) -> None:
    first = Evaluations()
    assert judged(run_dir, first) is GateVerdict.PASS
    assert [("--adapter" in asked, "--template-of" in asked) for asked in first.asked] == [(True, False), (False, True)]
    (event,) = [event for event in read_events(RunPaths(run_dir).events) if event.kind == "gate"]
    assert event.data["verdict"] == "pass" and event.data["gate"] == "toy"
    assert (run_dir / event.data["result"]).is_file()
    again = Evaluations()
    assert judged(run_dir, again) is GateVerdict.PASS and again.asked == []
    shutil.rmtree(run_dir / "eval")
    assert judged(run_dir, again) is GateVerdict.PASS
    assert ["--adapter" in asked for asked in again.asked] == [True], "the base is in the cache"


def test_a_better_checkpoint_is_judged_anew(run_dir: Path) -> None:
    assert judged(run_dir, Evaluations()) is GateVerdict.PASS
    newer = run_dir / "checkpoints" / "step-00000006"
    shutil.copytree(run_dir / "best", newer)
    (newer / "adapter_config.json").write_text('{"r": 8}')
    (newer / "manifest.json").unlink()
    sealed(newer, TEMPLATE, "toy")
    (run_dir / "best").unlink()
    (run_dir / "best").symlink_to("checkpoints/step-00000006")
    worse = Evaluations(drop=0.9)
    assert judged(run_dir, worse) is GateVerdict.FAIL and len(worse.asked) == 1


def test_what_was_judged_is_known_only_of_what_was_judged(run_dir: Path) -> None:
    assert judged(run_dir, Evaluations()) is GateVerdict.PASS
    other = write_bench(run_dir.parents[1], change=lambda at: "Think." if at == 3 else "")
    refuses = Evaluations(code=2)
    assert judged(run_dir, refuses) is GateVerdict.UNJUDGED and refuses.asked, "the bench asks something else"
    write_bench(other.parent)
    assert judged(run_dir, refuses) is GateVerdict.PASS
    judged_another(run_dir)
    assert judged(run_dir, refuses) is GateVerdict.UNJUDGED, "another adapter in the same place"


def test_a_stop_leaves_no_verdict_and_a_failure_is_never_a_pass(run_dir: Path) -> None:
    with pytest.raises(StoppedError):
        judged(run_dir, Evaluations(code=3))
    assert not list(run_dir.glob("eval/*/gate.json"))
    assert judged(run_dir, Evaluations(code=1)) is GateVerdict.UNJUDGED
    assert judged(run_dir, Evaluations()) is GateVerdict.PASS, "what could not be judged is tried again"


def test_benches_that_would_share_a_folder_are_refused(run_dir: Path) -> None:
    gate = run_dir.parents[1] / "gate.yaml"
    document = YAML(typ="safe").load(gate)
    document["benches"] *= 2
    YAML(typ="safe").dump(document, gate)
    with pytest.raises(InputError, match="2 benches have files of the name bench"):
        judged(run_dir, Evaluations())


def export(run_dir: Path, *more: str) -> int:
    return main(["export", str(run_dir), "--out", str(run_dir.parents[1] / "out"), *more])


def test_only_what_its_gates_pass_is_exported(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run_dir.parents[1] / "out"
    assert export(run_dir) == 2
    said = capsys.readouterr().err
    assert "toy has not judged step-00000003" in said and "--without-gate" in said and not out.exists()
    judged(run_dir, Evaluations())
    assert export(run_dir) == 0
    record = json.loads((out / "export.json").read_text())
    assert record["gates"]["toy"]["verdict"] == "pass" and record["without_gate"] is None
    card = (out / "README.md").read_text()
    assert 'base_model: "toy"' in card and "**toy: PASS**" in card and record["gates"]["toy"]["sha256"] in card
    assert "| a\\|b.jsonl | 7 |" in card and "| learning rate | 0.0002 |" in card and "3 of 3" in card
    assert (out / "gates" / "toy.json").read_bytes() == (run_dir / "eval" / "toy" / "gate.json").read_bytes()
    assert set(record["files"]) == {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()} - {
        "export.json"
    }
    assert export(run_dir) == 2 and "never overwritten" in capsys.readouterr().err


def fails(run_dir: Path) -> None:
    judged(run_dir, Evaluations(drop=0.9))


def could_not_be_judged(run_dir: Path) -> None:
    judged(run_dir, Evaluations(code=1))


def judged_another(run_dir: Path) -> None:
    judged(run_dir, Evaluations())
    checkpoint = run_dir / "checkpoints" / "step-00000003"
    (checkpoint / "adapter_config.json").write_text('{"r": 16}')
    (checkpoint / "manifest.json").unlink()
    sealed(checkpoint, TEMPLATE, "toy")


def changed_by_hand(run_dir: Path) -> None:
    fails(run_dir)
    path = run_dir / "eval" / "toy" / "gate.json"
    path.write_text(path.read_text().replace('"fail"', '"pass"'))


def without_its_file(run_dir: Path) -> None:
    judged(run_dir, Evaluations())
    (run_dir.parents[1] / "gate.yaml").unlink()
    shutil.rmtree(run_dir / "eval")


def another_margin(run_dir: Path) -> Path:
    """A gate of the same name that lets nearly everything pass."""
    place = run_dir.parents[1]
    given = (place / "gate.yaml").read_bytes()
    lax = write_gate(place, candidate="run", base="cached", checks=[{"margin": 0.45}]).rename(place / "lax.yaml")
    (place / "gate.yaml").write_bytes(given)
    return lax


def another_gate_of_its_name(run_dir: Path) -> None:
    lax = another_margin(run_dir)
    assert judge_run(trained(run_dir), lax, Evaluations(drop=0.2)).verdict is GateVerdict.PASS


def the_result_of_another_gate(run_dir: Path) -> None:
    another_gate_of_its_name(run_dir)
    passed = (run_dir / "eval" / "toy" / "gate.json").read_bytes()
    fails(run_dir)
    (run_dir / "eval" / "toy" / "gate.json").write_bytes(passed)


def stricter_since(run_dir: Path) -> None:
    judged(run_dir, Evaluations())
    write_gate(run_dir.parents[1], candidate="run", base="cached", checks=[{"margin": 0.001}])


def two_of_one_name(run_dir: Path) -> None:
    lax = another_margin(run_dir)
    fails(run_dir)
    document = YAML(typ="safe").load(RunPaths(run_dir).run_yaml)
    document["gates"].append(str(lax))
    YAML(typ="safe").dump(document, RunPaths(run_dir).run_yaml)
    judge_run(trained(run_dir), lax, Evaluations(drop=0.9))


def judged_and_taken_away(run_dir: Path) -> None:
    fails(run_dir)
    shutil.rmtree(run_dir / "eval")
    document = YAML(typ="safe").load(RunPaths(run_dir).run_yaml)
    del document["gates"]
    YAML(typ="safe").dump(document, RunPaths(run_dir).run_yaml)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (fails, "toy: fail"),
        (another_gate_of_its_name, "another gate, or an older version of it, has judged"),
        (the_result_of_another_gate, "another gate, or an older version of it, has judged"),
        (stricter_since, "another gate, or an older version of it, has judged"),
        (two_of_one_name, "two gates of the run have this name"),
        (could_not_be_judged, "toy: could not be judged"),
        (judged_another, "judged another checkpoint"),
        (changed_by_hand, "changed by hand"),
        (without_its_file, "its file cannot be read"),
        (judged_and_taken_away, "toy has not judged step-00000003: it has judged this run before"),
    ],
)
def test_a_gate_is_not_skipped(
    run_dir: Path, capsys: pytest.CaptureFixture[str], change: object, says: str
) -> None:
    change(run_dir)  # type: ignore[operator]
    assert export(run_dir) == 2
    said = capsys.readouterr().err
    assert says in said and not (run_dir.parents[1] / "out").exists()
    assert export(run_dir, "--without-gate", "a demonstration") == 0
    card = (run_dir.parents[1] / "out" / "README.md").read_text()
    assert "Not every gate passed" in card and "a demonstration" in card


def test_a_damaged_checkpoint_is_not_exported(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judged(run_dir, Evaluations())
    (run_dir / "best" / "adapter_model.safetensors").write_bytes(b"x")
    assert export(run_dir, "--without-gate", "a demonstration") == 2
    assert "is not whole" in capsys.readouterr().err


def test_without_a_gate_the_card_says_so(run_dir: Path) -> None:
    document = YAML(typ="safe").load(RunPaths(run_dir).run_yaml)
    YAML(typ="safe").dump({**document, "gates": []}, RunPaths(run_dir).run_yaml)
    assert export(run_dir) == 0
    assert "the run named no gate" in (run_dir.parents[1] / "out" / "README.md").read_text()


def test_what_trains_no_adapter_has_no_gate(run_dir: Path) -> None:
    YAML(typ="safe").dump({"name": "r", "kind": "rft"}, RunPaths(run_dir).run_yaml)
    with pytest.raises(InputError, match="it trains no adapter"):
        trained(run_dir)
