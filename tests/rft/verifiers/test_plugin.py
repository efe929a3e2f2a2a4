"""Verifiers of the user's own: a class in a sandbox, or an installed package's. # proves RFT-2"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from judged import opened, task_of

from rft.config import JudgeSection
from rft.verifiers.registry import (
    UnknownVerifierError,
    build,
    kind_of,
    known_verifiers,
    located_settings,
    settings_problems,
)
from rft.verifiers.verdict import Isolation, Outcome
from rft.verifiers.verifier import VerifierUnusableError

SOURCE = """
import os


class Longest:
    def __init__(self, settings):
        self.limit = settings["limit"]
        self.seen = 0

    def problem(self, task):
        return None if task["data"].get("word") else "check.data.word is missing"

    def judge(self, task, completion):
        self.seen += 1
        if completion == "score":
            return 0.25
        if completion == "seen":
            return {"accepted": self.seen == 1, "reason": f"seen {self.seen}"}
        if completion == "raise":
            raise RuntimeError("no idea")
        if completion == "hang":
            while True:
                pass
        if completion == "nonsense":
            return "yes"
        if completion == "look":
            found = [name for name in ("MENS_PLANTED",) if name in os.environ] + [os.path.exists(task["data"]["host"])]
            return {"accepted": False, "reason": "looked", "diagnostic": repr(found)}
        return len(completion) <= self.limit and task["data"]["word"] in completion
"""


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "longest.py").write_text(SOURCE)
    file = str(tmp_path / "longest.py")
    return {"file": file, "name": "Longest", "settings": {"limit": 10}, "timeout_seconds": 300.0}


def test_a_class_in_a_file_judges_in_a_sandbox(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MENS_PLANTED", "1")
    task = task_of("python", {"word": "ab", "host": str(tmp_path)})
    with opened("python", settings) as verifier:
        assert verifier.problem(task) is None
        assert verifier.problem(task_of("python", {})) == "check.data.word is missing"
        accepted = verifier.judge(task, "about")
        assert accepted.outcome is Outcome.ACCEPTED and accepted.isolation is Isolation.BUBBLEWRAP
        assert verifier.judge(task, "about something").outcome is Outcome.REJECTED
        scored = verifier.judge(task, "score")
        assert (scored.outcome, scored.score) == (Outcome.REJECTED, 0.25)
        for _ in range(2):  # nothing lasts from one judgement to the next
            assert verifier.judge(task, "seen").outcome is Outcome.ACCEPTED
        raised = verifier.judge(task, "raise")
        assert raised.outcome is Outcome.ERROR and "no idea" in raised.diagnostic
        assert verifier.judge(task, "nonsense").outcome is Outcome.ERROR
        assert verifier.judge(task, "look").diagnostic == "[False]"


def test_a_class_that_hangs_is_out_of_time_and_asked_again(settings: dict[str, Any]) -> None:
    task = task_of("python", {"word": "ab", "host": ""})
    with opened("python", {**settings, "timeout_seconds": 2.0}) as verifier:
        assert verifier.judge(task, "hang").outcome is Outcome.TIMEOUT
        verdicts = (verifier.judge(task, "about").outcome for _ in range(30))
        assert Outcome.ACCEPTED in verdicts


def test_a_class_that_cannot_be_made_is_refused(settings: dict[str, Any]) -> None:
    with (
        pytest.raises(VerifierUnusableError, match="KeyError: 'limit'"),
        opened("python", {**settings, "settings": {}}),
    ):
        pass


def test_a_file_that_is_wrong_is_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    assert "defines no Nobody; it has Longest" in settings_problems("python", {**settings, "name": "Nobody"})[0]
    assert "cannot be read" in settings_problems("python", {**settings, "file": str(tmp_path / "none.py")})[0]
    (tmp_path / "bad.py").write_text("class (:")
    assert "is no Python" in settings_problems("python", {**settings, "file": str(tmp_path / "bad.py")})[0]
    relative = located_settings("python", {**settings, "file": "longest.py"}, tmp_path)
    assert not settings_problems("python", relative)


def test_the_version_follows_the_file(settings: dict[str, Any]) -> None:
    before = build("python", settings, JudgeSection()).version
    Path(settings["file"]).write_text(SOURCE + "\n")
    assert build("python", settings, JudgeSection()).version != before


def test_a_package_brings_a_verifier_as_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "foreign_verifier.py").write_text(
        "from rft.verifiers.maths import Maths, MathsSettings\n"
        "from rft.verifiers.registry import Kind\n"
        "KIND = Kind(MathsSettings, Maths)\nNONE = 3\n"
    )
    folder = tmp_path / "foreign-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(
        "[mens_supervisor.verifiers]\nforeign = foreign_verifier:KIND\nbroken = foreign_verifier:NONE\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "foreign_verifier", raising=False)
    assert "foreign" in known_verifiers()
    verifier = build("foreign", {"extract": ["boxed"]}, JudgeSection())
    assert verifier.judge(task_of("foreign", {"answer": "3"}), r"\boxed{3}").outcome is Outcome.ACCEPTED
    assert "is no rft.verifiers.registry.Kind" in settings_problems("broken", {})[0]


def test_an_unknown_verifier_is_named_with_those_that_there_are() -> None:
    with pytest.raises(
        UnknownVerifierError, match="known verifiers: command, function_calls, json_schema, maths, python, python_tests"
    ):
        kind_of("exec")
    assert "'exec' is not installed" in settings_problems("exec", {})[0]


def test_settings_of_every_own_verifier_are_strict() -> None:
    for name in known_verifiers():
        assert any("not a known key" in problem for problem in settings_problems(name, {"no_such_setting": 1})), name
