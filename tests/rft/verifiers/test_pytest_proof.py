"""A module judged by pytest, which it never meets: none of the ways to pass without solving works. # proves RFT-2"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from judged import fenced, opened, task_of

from rft.gold import State, check_task
from rft.tasks.task import Task
from rft.verifiers.registry import settings_problems
from rft.verifiers.verdict import Outcome
from rft.verifiers.verifier import Verifier

SETTINGS: dict[str, Any] = {
    "command": [str(Path(sys.executable).parent / "pytest")],
    "proof": "pytest",
    "file": "solution.py",
    "limits": {"timeout_seconds": 300.0},  # so that a slow machine changes nothing
}
TESTS = """
import pytest
import solution
from solution import LIMIT, Box, add


@pytest.mark.parametrize(("a", "b"), [(1, 2), (30, 4)])
def test_adds(a, b):
    assert add(a, b) == a + b


def test_refuses_text():
    with pytest.raises(ValueError, match="no number"):
        solution.add(1, "x")


def test_box():
    box = Box([3])
    box.put(4)
    assert box.items == [3, 4] and LIMIT == 7
"""
RIGHT = """
LIMIT = 7


class Box:
    def __init__(self, items):
        self.items = list(items)

    def put(self, item):
        self.items.append(item)


def add(a, b):
    if not isinstance(b, int):
        raise ValueError("no number")
    return a + b
"""
REST = RIGHT.partition("def add")[0]
ATTACKS = {
    "nothing": "",
    "wrong": RIGHT.replace("a + b", "a - b"),
    "exits": "import sys\nsys.exit(0)",
    "exits at once": "import os\nos._exit(0)",
    "exits when asked": REST + "import os\ndef add(a, b):\n    os._exit(0)",
    "raises SystemExit when asked": REST + "def add(a, b):\n    raise SystemExit(0)",
    "interrupts": REST + "def add(a, b):\n    raise KeyboardInterrupt",
    "atexit": "import atexit, os\natexit.register(os._exit, 0)\nraise SystemExit(0)",
    "skips the module": "import pytest\npytest.skip('no', allow_module_level=True)",
    "skips each test": REST + "import pytest\ndef add(a, b):\n    pytest.skip('no')",
    "expects to fail": REST + "import pytest\ndef add(a, b):\n    pytest.xfail('no')",
    "equals everything": (
        "class Any:\n    def __init__(self, *_): pass\n    def __eq__(self, other): return True\n"
        "    def __getattr__(self, name): return Any()\n    def __call__(self, *_): return Any()\n"
        "Box = Any\nLIMIT = Any()\ndef add(a, b): return Any()"
    ),
    "equals everything as a number": REST + (
        "class One(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
        "def add(a, b):\n    if not isinstance(b, int): raise ValueError('no number')\n    return One(0)"
    ),
    "writes a conftest": "open('conftest.py', 'w').write('collect_ignore_glob = [\"*\"]')\n" + REST + "add = None",
    "writes over the tests": (
        "import glob\nfor name in ['test_it.py', *glob.glob('/tmp/**/*.py', recursive=True)]:\n"
        "    open(name, 'w').write('def test_nothing(): pass')\nadd = None\n" + REST
    ),
    "writes sitecustomize": "open('sitecustomize.py', 'w').write('import os; os._exit(0)')\n" + REST + "add = None",
    "patches pytest": (
        "import _pytest.runner, _pytest.python, builtins\n_pytest.runner.call_and_report = lambda *a, **k: None\n"
        "builtins.AssertionError = type('Fine', (BaseException,), {})\n" + RIGHT.replace("a + b", "a - b")
    ),
    "walks the frames": REST + (
        "import sys\ndef add(a, b):\n    frame = sys._getframe()\n    while frame:\n"
        "        for value in frame.f_locals.values():\n"
        "            if hasattr(value, 'append'): value.append('passed')\n        frame = frame.f_back\n    return 0"
    ),
    "prints that it passed": REST + (
        "import os\ndef add(a, b):\n    print('4 passed in 0.01s')\n    os.write(1, b'4 passed in 0.01s\\n')\n"
        "    return 0"
    ),
    "writes into the line": REST + (
        "import os\ndef add(a, b):\n    for n in range(3, 9):\n        if os.path.exists(f'/proc/self/fd/{n}'):\n"
        "            os.write(n, b'\\x00\\x00\\x00\\x11[\"value\",3,[],\"\"]')\n    return 0"
    ),
    "kills everybody": REST + "import os, signal\ndef add(a, b):\n    os.kill(-1, signal.SIGKILL)",
}  # fmt: skip


QUICK = (
    "nothing", "exits at once", "skips each test", "equals everything", "writes over the tests", "patches pytest",
    "prints that it passed", "kills everybody",
)  # fmt: skip
"""What is tried each time; the others are slow only in number."""


def asking(**more: Any) -> Task:
    return task_of("command", {"files": {"test_it.py": TESTS}}, **more)


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with opened("command", SETTINGS) as found:
        yield found


def test_a_right_module_passes_all_tests(verifier: Verifier) -> None:
    verdict = verifier.judge(asking(), fenced(RIGHT))
    assert verdict.outcome is Outcome.ACCEPTED, verdict
    assert (verdict.passed, verdict.expected) == (4, 4)


@pytest.mark.parametrize(
    "attack", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ATTACKS]
)
def test_nothing_passes_without_solving(verifier: Verifier, attack: str) -> None:
    verdict = verifier.judge(asking(), fenced(ATTACKS[attack]))
    assert verdict.outcome is Outcome.REJECTED, verdict
    assert verdict.passed is not None and verdict.passed < 4, verdict


def test_the_diagnostic_is_pytests_own(verifier: Verifier) -> None:
    verdict = verifier.judge(asking(), fenced(ATTACKS["wrong"]))
    assert (verdict.reason, verdict.passed, verdict.expected) == ("tests failed", 2, 4)
    assert "assert -1 == (1 + 2)" in verdict.diagnostic and "where -1 = add(1, 2)" in verdict.diagnostic


def test_a_module_that_cannot_be_imported_tells_why(verifier: Verifier) -> None:
    verdict = verifier.judge(asking(), fenced("def add(:\n"))
    assert verdict.reason == "the tests cannot import it" and "SyntaxError" in verdict.diagnostic
    verdict = verifier.judge(asking(), fenced("import nowhere"))
    assert "No module named 'nowhere'" in verdict.diagnostic


def test_a_module_that_hangs_is_out_of_time() -> None:
    with opened("command", {**SETTINGS, "limits": {"timeout_seconds": 4.0}}) as verifier:
        assert verifier.judge(asking(), fenced("while True: pass")).outcome is Outcome.TIMEOUT


@pytest.mark.parametrize(
    "tests",
    [
        "from solution import add\n\n\n@pytest.mark.skip\ndef test_it():\n    assert add(1, 2) == 3\n",
        "from solution import add\n\n\n@pytest.mark.xfail\ndef test_it():\n    assert add(1, 2) == 4\n",
        "from solution import add\n\npytest.skip('later', allow_module_level=True)\n\n\ndef test_it():\n    pass\n",
        "from solution import add\n\n\nclass Tests:\n    def __init__(self): pass\n\n    def test_it(self): pass\n",
    ],
)
def test_tests_that_do_not_run_are_no_passes(verifier: Verifier, tests: str) -> None:
    task = task_of("command", {"files": {"test_it.py": f"import pytest\n{tests}"}}, gold=fenced(RIGHT))
    found = check_task(task, verifier)
    assert found.state is State.INVALID, found


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "there is no test_*.py"),
        ({"checks.py": TESTS}, "there is no test_*.py"),
        ({"test_it.py": "import solution\n"}, "no function whose name begins with test"),
        ({"test_it.py": "def test_it():\n    pass\n"}, "no test file imports solution"),
        ({"test_it.py": "def test_it(:"}, "does not compile"),
    ],
)
def test_a_task_without_tests_says_so(verifier: Verifier, files: dict[str, str], words: str) -> None:
    assert words in (verifier.problem(task_of("command", {"files": files})) or "")


@pytest.mark.parametrize("file", ["conftest.py", "a/solution.py", "solution.txt"])
def test_the_judged_file_must_be_a_module(file: str) -> None:
    assert settings_problems("command", {**SETTINGS, "file": file})
