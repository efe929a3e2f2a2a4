"""Copies are found, exact and near; different rows are kept apart."""

import random
from pathlib import Path

import numpy as np
import pytest

from trainer.data import near_duplicates
from trainer.data.messages import Message, Row, ToolCall
from trainer.data.near_duplicates import duplicate_parts, find_duplicates

# proves DAT-2

WORDS = [f"{stem}{ending}" for stem in ("load", "parse", "write", "tensor", "batch", "token", "row", "split", "seed")
         for ending in ("", "er", "ed", "s", "ing", "_id", "_of", "2", "able", "ness", "ful")]  # fmt: skip


def words(rng: random.Random, count: int) -> list[str]:
    return rng.choices(WORDS, k=count)


def edited(rng: random.Random, text: list[str], edits: int) -> list[str]:
    text = list(text)
    for place in rng.sample(range(len(text)), edits):
        text[place] = "edited" + str(rng.randrange(10**6))
    return text


def planted(seed: int, originals: int = 400) -> tuple[list[str], list[int]]:
    """Rows and for each the row that it was made from; a third are near copies with 1 to 3 of 60 to 120 words new."""
    rng = random.Random(seed)
    base = [words(rng, rng.randint(60, 120)) for _ in range(originals)]
    rows = [(text, index) for index, text in enumerate(base)]
    rows += [(edited(rng, base[index], rng.randint(1, 3)), index) for index in range(0, originals, 2)]
    return [" ".join(text) for text, _ in rows], [source for _, source in rows]


def test_planted_near_copies_are_found_and_nothing_else_is_merged() -> None:
    texts, source = planted(1)
    found = find_duplicates(texts, threshold=0.7, seed=3)
    copies = range(400, len(texts))
    assert np.mean([found.cluster_of[copy] == source[copy] for copy in copies]) >= 0.97
    assert all(source[found.cluster_of[row]] == source[row] for row in range(len(texts)))
    assert not found.exact().any()
    assert found.near().sum() == sum(found.cluster_of[copy] != copy for copy in copies)


def jaccard(one: str, other: str) -> float:
    left, right = (set(zip(text.split(), text.split()[1:], text.split()[2:], strict=False)) for text in (one, other))
    return len(left & right) / len(left | right)


def test_only_pairs_that_reach_the_threshold_are_merged() -> None:
    rng = random.Random(5)
    texts = []
    for _ in range(300):
        original = words(rng, 80)
        texts += [" ".join(original), " ".join(edited(rng, original, rng.randint(1, 14)))]
    found = find_duplicates(texts, threshold=0.6, seed=0)
    for row in range(0, len(texts), 2):
        similarity = jaccard(texts[row], texts[row + 1])
        if found.cluster_of[row + 1] == row:
            assert similarity >= 0.6
        elif similarity >= 0.75:
            pytest.fail(f"rows with similarity {similarity:.2f} were kept apart")


def test_whitespace_and_case_make_no_difference_but_every_part_counts() -> None:
    question = "add two numbers"
    rows = [("Add  two\nnumbers", "a + b"), (question, "A +\tb"), (question, "b + a"), ("add", "a + b")]
    found = find_duplicates(rows, threshold=0.9, seed=0)
    assert found.exact_of.tolist() == [0, 0, 2, 3]
    assert found.cluster_of.tolist() == [0, 0, 2, 3]


def test_text_does_not_move_between_parts_unnoticed() -> None:
    found = find_duplicates([("a b", "c"), ("a", "b c"), ("a b c", "")], threshold=0.5, seed=0)
    assert found.exact_of.tolist() == [0, 1, 2]


def test_one_template_with_different_answers_is_many_rows() -> None:
    template = "You are a careful accountant. " * 3 + " ".join(words(random.Random(2), 100))
    rows = [(f"{template} How much is {number} times two?", str(2 * number)) for number in range(50)]
    found = find_duplicates(rows, threshold=0.7, seed=0)
    assert found.cluster_of.tolist() == list(range(50))
    # The same texts as one part: the answer drowns in the template.
    assert not find_duplicates([" ".join(row) for row in rows], threshold=0.7, seed=0).cluster_of.any()


def test_a_chain_of_near_copies_is_one_cluster_named_by_its_first_row() -> None:
    rng = random.Random(9)
    chain = [words(rng, 100)]
    for _ in range(12):
        chain.append(edited(rng, chain[-1], 2))
    texts = [" ".join(text) for text in [words(rng, 100), *chain]]
    found = find_duplicates(texts, threshold=0.8, seed=1)
    assert jaccard(texts[1], texts[-1]) < 0.8
    assert found.cluster_of.tolist() == [0] + [1] * 13
    assert np.array_equal(found.cluster_of[found.cluster_of], found.cluster_of)


def test_exact_copies_belong_to_the_cluster_of_their_first() -> None:
    rng = random.Random(4)
    one = words(rng, 90)
    near = edited(rng, one, 1)
    texts = [" ".join(text) for text in (one, near, near, one)]
    found = find_duplicates(texts, threshold=0.7, seed=0)
    assert found.exact_of.tolist() == [0, 1, 1, 0]
    assert found.cluster_of.tolist() == [0, 0, 0, 0]
    assert found.exact().tolist() == [False, False, True, True]
    assert found.near().tolist() == [False, True, False, False]


def test_rows_that_meet_strangers_first_still_find_their_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    # All rows in one bucket, whose first row is a stranger to all but one of the others.
    def one_bucket(hashes: object, offsets: np.ndarray, seed: int) -> np.ndarray:
        return np.zeros((len(offsets) - 1, near_duplicates.BANDS), np.uint64)

    monkeypatch.setattr(near_duplicates, "_band_keys", one_bucket)
    rng = random.Random(8)
    families = [words(rng, 64) for _ in range(6)]
    texts = [" ".join(text) for text in [*families, *[edited(rng, family, 1) for family in families]]]
    found = find_duplicates(texts, threshold=0.8, seed=0)
    assert found.cluster_of.tolist() == [*range(6), *range(6)]


def test_clusters_are_named_by_their_smallest_row_however_the_pairs_come() -> None:
    rng = np.random.default_rng(0)
    rows = rng.permutation(200)
    left, right = rows[:-1], rows[1:]
    order = rng.permutation(len(left))
    assert not near_duplicates.united(np.arange(200), left[order], right[order]).any()
    halves = (left < 100) == (right < 100)
    apart = near_duplicates.united(np.arange(200), left[halves], right[halves])
    assert np.array_equal(apart[apart], apart) and (apart <= np.arange(200)).all()
    assert ((apart < 100) == (np.arange(200) < 100)).all()


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    texts, _ = planted(7, originals=100)
    first = find_duplicates(iter(texts), threshold=0.7, seed=3, spool=tmp_path)
    again = find_duplicates(texts, threshold=0.7, seed=3)
    assert first.exact_of.tobytes() == again.exact_of.tobytes()
    assert first.cluster_of.tobytes() == again.cluster_of.tobytes()
    assert not list(tmp_path.iterdir())


def test_empty_texts_and_any_unicode() -> None:
    chinese = "\u5c06\u4e00\u4e2a\u6570\u7ec4\u6309\u5347\u5e8f\u6392\u5e8f\u5e76\u8fd4\u56de" * 2
    texts = [
        *["", " \n", "\u00dcBUNG macht den Meister", "\u00fcbung  macht den meister", "\ud800"],
        *["\U0001f600 \U0001f600", chinese + "\u7684\u7ed3\u679c", chinese + "\u7684\u7b54\u6848", "\x00", "\x01"],
    ]
    found = find_duplicates(texts, threshold=0.7, seed=0)
    assert found.exact_of.tolist() == [0, 0, 2, 2, 4, 5, 6, 7, 8, 9]
    assert found.cluster_of.tolist() == [0, 0, 2, 2, 4, 5, 6, 6, 8, 9]
    nothing = find_duplicates([], threshold=0.7, seed=0)
    assert len(nothing.exact_of) == len(nothing.cluster_of) == 0


def test_rows_with_another_number_of_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="different numbers of parts, the first has 2"):
        find_duplicates([("a", "b"), "c"], threshold=0.7, seed=0)


def test_a_row_is_compared_by_everything_asked_and_everything_answered() -> None:
    call = ToolCall("search", {"query": "rank"})
    row = Row(
        (
            Message("system", "Be brief."),
            Message("user", "Find it."),
            Message("assistant", "", tool_calls=(call,)),
            Message("tool", "found"),
            Message("assistant", "Here."),
        ),
        (),
        "rows.jsonl",
        1,
    )
    assert duplicate_parts(row) == ("Be brief.\nFind it.\nfound", '\n["search", {"query": "rank"}]\nHere.')
