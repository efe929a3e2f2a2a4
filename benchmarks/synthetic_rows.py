"""Rows with planted copies and bench items, and the judgement of what was kept of them."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

EXACT_SHARE, NEAR_SHARE, LEAK_SHARE = 0.30, 0.10, 0.001
MAX_EDITED = 0.025
"""Share of its words that a near copy differs in, at most; at least one word."""

BENCH_ITEMS = 500
VOCABULARY = 30_000
TEMPLATES = 60
REMEMBERED = 50_000
"""Copies are made of the last so many originals."""


@dataclass(frozen=True)
class Truth:
    """By row: the original that it is made of (its own index for an original), and what it is."""

    origin: Sequence[int]
    kind: Sequence[int]


ORIGINAL, EXACT, NEAR, LEAK = range(4)


def write_rows(path: Path, bench: Path, rows: int, seed: int) -> Truth:
    """``rows`` instruction rows of 300 to 800 characters, mostly, to ``path``; items that some contain to ``bench``.

    Words follow Zipf's law; 60 % of the prompts begin with one of a few templates, so that different rows share text.
    Exact copies differ from their original in whitespace or letter case half of the time.
    """
    rng = np.random.default_rng(seed)
    words = _vocabulary(rng)
    weights = 1 / (np.arange(VOCABULARY) + 10.0)
    cumulative = np.cumsum(weights / weights.sum())
    numbers = iter(_word_numbers(rng, cumulative))
    items = [_text(words, [next(numbers) for _ in range(40)]) for _ in range(BENCH_ITEMS)]
    bench.write_text("".join(json.dumps({"id": f"item {i}", "text": text}) + "\n" for i, text in enumerate(items)))
    templates = [_text(words, [next(numbers) for _ in range(length)]) for length in rng.integers(8, 25, TEMPLATES)]
    origin, kind = array("q"), array("b")
    remembered: list[tuple[int, str, str]] = []
    with open(path, "w", encoding="utf-8") as file:
        for row in range(rows):
            chance = rng.random()
            if remembered and chance < EXACT_SHARE + NEAR_SHARE:
                of, prompt, response = remembered[int(rng.integers(len(remembered)))]
                what = EXACT if chance < EXACT_SHARE else NEAR
                if what == EXACT and rng.random() < 0.5:
                    prompt, response = f" {prompt.upper()}", response.replace(". ", ".\n")
                elif what == NEAR:
                    response = _edited(rng, words, response, prompt)
            else:
                of, what = row, ORIGINAL
                lengths = rng.integers((6, 30), (40, 90))
                prompt, response = (_text(words, [next(numbers) for _ in range(length)]) for length in lengths)
                if rng.random() < 0.6:
                    prompt = f"{templates[int(rng.integers(TEMPLATES))]} {prompt}"
                if rng.random() < LEAK_SHARE / (1 - EXACT_SHARE - NEAR_SHARE):
                    what = LEAK
                    response = f"{response}\n{items[int(rng.integers(BENCH_ITEMS))]}\n{response[:80]}"
                elif len(remembered) < REMEMBERED:
                    remembered.append((row, prompt, response))
                else:
                    remembered[int(rng.integers(REMEMBERED))] = row, prompt, response
            origin.append(of)
            kind.append(what)
            file.write(json.dumps({"id": row, "prompt": prompt, "completion": response}) + "\n")
    return Truth(origin, kind)


@dataclass(frozen=True)
class Judgement:
    """What became of the planted rows, as shares: of near and exact copies and leaks dropped, of originals lost.

    An original is lost when no row made of it was kept.
    """

    near: float
    exact: float
    leaks: float
    lost: float


def judge(truth: Truth, kept: Iterable[int]) -> Judgement:
    """``kept`` are the ``id`` of the rows that came out."""
    origin, kind = np.array(truth.origin), np.array(truth.kind)
    here = np.zeros(len(origin), np.bool_)
    here[np.fromiter(kept, np.int64)] = True
    families = np.bincount(origin[here & (kind != LEAK)], minlength=len(origin))
    # Of a family with an exact copy and near copies any one may be kept, so what is too much is counted by family.
    exact_kept = int((here & (kind == EXACT)).sum())
    too_many = int(np.maximum(families - 1, 0).sum())
    originals = kind == ORIGINAL
    return Judgement(
        near=1 - too_many / int((kind == NEAR).sum()),
        exact=1 - exact_kept / int((kind == EXACT).sum()),
        leaks=1 - float(here[kind == LEAK].mean()),
        lost=float((families[originals] == 0).mean()),
    )


def _vocabulary(rng: np.random.Generator) -> list[str]:
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    lengths = rng.integers(2, 11, VOCABULARY)
    return ["".join(rng.choice(letters, length)) for length in lengths]


def _word_numbers(rng: np.random.Generator, cumulative: np.ndarray) -> Iterator[int]:
    while True:
        yield from np.searchsorted(cumulative, rng.random(1 << 16)).tolist()


def _text(words: Sequence[str], numbers: Sequence[int]) -> str:
    """Sentences of eleven words."""
    chosen = [words[min(number, VOCABULARY - 1)] for number in numbers]
    sentences = [" ".join(chosen[start : start + 11]) for start in range(0, len(chosen), 11)]
    return ". ".join(sentence.capitalize() for sentence in sentences) + "."


def _edited(rng: np.random.Generator, words: Sequence[str], text: str, besides: str) -> str:
    """``text`` with words replaced, left out or put in, so that at most MAX_EDITED of all words are others."""
    pieces = text.split(" ")
    most = max(1, int(MAX_EDITED * (len(pieces) + besides.count(" ") + 1)))
    for _ in range(int(rng.integers(1, most + 1))):
        place, new = int(rng.integers(len(pieces))), words[int(rng.integers(VOCABULARY))]
        how = int(rng.integers(3))
        pieces[place : place + (how != 1)] = [] if how == 0 else [new]
    return " ".join(pieces)
