"""Final answers of mathematics: what says the same, what doesn't, and what must not hang. # proves RFT-2"""

from __future__ import annotations

import random

import pytest

from rft.verifiers.maths_answer import final_answer
from rft.verifiers.maths_equal import same_answer

SAME = [
    ("42", "42"), ("42.0", "42"), ("1,234", "1234"), ("$1,234.50$", "1234.5"), ("1{,}234", "1234"), ("-7", "\u22127"),
    (r"\frac{1}{2}", "0.5"), (r"\frac12", "1/2"), (r"\dfrac{3}{6}", r"\tfrac{1}{2}"), ("0.5", "1/2"),
    (r"1\frac{1}{2}", "3/2"),
    ("1 1/2", "1.5"), (r"\sqrt{8}", r"2\sqrt{2}"), (r"\sqrt[3]{27}", "3"), ("sqrt(2)/2", r"\frac{1}{\sqrt{2}}"),
    ("2^{10}", "1024"), ("2**10", "1024"), (r"2\pi", "2*pi"), (r"\pi/4", r"\arctan 1"), ("x^2+2x+1", "(x+1)^2"),
    ("x = 5", "5"), ("5", "x = 5"), ("y=2x+1", "y = 1 + 2x"), ("(1, 2)", r"\left(1,2\right)"), ("1, 2", "2,1"),
    (r"\{1,2,3\}", r"\{3, 2, 1\}"), ("[0, 1)", "[0,1)"), (r"5\text{ cm}", "5"), (r"90^\circ", "90"), (r"50\%", "50"),
    (r"50\%", "0.5"), ("50", r"50\%"), (r"\text{Monday}", "monday"), ("**Even**", "even"), ("B", r"\text{B}"),
    ("5!", "120"), (r"\binom{5}{2}", "10"), ("|x|", "|-x|"), ("3x > 6", "6 < 3x"), (r"\log_2 8", "3"), ("42.", "42"),
    (r"e^{i\pi}", "-1"), ("2 + 3i", "3i+2"), (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"), (r"x\cdot y", "yx"),
    ("0.333333333333", "0.333333333333"), (r"\frac{a}{b}", "a/b"), ("1e5", "1e5"), (r"(-\infty, 3]", r"(-\infty,3]"),
    (r"\sin^2 x + \cos^2 x", "1"), ("27^{1/3}", "3"),
]  # fmt: skip
DIFFERENT = [
    ("42", "43"), ("1234", "1,235"), ("0.33", "1/3"), ("0.333333333333", "1/3"), ("5 or 6", "5"), ("5, 6", "5"),
    ("(2, 1)", "(1, 2)"), ("[0, 1]", "[0, 1)"), (r"\{1,2\}", r"\{1,2,2\}"), ("x", r"\sqrt{x^2}"), ("x+1", "x"),
    ("Tuesday", "Monday"), ("", "5"), ("nan", "5"), (r"\infty", "5"), (r"\infty", r"-\infty"), ("1/0", "0"),
    ("0/0", "5"),
    ("x", "5"), ("5", "x"), ("50", "0.5"), ("x > 3", "x < 3"), ("x >= 3", "x > 3"), ("e", "2.718281828"),
    ("pi", "3.14159"),
    ("__import__('os').system('true')", "0"), ("().__class__", "5"), ("True", "1"), ("5 5", "25"), ("1_2", "12"),
    ("12_3", "12"), ("5; import os", "5"), ("the answer is 42 or 43", "42"), (r"\frac{1}{2}{3}", "1/6 + 1"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "right"), SAME)
def test_answers_that_say_the_same_are_equal(given: str, right: str) -> None:
    assert same_answer(given, right)
    assert same_answer(right, given)


@pytest.mark.parametrize(("given", "right"), DIFFERENT)
def test_answers_that_differ_are_not_equal(given: str, right: str) -> None:
    assert not same_answer(given, right)


BOMBS = [
    "9^9^9^9", "9**9**9**9", "10^(10^(10^10))", "99999!", "3!!!!!!!!", "(" * 5000 + "1" + ")" * 5000, "1" * 2000,
    "+".join("1" * 1000), "2^" * 900 + "2", "-" * 1900 + "1", r"\frac" * 300, r"\sqrt[99]{2}" * 80, "sin(10^99999)",
    r"\binom{999999999}{499999999}", "exp(exp(exp(exp(99))))", "1/3^-9999999", "0^-1", "0^0^0^-1", "|" * 500,
    "{" * 1000,
    "((" + "1+" * 150 + "1)^99)^99", "x^99999^99999", "e^{e^{e^{e^{9}}}}", "\\left" * 300, "_" * 300, "1,234," * 200,
]  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS)
def test_an_answer_made_to_take_for_ever_is_judged_at_once(bomb: str) -> None:
    """Finishing at all is the proof: evaluated naively, each takes all the time or memory there is."""
    assert not same_answer(bomb, "7")
    assert not same_answer(bomb, r"\sqrt{7}x")


def test_random_text_is_never_an_error() -> None:
    alphabet = ["1", "2", "x", "\\frac", "{", "}", "(", ")", "[", "]", "^", "_", "+", "-", "/", "!", "|", ",", "%",
                "sqrt",
                "\\sqrt", "\\pi", "e", "i", "=", "<", "\\log", "sin", ".", " ", "\\{", "\\}", "\\binom"]  # fmt: skip
    rng = random.Random(1)
    for _ in range(3000):
        text = "".join(rng.choices(alphabet, k=rng.randint(1, 14)))
        same_answer(text, "7")
        assert same_answer(text, text) in (True, False)


def test_the_final_answer_is_found_by_the_first_rule_that_finds_one() -> None:
    rules = ("boxed", "tagged", "marked", "said", "last_number")
    assert final_answer(r"so \boxed{1} or rather \boxed{\frac{1}{2}}. The answer is 9", rules) == (
        "boxed",
        r"\frac{1}{2}",
    )
    assert final_answer("I think <answer>1</answer> no <answer> 2 </answer>", rules) == ("tagged", "2")
    assert final_answer("6 * 7 = 42\n#### 42", rules) == ("marked", "42")
    assert final_answer("The answer is 7.\nNo: the final answer is: $8$.", rules) == ("said", "$8$")
    assert final_answer("we have 3 and then 1,234.5", rules) == ("last_number", "1,234.5")
    assert final_answer("nothing here", rules) is None
    assert final_answer("the answer is 3", ("boxed",)) is None
    assert final_answer(r"\boxed{3", rules) == ("last_number", "3")
