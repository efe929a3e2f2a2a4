"""One strict document out of the supervisor's sections and a kind's."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from supervisor.config import (
    ConfigError,
    LoadedConfig,
    check_preflight,
    differences,
    json_schema,
    load_config,
    load_document,
    render_problems,
    set_key,
    unaccepted,
)
from supervisor.jobs import Patch, Problem, Relief, Rung, load_kind
from supervisor.yaml_source import read_yaml


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Source(Part):
    path: str
    weight: float = Field(1.0, gt=0)


class Train(Part):
    learning_rate: float = Field(2e-4, gt=0)
    """Peak learning rate."""
    per_device_train_batch_size: int = Field(1, ge=1)
    max_length: int = 512
    scheduler: Literal["linear", "cosine"] = "cosine"
    packing: bool = True
    modules: Literal["all"] | list[str] = "all"


class TinySections(Part):
    sources: list[Source]
    train: Train = Train()


def nothing_left(config: Mapping[str, Any], facts: Mapping[str, Any]) -> Relief | None:
    return None


class TinyKind:
    name = "tiny"
    schema: type[BaseModel] = TinySections
    rungs: Mapping[str, Rung] = {"halve_micro_batch": nothing_left, "shrink": nothing_left}

    def resolve(self, sections: BaseModel, base: Path) -> BaseModel:
        assert isinstance(sections, TinySections)
        sources = [item.model_copy(update={"path": str(base / item.path)}) for item in sections.sources]
        return sections.model_copy(update={"sources": sources})

    def preflight(self, sections: BaseModel) -> list[Problem]:
        assert isinstance(sections, TinySections)
        missing = [
            Problem(f"sources[{index}].path", f"{item.path} does not exist", "touch it")
            for index, item in enumerate(sections.sources)
            if not Path(item.path).exists()
        ]
        bad = [
            Problem("sources", "not JSON", "Mend the row.", item.path, 7)
            for item in sections.sources
            if item.path.endswith("bad.jsonl")
        ]
        return [*missing, *bad]

    def command(self, sections: BaseModel) -> list[str]:
        return ["-c", "pass"]


TINY = TinyKind()
CONFIGS = Path(__file__).parents[2] / "configs"


def load(tmp_path: Path, text: str, *sets: str) -> LoadedConfig:
    (tmp_path / "rows.jsonl").touch()
    path = tmp_path / "my run.yaml"
    path.write_text(text)
    return load_config(path, sets, kind=TINY)


def refused(tmp_path: Path, text: str, *sets: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, *sets)
    return render_problems(caught.value.problems).replace(f"{tmp_path}/", "").splitlines()


GOOD = "sources: [{path: rows.jsonl}]\n"


def test_defaults_and_absolute_paths_are_in_the_document(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD)
    assert config.document["name"] == "my-run"
    assert config.document["sources"] == [{"path": str(tmp_path / "rows.jsonl"), "weight": 1.0}]
    assert config.document["limits"]["max_attempts"] == 5
    assert config.document["checkpoint"] == {"save_steps": 50, "keep": 3, "snapshot": "auto"}
    assert config.own.limits.stop_grace_seconds == 120
    assert isinstance(config.sections, TinySections)
    json.dumps(config.document)  # plain data


# proves SUP-3: a default ladder holds only what the kind of job understands
def test_default_ladder_fits_the_kind(tmp_path: Path) -> None:
    expected = ["trim_retention", "wait_for_foreign_vram", "halve_micro_batch"]
    assert load(tmp_path, GOOD).document["relief"]["ladder"] == expected
    ladder = "relief: {ladder: [shrink, trim_retention], strict_order: true}\n"
    assert load(tmp_path, GOOD + ladder).own.relief.ladder == ("shrink", "trim_retention")


OWN = """relief:
  ladder:
    - halve_micro_batch
    - name: shorter
      set:
        train.max_length: 512
        launch.env.SMALL: "1"
      helps: [cuda_oom, nan_loss]
      price: half the context
"""


# proves SUP-3: a user's own rung is part of the ladder, and of the document that is written down and read again
def test_an_own_rung(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD + OWN)
    assert config.own.relief.order == ("halve_micro_batch", "shorter")
    (rung,) = config.own.relief.own_rungs
    assert (rung.set, rung.helps) == ({"train.max_length": 512, "launch.env.SMALL": "1"}, ("cuda_oom", "nan_loss"))
    assert (rung.lossless, rung.new_lineage) == (False, False)
    assert load_document(config.document, TINY).own.relief == config.own.relief


# proves SUP-3, TRN-9: an own rung that could not be taken is refused before the run, with its line
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("max_length: 512", "max_lenght: 512", "6: relief.ladder.1.set.train.max_lenght: train.max_lenght is not a"),
        ("max_length: 512", "max_length: '512'", "6: relief.ladder.1.set.train.max_length: train.max_length must be a"),
        ("train.max_length: 512", "limits.max_attempts: 9", "6: relief.ladder.1.set.limits.max_attempts: relief can"),
        ("train.max_length: 512", "train..x: 9", "6: relief.ladder.1.set.train..x: 'train..x' is not a dotted key"),
        ("[cuda_oom, nan_loss]", "[cuda_om]", "8: relief.ladder.1.helps.0 must be"),
        ("[cuda_oom, nan_loss]", "[data_error]", "8: relief.ladder.1.helps.0 must be"),
        ("[cuda_oom, nan_loss]", "[]", "8: relief.ladder.1.helps must be a list of at least 1"),
        ("      price: half the context\n", "", "4: relief.ladder.1.price is required and missing"),
        ("price: half", "prize: half", "9: relief.ladder.1.prize is not a known key. Did you mean"),
        ("name: shorter", "name: shrink", "4: relief.ladder.1.name: shrink is a rung already"),
        ("name: shorter", "name: Shorter one", "4: relief.ladder.1.name must be text that matches"),
        ("- halve_micro_batch", "- 7", "3: relief.ladder.0 must be text, not 7"),
        ("- halve_micro_batch", "- trim_retention\n    - trim_retention", "4: relief.ladder names trim_retention t"),
    ],
)
def test_an_own_rung_that_cannot_be_taken(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert OWN.count(old) == 1
    said = refused(tmp_path, GOOD + OWN.replace(old, new))
    line, _, rest = expected.partition(":")
    assert any(text.startswith(f"my run.yaml:{int(line) + 1}:{rest}") for text in said), said


# proves SUP-10: what is validated once validates again, without its file
def test_a_document_loads_back_to_itself(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD)
    again = load_document(config.document, TINY)
    assert again.document == config.document
    assert again.path is None
    (tmp_path / "rows.jsonl").unlink()
    with pytest.raises(ConfigError, match="does not exist"):
        check_preflight(again)


# proves TRN-9: unknown keys are errors with file, line, key and a suggestion
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train: {learnin_rate: 1}", "train.learnin_rate is not a known key. Did you mean train.learning_rate?"),
        ("train: {lr: 1}", "train.lr is not a known key. Did you mean train.learning_rate?"),
        (
            "train: {batch_size: 1}",
            "train.batch_size is not a known key. Did you mean train.per_device_train_batch_size?",
        ),
        ("train: {seq_len: 1}", "train.seq_len is not a known key. Did you mean train.max_length?"),
        ("train: {Max-Length: 1}", "train.Max-Length is not a known key. Did you mean train.max_length?"),
        ("train: {max_attempts: 1}", "train.max_attempts is not a known key. Did you mean limits.max_attempts?"),
        ("learning_rate: 1", "learning_rate is not a known key. Did you mean train.learning_rate?"),
        ("trian: {}", "trian is not a known key. Did you mean train?"),
        ("limits: {max_retries: 1}", "limits.max_retries is not a known key. Did you mean limits.max_attempts?"),
        (
            "checkpoint: {qqq: 1}",
            "checkpoint.qqq is not a known key. Known keys under checkpoint: save_steps, keep, snapshot.",
        ),
        ("relief: {ladder: [shrnk]}", "relief.ladder: there is no rung 'shrnk'. Did you mean shrink?"),
    ],
)
def test_unknown_keys(tmp_path: Path, line: str, expected: str) -> None:
    assert refused(tmp_path, f"{GOOD}\n{line}\n") == [f"my run.yaml:3: {expected}"]


# proves TRN-9: nothing is coerced; what was given and what is expected are both said
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train: {max_length: '5'}", "train.max_length must be a whole number, not the text '5'. Remove the quotes."),
        ("train: {max_length: true}", "train.max_length must be a whole number, not true."),
        ("train: {max_length: 5.0}", "train.max_length must be a whole number, not 5.0."),
        ("train: {max_length: }", "train.max_length must be a whole number, not nothing (null)."),
        ("train: {learning_rate: fast}", "train.learning_rate must be a number, not the text 'fast'."),
        ("train: {learning_rate: true}", "train.learning_rate must be a number, not true."),
        ("train: {learning_rate: 0}", "train.learning_rate must be more than 0, not 0."),
        ("limits: {backoff_seconds: .inf}", "limits.backoff_seconds must be a finite number, not inf."),
        ("limits: {backoff_seconds: .nan}", "limits.backoff_seconds must be a finite number, not nan."),
        ("limits: {max_attempts: 0}", "limits.max_attempts must be at least 1, not 0."),
        ("train: {packing: yes}", "train.packing must be true or false, not the text 'yes'. Write true."),
        ("train: {scheduler: cosin}", "train.scheduler must be 'linear' or 'cosine', not the text 'cosin'. Did you mean cosine?"),  # noqa: E501
        ("train: {modules: 3}", "train.modules must be 'all' or a list, not 3."),
        ("train: 3", "train must be a mapping of keys to values, not 3."),
        ("notify: {command: curl}", "notify.command must be a list, not the text 'curl'. Write [curl]."),
        ("launch: {env: {OMP_NUM_THREADS: 2}}", "launch.env.OMP_NUM_THREADS must be text, not a value of type int. Put it in quotes."),  # noqa: E501
        ("launch: {python: 2024-01-01}", "launch.python is a date, which no key takes. Put it in quotes to make it text."),  # noqa: E501
        ("launch: {python: no-such-python}", "launch.python: no-such-python is no program that can be run. Name a Python interpreter, or remove the key."),  # noqa: E501
        ("name: ../x", "name must be text that matches ^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$, not the text '../x'."),
    ],
)  # fmt: skip
def test_wrong_values(tmp_path: Path, line: str, expected: str) -> None:
    assert refused(tmp_path, f"{GOOD}\n{line}\n") == [f"my run.yaml:3: {expected}"]


def test_values_that_contradict_each_other(tmp_path: Path) -> None:
    (line,) = refused(tmp_path, GOOD + "limits: {backoff_seconds: 90}\n")
    assert line.startswith("my run.yaml:2: limits: backoff_max_seconds (60) is less than backoff_seconds (90)")
    (line,) = refused(tmp_path, GOOD + "relief: {seq_len_rungs: [512, 1024]}\n")
    assert "seq_len_rungs must fall" in line


def test_whole_numbers_fit_where_a_number_is_asked_for(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD + "limits: {backoff_seconds: 3}\n").own.limits.backoff_seconds == 3.0


# proves TRN-9: all problems at once, each where it stands
def test_all_problems_at_once(tmp_path: Path) -> None:
    text = "sources:\n  - path: rows.jsonl\n    weigth: 2\n  - {weight: 1}\ntrain:\n  max_length: x\nfoo: 1\n"
    assert refused(tmp_path, text, "limits.max_attempts=-1") == [
        "--set limits.max_attempts=-1: limits.max_attempts must be at least 1, not -1.",
        "my run.yaml:3: sources.0.weigth is not a known key. Did you mean sources.0.weight?",
        "my run.yaml:4: sources.1.path is required and missing.",
        "my run.yaml:6: train.max_length must be a whole number, not the text 'x'.",
        "my run.yaml:7: foo is not a known key. "
        "Known keys at the top: sources, train, name, kind, limits, relief, checkpoint, notify, launch, gates.",
    ]
    assert refused(tmp_path, "name: x\n") == ["my run.yaml: sources is required and missing."]


def test_preflight_comes_after_the_schema_and_names_the_other_file(tmp_path: Path) -> None:
    text = "sources:\n- path: no.jsonl\n- path: bad.jsonl\n"
    (tmp_path / "bad.jsonl").touch()
    assert refused(tmp_path, text) == [
        "my run.yaml:2: sources.0.path: no.jsonl does not exist; touch it.",
        "bad.jsonl:7: sources: not JSON. Mend the row.",
    ]


def test_set_overrides_before_validation(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD, "train.learning_rate=1e-3", "relief.ladder=[shrink]", "name=other")
    assert isinstance(config.sections, TinySections)
    assert config.sections.train.learning_rate == 1e-3
    assert config.own.relief.ladder == ("shrink",)
    assert config.document["name"] == "other"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train.lr=1", "--set train.lr=1: train.lr is not a known key. Did you mean train.learning_rate?"),
        ("train.max_length=x", "--set train.max_length=x: train.max_length must be a whole number, not the text 'x'."),
        ("train", "--set train: train: no assignment. Write --set section.key=value."),
        ("=1", "--set =1: no assignment. Write --set section.key=value."),
        ("a..b=1", "--set a..b=1: a..b: 'a..b' is not a dotted key."),
        ("sources.0=1", "--set sources.0=1: sources.0: sources is the list [{'path': 'rows.jsonl'}], not a section; set it as a whole."),  # noqa: E501
        ("train={", "--set train={: train: expected the node content, but found '<stream end>'."),
    ],
)  # fmt: skip
def test_set_problems_are_located_at_the_option(tmp_path: Path, text: str, expected: str) -> None:
    assert refused(tmp_path, GOOD, text) == [expected]


def test_unknown_kind(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("kind: sfx\nlimits: {max_attempts: 0}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    first, second = (problem.message for problem in caught.value.problems)
    assert "kind 'sfx' is not installed; known kinds:" in first
    assert "max_attempts" in second
    path.write_text("kind: 3\n")
    with pytest.raises(ConfigError, match="kind must be text, not 3"):
        load_config(path)


def test_a_kind_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "broken_kind-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-kind\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[mens_supervisor.jobs]\nbroken = no_such_module:KIND\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "x.yaml"
    path.write_text("kind: broken\n")
    with pytest.raises(ConfigError, match="kind 'broken' is installed but cannot be loaded"):
        load_config(path)


def test_relative_interpreter_is_found_beside_the_file_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    config = load(tmp_path, GOOD + "launch: {python: bin/python}\n")
    assert config.own.launch.python == str(tmp_path / "bin" / "python")


# proves TRN-13: what may change freely when a run directory is continued, and what must be accepted by name
def test_differences_and_what_must_be_accepted() -> None:
    old = {"train": {"lr": 1.0, "on": True, "rungs": [1, 2]}, "checkpoint": {"keep": 3, "save_steps": 5}, "name": "a"}
    new = {"train": {"lr": 2.0, "on": 1, "rungs": [1]}, "checkpoint": {"keep": 9, "save_steps": 6}, "name": "b"}
    new["x"] = None
    assert differences(old, new) == [
        Patch("train.lr", 1.0, 2.0),
        Patch("train.on", True, 1),
        Patch("train.rungs", [1, 2], [1]),
        Patch("checkpoint.keep", 3, 9),
        Patch("checkpoint.save_steps", 5, 6),
        Patch("name", "a", "b"),
    ]
    assert [patch.key for patch in unaccepted(old, new, [])] == [
        "train.lr", "train.on", "train.rungs", "checkpoint.save_steps"
    ]  # fmt: skip
    assert [patch.key for patch in unaccepted(old, new, ["train", "checkpoint.save"])] == ["checkpoint.save_steps"]
    assert differences(old, old) == []


def test_set_key_makes_sections() -> None:
    document: dict[str, Any] = {"a": None}
    set_key(document, "a.b.c", 1)
    assert document == {"a": {"b": {"c": 1}}}
    with pytest.raises(ValueError, match=r"a\.b\.c is 1, not a section"):
        set_key(document, "a.b.c.d", 2)


def test_a_kind_may_not_take_over_a_section_of_the_supervisor() -> None:
    class Greedy(Part):
        limits: int = 0

    class GreedyKind(TinyKind):
        schema = Greedy

    with pytest.raises(TypeError, match="limits"):
        json_schema(GreedyKind())


# proves TRN-9: editors are told what each key means, and that there are no others
def test_schema_explains_every_key() -> None:
    schema = json_schema(load_kind("sft"))
    assert schema["additionalProperties"] is False
    own = {"limits", "relief", "checkpoint", "notify", "launch"}
    sections = {"device", "model", "data", "train", "eval", "federated"} | own
    assert set(schema["properties"]) == {"name", "kind", "gates"} | sections
    assert schema["required"] == ["model", "data"]
    for name, section in schema["$defs"].items():
        assert section["additionalProperties"] is False, name
        for key, field in section["properties"].items():
            assert field.get("description"), f"{name}.{key} is not explained"


def test_committed_schema_is_up_to_date() -> None:
    committed = CONFIGS / "schema.json"
    assert json.loads(committed.read_text()) == json_schema(load_kind("sft")), "run `make schema`"


# proves TRN-9: the shipped configurations hold
@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_configurations_hold(path: Path) -> None:
    document, _ = read_yaml(path)
    try:
        load_document(document)  # without the preflight: their data may be the reader's own
    except ConfigError as error:
        pytest.fail(str(error))


# proves TRN-9: keys that aren't text are a problem wherever they come from
@pytest.mark.parametrize("text", ["launch.env={2020-01-01: a}", "launch={env: {1: a}}", "notify={on: [{2: a}]}"])
def test_keys_that_are_no_text(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"which is not text. Put it in quotes"):
        load(tmp_path, GOOD, text)


# a token that was mistyped is not repeated on the console
@pytest.mark.parametrize("text", ["launch.env.A=[hunter2]", "launch.env=[hunter2]", "launch={env: [hunter2]}"])
def test_values_of_the_environment_are_not_shown(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"launch\.env") as caught:
        load(tmp_path, GOOD, text)
    assert "hunter2" not in str(caught.value)
