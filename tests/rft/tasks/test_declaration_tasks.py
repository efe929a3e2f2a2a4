"""Functions with examples as tasks."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from rft.config import TaskSourceSection
from rft.tasks.declarations import Passed, declaration_tasks
from rft.tasks.task import Task

SHAPES = '''
from __future__ import annotations
import math
import os
from fractions import Fraction as Part, gcd

SIDES = 4
_unit = SIDES // 4


def area(side):
    """The area of a square.

    >>> area(3)
    9
    >>> side = 2
    >>> area(side)  # reads the line above
    4
    >>> shapes.area(1.5)
    2.25
    """
    return _unit * side ** 2


def spread(values):
    """How far the values reach.

    >>> spread([1, 5])
    {'low': 1, 'high': 5}
    >>> spread([])
    Traceback (most recent call last):
    ValueError: nothing
    >>> spread([2, 2])['low']
    2
    """
    if not values:
        raise ValueError("nothing")
    return {"low": min(values), "high": math.floor(max(values))}


def here():
    """Less than the folder's name.

    >>> len(here()) > 0
    True
    >>> len(here()) < 0
    False
    """
    return os.getcwd()


def part(x):
    """As a fraction.

    >>> part(0.5)
    Fraction(1, 2)
    >>> part(2)
    Fraction(2, 1)
    """
    return Part(x)


def read(stream):
    """Its text. What the examples hand over is no value.

    >>> import io
    >>> read(io.StringIO("a"))
    'a'
    >>> read(io.StringIO("b"))
    'b'
    """
    return stream.read()


def once(x):
    """Itself.

    >>> once(1)
    1
    """
    return x


class Box:
    def open(self):
        """Not a function.

        >>> 1
        1
        """
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "shapes.py").write_text(SHAPES)
    return tmp_path


def tasks_of(tree: Path, passed: Passed | None = None, **fields: Any) -> dict[str, Task]:
    found: dict[str, Task] = {}
    for chosen in ("train", "held_out"):  # whichever the file is in
        section = {"name": "src", "type": "declarations", "path": str(tree), "range": chosen, **fields}
        for task in declaration_tasks(TaskSourceSection.model_validate(section), 0, passed):
            found[task.id] = task
    return found


# proves RFT-1
def test_functions_that_stand_alone_become_tasks_judged_by_their_examples(tree: Path) -> None:
    passed = Passed()
    found = tasks_of(tree, passed)
    assert sorted(found) == ["src/shapes.area", "src/shapes.spread"]
    area = found["src/shapes.area"]
    assert area.check.verifier == "python_tests" and area.check.data["entry_point"] == "area"
    assert area.check.data["tests"] == [
        "assert area(3) == (9)", "side = 2\nassert area(side) == (4)", "assert area(1.5) == (2.25)",
    ]  # fmt: skip
    assert found["src/shapes.spread"].check.data["tests"] == [
        "assert spread([1, 5]) == ({'low': 1, 'high': 5})", "assert spread([2, 2])['low'] == (2)",
    ]  # fmt: skip
    assert area.cluster == "shapes" and area.file.endswith("shapes.py") and area.line == 11
    # here() reaches outside; part() has no literal, read() no values; once() has one example, which would be shown
    assert passed.not_alone == 2 and passed.without_examples == 6  # each range looks at all files


# proves RFT-1
def test_the_gold_answer_is_the_source_with_what_it_needs_and_passes_the_tests(tree: Path) -> None:
    for task in tasks_of(tree).values():
        code = (task.gold or "").removeprefix("```python\n").removesuffix("\n```")
        scope: dict[str, Any] = {}
        exec(code, scope)
        for test in task.check.data["tests"]:
            exec(test, dict(scope))
        assert "import os" not in code and "Box" not in code
        exec(f"{task.check.data['prefix']}    pass\n", {})  # the beginning that is shown is code as well
    assert "SIDES = 4\n_unit = SIDES // 4" in (tasks_of(tree)["src/shapes.area"].gold or "")


# proves RFT-1
def test_what_the_prompt_shows_of_the_examples_is_the_users_choice(tree: Path) -> None:
    shown = {choice: tasks_of(tree, params={"examples": choice}) for choice in ("first", "none", "all")}
    first, none, every = (
        shown[choice]["src/shapes.area"].messages[0].content for choice in ("first", "none", "all")
    )
    assert ">>> area(3)\n    9" in first and "side = 2" not in first and "shapes.area" not in first
    assert ">>>" not in none and "The area of a square." in none
    assert every.count(">>>") == 4
    assert "src/shapes.once" in shown["none"] and "src/shapes.once" not in shown["first"]
    assert all("_unit * side" not in text for text in (first, none, every)), "the answer is in the question"


# proves RFT-6
def test_held_out_files_give_no_task_to_train_on_nor_does_a_copy_of_their_functions(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"module{number}.py").write_text(
            f'def double{number}(x):\n    """Twice.\n\n    >>> double{number}(1)\n    2\n'
            f'    >>> double{number}(2)\n    4\n    """\n    return 2 * x\n'
        )
    sides = {}
    for chosen in ("train", "held_out"):
        section = {"name": "src", "type": "declarations", "path": str(tmp_path), "range": chosen}
        sides[chosen] = list(declaration_tasks(TaskSourceSection.model_validate(section), 0))
    ids = [{task.id for task in side} for side in sides.values()]
    assert len(ids[0]) > 8 and len(ids[1]) > 1 and not ids[0] & ids[1] and len(ids[0] | ids[1]) == 20

    copied = sides["held_out"][0]
    (tmp_path / "copies.py").write_text((tmp_path / f"{copied.cluster}.py").read_text())
    (tmp_path / "copied.py").write_text((tmp_path / f"{copied.cluster}.py").read_text())
    section = {"name": "src", "type": "declarations", "path": str(tmp_path)}
    after = {task.gold for task in declaration_tasks(TaskSourceSection.model_validate(section), 0)}
    assert copied.gold not in after


# proves RFT-1
@pytest.mark.slow
def test_the_standard_library_has_such_functions_and_a_sample_of_them_is_stable(tmp_path: Path) -> None:
    section = TaskSourceSection.model_validate(
        {"name": "std", "type": "declarations", "path": "stdlib", "max_tasks": 5, "params": {"examples": "all"}}
    )
    few = list(declaration_tasks(section, 1))
    assert len(few) == 5 and few == list(declaration_tasks(section, 1))
    for task in few:
        ast.parse((task.gold or "").removeprefix("```python\n").removesuffix("\n```"))
