"""Any command as a judge: real compilers, their diagnostics, programs judged by their output. # proves RFT-2"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from judged import fenced, opened, task_of

from rft.config import JudgeSection
from rft.gold import State, check_task
from rft.tasks.task import Task
from rft.verifiers.registry import build, settings_problems
from rft.verifiers.toolchain import find_program
from rft.verifiers.verdict import Isolation, Outcome
from rft.verifiers.verifier import Verifier, VerifierUnusableError
from supervisor.problems import ConfigError

PATIENT = {"timeout_seconds": 300.0}
"""So that a slow machine changes nothing."""
GCC: dict[str, Any] = {
    "command": ["gcc", "-fsyntax-only", "-Wall", "check.c"],
    "proof": "static",
    "file": "answer.c",
    "must_reject": ["int add(int a, {"],
    "limits": PATIENT,
}
ADD_IN_C = "int add(int a, int b) { return a + b; }"
CHECK_C = '#include "answer.c"\nint main(void) { int (*f)(int, int) = add; return f(1, 2); }\n'
CHECK_RS = 'fn main() { let sum: u64 = answer::add(1, 2); println!("{sum}"); }\n'
CRATE = '[package]\nname = "answer"\nversion = "0.1.0"\nedition = "2021"\n'
SUM: dict[str, Any] = {
    "command": ["./sum"],
    "build": ["gcc", "{file}", "-o", "sum"],
    "proof": "output",
    "file": "answer.c",
    "limits": PATIENT,
}
CASES = [{"input": "2 3\n", "output": "5\n"}, {"input": "10 -4\n", "output": "6"}]


def c_task(**more: Any) -> Task:
    return task_of("command", {"files": {"check.c": CHECK_C}}, **more)


@pytest.fixture(scope="module")
def gcc() -> Iterator[Verifier]:
    with opened("command", GCC) as found:
        yield found


@pytest.fixture(scope="module")
def summing() -> Iterator[Verifier]:
    with opened("command", SUM) as found:
        yield found


def test_gcc_judges_with_its_own_words(gcc: Verifier) -> None:
    accepted = gcc.judge(c_task(), fenced(ADD_IN_C))
    assert accepted.outcome is Outcome.ACCEPTED, accepted
    assert accepted.isolation is Isolation.BUBBLEWRAP
    rejected = gcc.judge(c_task(), fenced(ADD_IN_C.replace("a + b", "a + c")))
    assert (rejected.outcome, rejected.reason) == (Outcome.REJECTED, "exit code 1")
    assert "answer.c:1:" in rejected.diagnostic and "\u2018c\u2019 undeclared" in rejected.diagnostic


@pytest.mark.parametrize(
    "code", ["", "#if 0", "int main(void) { return 0; }", "/* int add(int a, int b) */", "#error no"]
)
def test_code_that_does_not_define_what_is_asked_for_is_rejected(gcc: Verifier, code: str) -> None:
    assert gcc.judge(c_task(), fenced(code)).outcome is Outcome.REJECTED


def test_an_answer_without_code_is_rejected(gcc: Verifier) -> None:
    assert gcc.judge(c_task(), "I can't.").reason == "no code block"
    assert gcc.judge(c_task(), fenced("\ud800")).reason == "no valid text"
    assert gcc.judge(c_task(), "x" * 1_000_001).reason == "answer too long"


def test_what_is_around_an_answer_is_seen_only_from_inside(gcc: Verifier) -> None:
    verdict = gcc.judge(c_task(), fenced(f'#include "{Path(__file__)}"\n{ADD_IN_C}'))
    assert verdict.outcome is Outcome.REJECTED and "No such file" in verdict.diagnostic


def test_a_task_is_checked_with_its_gold_answer_and_with_what_must_fail(gcc: Verifier) -> None:
    assert check_task(c_task(gold=fenced(ADD_IN_C)), gcc).state is State.VALID
    assert check_task(c_task(gold=fenced("int sub;")), gcc).state is State.INVALID
    lax = task_of("command", {"files": {"check.c": "int main(void) { return 0; }\n"}}, gold=fenced(ADD_IN_C))
    found = check_task(lax, gcc)
    assert found.state is State.INVALID and "accepts" in found.problem


def test_a_command_that_lets_pass_what_a_task_must_reject_is_found_before_sampling() -> None:
    """gcc only warns of a function of another type."""
    wrong = "int add(char *a) { return *a; }"
    with opened("command", {**GCC, "must_reject": [wrong]}) as lax:
        found = check_task(c_task(gold=fenced(ADD_IN_C)), lax)
        assert found.state is State.INVALID and "which must not pass" in found.problem
    with opened("command", {**GCC, "command": [*GCC["command"], "-Werror"], "must_reject": [wrong]}) as strict:
        assert check_task(c_task(gold=fenced(ADD_IN_C)), strict).state is State.VALID


@pytest.fixture(scope="module")
def crate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crate")
    (folder / "src").mkdir()
    (folder / "target").mkdir()
    (folder / "Cargo.toml").write_text(CRATE)
    (folder / "target" / "left-over").write_text("x" * 1000)
    return folder


def has_cargo() -> bool:
    try:
        return subprocess.run(["cargo", "--version"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not has_cargo(), reason="cargo does not run here: no Rust, or none for this user")
def test_cargo_check_judges_with_its_own_words(crate: Path) -> None:
    settings = {
        "command": ["cargo", "check", "--offline", "--quiet", "--message-format=json"],
        "proof": "static",
        "file": "src/lib.rs",
        "project": str(crate),
        "limits": PATIENT,
        "must_accept": ["pub fn anything() {}"],
        "must_reject": ["pub fn add(a: u64, b: u64) -> u64 { a + c }"],
    }
    task = task_of("command", {"files": {"src/main.rs": CHECK_RS}})
    with opened("command", settings) as verifier:
        right = "pub fn add(a: u64, b: u64) -> u64 { a + b }"
        assert verifier.judge(task, fenced(right)).outcome is Outcome.ACCEPTED
        wrong = verifier.judge(task, fenced(right.replace("+ b", '+ "b"')))
        assert wrong.reason == "error E0277"
        assert "cannot add `&str` to `u64`" in wrong.diagnostic and "--> src/lib.rs:1:" in wrong.diagnostic
        assert "'b" not in wrong.reason and '{"reason"' not in wrong.diagnostic
        # A macro of the answer's is no program: nothing of the answer runs in a check.
        lies = verifier.judge(task, fenced("macro_rules! m { () => { std::process::exit(0) } }\npub fn sub() { m!() }"))
        assert lies.reason == "error E0425"


@pytest.mark.parametrize(
    ("code", "reason", "passed"),
    [
        ("int main() { return 0; }", "wrong output", 0),
        ("int main( {", "does not build", 0),
        ('#include <stdio.h>\nint main() { puts("5"); return 0; }', "wrong output", 1),
        ('#include <stdio.h>\nint main() { int a, b; scanf("%d %d", &a, &b); printf("%d\\n", a + b); return 3; }',
         "the program fails", 0),
        # What the judge has put beside it, its own script among it, has no right output in it.
        ('#include <stdlib.h>\nint main() { return system("cat .mens-judge.sh .mens-input-* /proc/*/cmdline"); }',
         None, 0),
        ('#include <stdlib.h>\nint main() { system("for p in /proc/[0-9]*; do kill -9 ${p#/proc/}; done"); return 0; }',
         None, 0),
    ],
)  # fmt: skip
def test_a_program_that_does_not_compute_does_not_pass(
    summing: Verifier, code: str, reason: str | None, passed: int
) -> None:
    verdict = summing.judge(task_of("command", {"cases": CASES}), fenced(code))
    assert verdict.outcome is Outcome.REJECTED, verdict
    assert reason is None or verdict.reason == reason, verdict
    assert (verdict.passed, verdict.expected) == (passed, 2)


def test_a_program_that_computes_passes(summing: Verifier) -> None:
    code = '#include <stdio.h>\nint main() { int a, b; scanf("%d %d", &a, &b); printf("%d  \\n\\n", a + b); return 0; }'
    verdict = summing.judge(task_of("command", {"cases": CASES}), fenced(code))
    assert verdict.outcome is Outcome.ACCEPTED, verdict
    assert (verdict.passed, verdict.expected) == (2, 2)


def test_time_and_output_are_limited() -> None:
    task = task_of("command", {"cases": CASES})
    with opened("command", {**SUM, "limits": {"timeout_seconds": 1.5}}) as verifier:
        assert verifier.judge(task, fenced("int main() { for (;;); }")).outcome is Outcome.TIMEOUT
    with opened("command", {**SUM, "limits": {**PATIENT, "output_kib": 8}}) as verifier:
        endless = '#include <stdio.h>\nint main() { for (;;) puts("5"); }'
        assert verifier.judge(task, fenced(endless)).reason == "used too much output"


def test_secrets_do_not_reach_diagnostics(gcc: Verifier) -> None:
    token = "hf_" + "a1B2" * 8
    verdict = gcc.judge(c_task(), fenced(f"#error {token}"))
    assert "#error" in verdict.diagnostic and token not in verdict.diagnostic


def test_the_environment_is_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_PLANTED", "planted-value")
    settings = {
        "command": ["sh", "-c", "cat /proc/*/environ; env; test -s answer.txt && exit 3"],
        "proof": "static",
        "file": "answer.txt",
        "take": "answer",
        "must_reject": ["x"],
        "limits": PATIENT,
        "must_contain": ["y"],
        "environment": {"GIVEN": "given-value"},
    }
    with opened("command", settings) as verifier:
        verdict = verifier.judge(task_of("command", {}), "y")
    assert verdict.reason == "exit code 3"
    assert "given-value" in verdict.diagnostic and "planted-value" not in verdict.diagnostic


def test_a_command_that_passes_everything_is_not_used() -> None:
    settings = {**GCC, "command": ["true"]}
    with pytest.raises(VerifierUnusableError, match="which must_reject says is wrong"), opened("command", settings):
        pass


def test_a_command_that_passes_an_empty_file_is_not_used() -> None:
    settings = {**GCC, "command": ["gcc", "-fsyntax-only", "{file}"], "must_contain": [""], "must_reject": ["int f( {"]}
    with pytest.raises(VerifierUnusableError, match="accepts an empty file"), opened("command", settings):
        pass
    with opened("command", {**settings, "must_contain": ["int f("]}) as verifier:
        assert verifier.judge(task_of("command", {}), fenced("")).reason == "lacks what it must contain"
        assert verifier.judge(task_of("command", {}), fenced("int f(void) { return 1; }")).outcome is Outcome.ACCEPTED


def test_a_command_that_rejects_what_is_right_is_not_used() -> None:
    settings = {**GCC, "must_accept": [ADD_IN_C]}
    words = r"(?s)does not accept what must_accept.*check\.c"
    with pytest.raises(VerifierUnusableError, match=words), opened("command", settings):
        pass


def test_a_tool_that_is_missing_inside_is_an_error_and_no_rejection() -> None:
    settings = {**GCC, "command": ["sh", "-c", "no-such-tool answer.c"]}
    with pytest.raises(VerifierUnusableError, match="cannot judge"), opened("command", settings):
        pass


SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"command": ["pytest"], "file": "answer.py"}, "runs the answer"),
    ({"command": ["python3", "{file}"], "file": "answer.py"}, "runs the answer"),
    ({"command": ["python", "-m", "unittest", "answer"], "file": "answer.py"}, "runs the answer"),
    ({"command": ["cargo", "test"]}, "runs the answer"),
    ({"command": ["go", "run", "{file}"]}, "runs the answer"),
    ({"command": ["{file}"]}, "runs the answer"),
    ({"must_reject": []}, "must_reject is missing"),
    ({"file": "build.rs"}, "could make anything pass"),
    ({"file": "tests/conftest.py"}, "could make anything pass"),
    ({"file": "Cargo.toml"}, "could make anything pass"),
    ({"file": "x/evil.pth"}, "could make anything pass"),
    ({"file": "../answer.c"}, "no path below"),
    ({"file": "/etc/passwd"}, "no path below"),
    ({"proof": "exit_code"}, "proof must be"),
    ({"command": ["no-such-compiler"]}, "is not on this machine"),
    ({"comand": ["gcc"]}, "Did you mean command?"),
    ({"project": "/no/such/folder"}, "is no folder"),
    ({"build": ["gcc"]}, "build belongs to proof output"),
    ({"proof": "pytest", "must_reject": []}, "the command begins with pytest"),
]


@pytest.mark.parametrize(("change", "words"), SETTINGS)
def test_settings_that_prove_nothing_or_are_wrong_are_refused(change: dict[str, Any], words: str) -> None:
    found = settings_problems("command", {**GCC, **change})
    assert any(words in problem for problem in found), found
    with pytest.raises(ConfigError):
        build("command", {**GCC, **change}, JudgeSection())


@pytest.mark.parametrize(
    "command", [["bash", "-n", "{file}"], ["python3", "-m", "py_compile", "{file}"], ["gcc", "{file}"]]
)
def test_commands_that_only_look_are_static(command: list[str]) -> None:
    assert not settings_problems("command", {**GCC, "command": command})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"files": {"answer.c": "int x;"}}, "the file that holds the answer"),
        ({"files": {"../x": ""}}, "no path below"),
        ({"files": {"x": 3}}, "paths and texts"),
        ({"tests": []}, "has tests; the verifier command has"),
        ({"cases": CASES}, "belongs to proof output"),
    ],
)
def test_a_task_that_cannot_be_judged_says_why(gcc: Verifier, data: dict[str, Any], words: str) -> None:
    assert words in (gcc.problem(task_of("command", data)) or "")


@pytest.mark.parametrize(
    ("cases", "words"),
    [(None, "at least one case"), ([], "at least one case"), ([{"input": "1"}], "is empty"), ([{"output": 3}], "text")],
)
def test_a_task_without_outputs_says_so(summing: Verifier, cases: Any, words: str) -> None:
    assert words in (summing.problem(task_of("command", {"cases": cases})) or "")


def test_the_version_follows_settings_project_and_tool(crate: Path, tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "checker"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nexit 1\n")
    tool.chmod(0o755)
    settings = {**GCC, "command": [str(tool), "{file}"], "project": str(crate)}
    versions = [build("command", settings, JudgeSection()).version]
    (crate / "notes.txt").write_text("more")
    versions.append(build("command", settings, JudgeSection()).version)
    tool.write_text("#!/bin/sh\nexit 2\n")
    versions.append(build("command", settings, JudgeSection()).version)
    versions.append(build("command", {**settings, "take": "answer"}, JudgeSection()).version)
    assert len(set(versions)) == 4
    moved = tmp_path / "elsewhere"
    shutil.copytree(tool.parent, moved / "bin")
    os.utime(moved / "bin" / "checker")
    again = {**settings, "take": "answer", "command": [str(moved / "bin" / "checker"), "{file}"]}
    assert build("command", again, JudgeSection()).version == versions[-1]


# proves RFT-2: exit code 0 alone is never a pass, however the program that runs the answer is called
@pytest.mark.parametrize("command", [
    ["env", "A=1", "python3", "{file}"], ["timeout", "5s", "python3", "{file}"], ["sh", "-c", "cd . && python3 {file}"],
    ["python3", "-c", "exec(open('{file}').read())"], ["python3", "-m", "coverage", "run", "{file}"],
    ["uv", "run", "pytest"], ["ruby", "{file}", "-n"],
])  # fmt: skip
def test_a_wrapped_interpreter_is_seen_through(command: list[str]) -> None:
    found = settings_problems("command", {"command": command, "proof": "static", "file": "a.py", "must_reject": ["("]})
    assert any("runs the answer" in str(problem) for problem in found)


# proves RFT-2: and what no list knows is caught by trying it
def test_a_command_that_runs_the_answer_in_secret_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "checks").write_text("import runpy\nrunpy.run_path('answer.py')\n")
    settings = {
        "command": ["python3", "checks"], "proof": "static", "file": "answer.py", "project": str(tmp_path),
        "must_reject": ["("], "must_contain": ["def add"], "limits": PATIENT,
    }  # fmt: skip
    with pytest.raises(VerifierUnusableError, match="runs the answer"), opened("command", settings):
        pass


# proves RFT-3: a tool in the user's home shows the sandbox itself and not the home
def test_a_program_in_a_home_brings_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for place in ("bin", ".local/bin", "."):
        tool = tmp_path / place / "tool"
        tool.parent.mkdir(parents=True, exist_ok=True)
        tool.write_text("#!/bin/sh\nexit 0\n")
        tool.chmod(0o755)
        assert find_program(str(tool)).folders == (tool.resolve(),)
    kit = tmp_path / "kit" / "bin" / "tool"
    kit.parent.mkdir(parents=True)
    kit.write_text("#!/bin/sh\n")
    kit.chmod(0o755)
    assert find_program(str(kit)).folders == (tmp_path / "kit",)
