"""Token n-grams in numpy against the same rules written down one character at a time."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.keys import normalised
from trainer.data.shingles import ngrams, tokens

# proves DAT-2 and DAT-3: what rows are compared by


def plain_tokens(text: str) -> list[str]:
    found: list[str] = []
    open_word = False
    for character in normalised(text):
        size = len(character.encode("utf-8", "surrogatepass"))
        if character <= " " or character == "\x7f":
            open_word = False
        elif size == 2 or (size == 1 and (character.isalnum() or character == "_")):
            if open_word:
                found[-1] += character
            else:
                found.append(character)
            open_word = True
        else:
            found.append(character)
            open_word = False
    return found


def plain_ngrams(text: str, size: int) -> list[tuple[str, ...]]:
    pieces = plain_tokens(text)
    if 0 < len(pieces) < size:
        return [tuple(pieces)]
    return [tuple(pieces[start : start + size]) for start in range(len(pieces) - size + 1)]


characters = st.one_of(st.sampled_from("ab_1 .(\n\u00e9\u4e2d\U0001f600\u00a0"), st.characters(codec=None))
some_text = st.text(characters, max_size=30)


@settings(max_examples=100, deadline=None)
@given(st.lists(some_text, max_size=8), st.integers(1, 5))
def test_grams_are_equal_where_their_tokens_are(texts: list[str], size: int) -> None:
    grams = ngrams(tokens(texts), size)
    expected = [gram for text in texts for gram in plain_ngrams(text, size)]
    assert grams.counts().tolist() == [len(plain_ngrams(text, size)) for text in texts]
    hash_of: dict[tuple[str, ...], int] = {}
    for gram, value in zip(expected, grams.hashes.tolist(), strict=True):
        assert hash_of.setdefault(gram, value) == value
    assert len(set(hash_of.values())) == len(hash_of)


def test_hashes_do_not_depend_on_the_rest_of_the_batch() -> None:
    alone = tokens(["def add(a, b): return a + b"]).hashes
    among = tokens(["x" * 70_000, "def add(a, b): return a + b", "\u4e2d\u6587"])
    assert np.array_equal(among.hashes[among.offsets[1] : among.offsets[2]], alone)


def test_hashes_are_the_same_for_ever() -> None:
    # Fingerprints of finished builds rest on them.
    assert tokens(["Ab c."]).hashes.tolist() == [5075032080987255953, 9367081537041232729, 1173333183106947505]
