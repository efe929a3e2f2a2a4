"""proves RFT-6: when answers are the same, and which of them are taken."""

from __future__ import annotations

import re

import pytest

from rft.diversity import Answer, answer_key, choose

WORD_N = r"(?<!\w)n(?!\w)"
PLAIN = "def area(width, height):\n    size = width * height\n    return size\n"
COMMENTED = "# the area\ndef area(width,height):\n\n    size = width*height  # of it\n    return size\n"
RENAMED = 'def area(w, h):\n    """The area."""\n    a = w * h\n    return a\n'
OTHER = "def area(width, height):\n    size = height * width\n    return size\n"


def fenced(code: str) -> str:
    return f"Here is the function:\n\n```python\n{code}```\n\nIt multiplies."


@pytest.mark.parametrize(
    ("distinct", "one", "other", "same"),
    [
        ("text", PLAIN, PLAIN, True),
        ("text", PLAIN, COMMENTED, False),
        ("tokens", PLAIN, COMMENTED, True),
        ("tokens", fenced(PLAIN), COMMENTED, True),
        ("tokens", PLAIN, RENAMED, False),
        ("python_ast", PLAIN, RENAMED, True),
        ("python_ast", fenced(RENAMED), COMMENTED, True),
        ("python_ast", PLAIN, OTHER, False),
        ("python_ast", PLAIN, PLAIN.replace("area", "surface"), False),
        ("python_ast", PLAIN, PLAIN.replace("return size", "return width"), False),
        ("tokens", "The answer is 12.", "The  answer\nis 12 .", True),
        ("tokens", "The answer is 12.", "The answer is 13.", False),
        ("python_ast", "The answer is 12.", "The answer is  12.", True),
        ("tokens", "if a:\n    b()\nc()", "if a:\n    b()\n    c()", False),
    ],
)
def test_answers_are_the_same(distinct: str, one: str, other: str, same: bool) -> None:
    assert (answer_key(one, distinct) == answer_key(other, distinct)) is same  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("return [x for x in n]", "return [y for y in n]", True),
        ("def g(k):\n    return n + k\n  return g", "def h(b):\n    return n + b\n  return h", True),
        ("def g(k):\n    return n + k\n  return g", "def h(b):\n    return b + n\n  return h", False),
        ("global total\n  total = n", "global count\n  count = n", False),
        ("return sorted(n, key=lambda x: -x)", "return sorted(n, key=lambda y: -y)", True),
        ("return math.sqrt(n)", "return cmath.sqrt(n)", False),
        ("try: g()\n  except E as e: return e", "try: g()\n  except E as x: return x", True),
        ("pass\nx = 1", "pass\ny = 1", False),
    ],
)
def test_only_local_names_are_no_difference(one: str, other: str, same: bool) -> None:
    keys = [answer_key(f"def f({name}):\n  {body}", "python_ast") for name, body in (("n", one), ("n", other))]
    assert (keys[0] == keys[1]) is same
    renamed = answer_key(f"def f(number):\n  {re.sub(WORD_N, 'number', one)}", "python_ast")
    assert renamed == keys[0], "the argument's own name is no difference either"


@pytest.mark.parametrize(
    "text", ["", "((" * 50_000, "def f(:\n", "\0", "x = " + "-" * 90_000 + "1", "\ud800", "[" * 3000 + "]" * 3000]
)
def test_nothing_that_a_model_says_is_too_much(text: str) -> None:
    for distinct in ("text", "tokens", "python_ast"):
        assert len(answer_key(text, distinct)) == 32  # type: ignore[arg-type]


def test_which_answers_are_taken() -> None:
    answers = [Answer(3, "c", 5), Answer(0, "a", 9), Answer(1, "b", 7), Answer(2, "a", 2), Answer(4, "d", 5)]
    assert choose(answers, "first", 2) == [0, 1]
    assert choose(answers, "shortest", 2) == [2, 3], "the shortest of those that are the same, then the shortest ones"
    assert choose(answers, "first", 9) == [0, 1, 3, 4] == choose(answers, "all", 1)
    assert choose([], "first", 2) == []
    assert choose(list(reversed(answers)), "first", 2) == [0, 1], "the order in which they come is no matter"
