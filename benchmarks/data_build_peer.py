"""The peer of data_build.py: a deduplication script as people write it with `datasets` and datasketch.

Usage: data_build_peer.py ROWS.jsonl BENCH.jsonl OUTPUT.jsonl
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from datasets import Dataset, disable_progress_bars
from datasketch import MinHash, MinHashLSH

PROCESSES = 2
PERMUTATIONS = 128
THRESHOLD = 0.8
GRAM, BENCH_GRAM = 3, 13
CONTAINMENT = 0.2
PERMUTED = MinHash(num_perm=PERMUTATIONS).permutations
WORD = re.compile(r"\w+|[^\w\s]")


def words_of(row: dict[str, Any]) -> list[str]:
    return WORD.findall(f"{row['prompt']}\n{row['completion']}".casefold())


def grams(words: list[str], size: int) -> set[str]:
    return {" ".join(words[start : start + size]) for start in range(max(1, len(words) - size + 1))}


def with_key(row: dict[str, Any]) -> dict[str, Any]:
    text = "\x1e".join(" ".join(row[field].split()).casefold() for field in ("prompt", "completion"))
    return {"key": xxhash.xxh3_128_hexdigest(text.encode())}


def hash32(gram: bytes) -> int:
    return xxhash.xxh32_intdigest(gram)


def with_minhash(row: dict[str, Any]) -> dict[str, Any]:
    minhash = MinHash(num_perm=PERMUTATIONS, hashfunc=hash32, permutations=PERMUTED, scheme="affine32")
    minhash.update_batch([gram.encode() for gram in grams(words_of(row), GRAM)])
    return {"minhash": minhash.hashvalues}


def main(source: Path, bench: Path, output: Path, cache: str) -> None:
    rows = Dataset.from_json(str(source), cache_dir=cache)
    rows = rows.map(with_key, num_proc=PROCESSES)
    seen: set[str] = set()

    def is_new(key: str) -> bool:
        if key in seen:
            return False
        seen.add(key)
        return True

    rows = rows.filter(is_new, input_columns="key")

    items = [grams(WORD.findall(json.loads(line)["text"].casefold()), BENCH_GRAM) for line in bench.open()]
    owners: dict[str, list[int]] = {}
    for index, item in enumerate(items):
        for gram in item:
            owners.setdefault(gram, []).append(index)

    def is_clean(row: dict[str, Any]) -> bool:
        shared: dict[int, int] = {}
        for gram in grams(words_of(row), BENCH_GRAM):
            for index in owners.get(gram, ()):
                shared[index] = shared.get(index, 0) + 1
        return all(count < CONTAINMENT * len(items[index]) for index, count in shared.items())

    rows = rows.filter(is_clean, num_proc=PROCESSES)

    rows = rows.map(with_minhash, num_proc=PROCESSES)
    index = MinHashLSH(threshold=THRESHOLD, num_perm=PERMUTATIONS)
    kept: list[int] = []
    for number, values in enumerate(rows.with_format("numpy", columns=["minhash"])):
        hashes = values["minhash"].astype(np.uint32)
        minhash = MinHash(hashvalues=hashes, permutations=PERMUTED, scheme="affine32")
        if not index.query(minhash):
            index.insert(number, minhash, check_duplication=False)
            kept.append(number)
    rows.select(kept).remove_columns(["key", "minhash"]).to_json(str(output))


if __name__ == "__main__":
    disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder:
        main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), folder)
