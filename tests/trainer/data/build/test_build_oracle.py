# proves DAT-5: a command judges every answer, without our environment, and what it said is kept
from __future__ import annotations

import time
from pathlib import Path

import pytest

from trainer.data.build.mix import OracleSection
from trainer.data.build.oracle import Oracle, OracleUnusableError, taken


def section(*command: str, **changes: object) -> OracleSection:
    return OracleSection.model_validate({"command": list(command), **changes})


def verdicts(section: OracleSection, answers: list[str], cache: Path) -> tuple[list[str], int]:
    with Oracle(section, cache, cache) as oracle:
        return [verdict.value for verdict in oracle.judge(answers)], oracle.from_cache


def test_a_compiler_tells_good_answers_from_bad_ones(tmp_path: Path) -> None:
    compiler = section("cc", "-fsyntax-only", "{file}", suffix=".c")
    answers = ["int f(void) { return 1; }", "int f(void) { return }", "int g(int a) { return a; }"]
    assert verdicts(compiler, answers, tmp_path) == (["pass", "fail", "pass"], 0)
    assert verdicts(compiler, [*answers, "x"], tmp_path) == (["pass", "fail", "pass", "fail"], 3)
    other = section("cc", "-fsyntax-only", "-w", "{file}", suffix=".c")
    assert verdicts(other, answers[:1], tmp_path) == (["pass"], 0), "another command is asked anew"


def test_the_environment_is_scrubbed_and_the_folder_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    script = 'test -z "$HF_TOKEN" && test "$HOME" = "$PWD" && test "$(ls)" = answer.sh && sh {file}'
    assert verdicts(section("sh", "-c", script, suffix=".sh"), ["exit 0", "exit 3"], tmp_path) == (["pass", "fail"], 0)


def test_what_takes_too_long_is_ended_with_all_it_started_and_asked_again(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    slow = section("sh", "-c", f"(sleep 3; echo > {mark}) & sleep 60; : {{file}}", timeout_seconds=0.5)
    assert verdicts(slow, ["a"], tmp_path) == (["timeout"], 0)
    assert verdicts(slow, ["a"], tmp_path) == (["timeout"], 0)
    time.sleep(3.5)
    assert not mark.exists()


def test_code_blocks_are_taken_out_of_answers(tmp_path: Path) -> None:
    fenced = section("cc", "-fsyntax-only", "{file}", suffix=".c", take="code_block", prepend="typedef int number;\n")
    answers = ["Here:\n```c\nnumber f(void) { return 1; }\n```\nDone.", "no code"]
    assert verdicts(fenced, answers, tmp_path)[0] == ["pass", "no_code"]
    assert taken("```\na\n```\n```\nb\n```", section("x", "{file}", take="code_block")) == "a\n"


def test_a_program_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OracleUnusableError, match="no-such-compiler is not on this machine"):
        Oracle(section("no-such-compiler", "{file}"), tmp_path, tmp_path)
