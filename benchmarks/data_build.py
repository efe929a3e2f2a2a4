"""`mens-sup data build` against the usual script of `datasets` map and filter with datasketch, on the same rows.

Both read one file, drop exact copies (whitespace and letter case aside), near copies (MinHash with banding over word
trigrams, Jaccard 0.8) and rows with a bench item (13-grams), and write what is left; the peer uses two processes.
`mens-sup data build` also checks every row, digests inputs and outputs, lists what it dropped, and writes a report.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import machine
import psutil
from synthetic_rows import Judgement, judge, write_rows

GIB = 2**30
ROWS = 100_000
TARGET_RATIO, TARGET_GIB, TARGET_RECALL = 5.0, 2.0, 0.95
MENS_SUP = Path(sys.executable).with_name("mens-sup")
PEER = Path(__file__).with_name("data_build_peer.py")

MIX = """\
name: synthetic
seed: 1
sources:
  - {{name: rows, path: {rows}, metadata_fields: [id]}}
exclude:
  - {{name: bench, path: {bench}, fields: [text], id_field: id}}
duplicates: {{near: drop, threshold: 0.8}}
contamination: {{ngram: 13}}
"""


@dataclass(frozen=True)
class Cost:
    """Seconds on the wall and of processors, and the most bytes that all its processes had resident at one time."""

    wall: float
    processor: float
    resident: int


def measured(command: Sequence[str]) -> Cost:
    """Run to its end. Raises CalledProcessError."""
    before, began = os.times(), time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    peak, finished = [0], threading.Event()
    watcher = threading.Thread(target=_watch, args=(psutil.Process(process.pid), peak, finished))
    watcher.start()
    code = process.wait()
    finished.set()
    watcher.join()
    after = os.times()
    if code:
        raise subprocess.CalledProcessError(code, list(command))
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(time.monotonic() - began, spent, peak[0])


def _watch(root: psutil.Process, peak: list[int], finished: threading.Event) -> None:
    while not finished.wait(0.05):
        total = 0
        try:
            for process in [root, *root.children(recursive=True)]:
                total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
        peak[0] = max(peak[0], total)


def kept_rows(path: Path) -> list[int]:
    with open(path, "rb") as file:
        return [json.loads(line)["id"] for line in file]


def _show(name: str, rows: int, cost: Cost, found: Judgement) -> None:
    print(
        f"{name}: {cost.wall:.1f} s ({cost.wall / rows * 1e6:.0f} us a row), {cost.processor:.1f} processor seconds, "
        f"{cost.resident / GIB:.2f} GiB resident at most\n"
        f"  dropped of the planted rows: near copies {found.near:.2%}, exact copies {found.exact:.2%}, "
        f"with bench items {found.leaks:.2%}; originals lost: {found.lost:.4%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help=f"default {ROWS}; the claim is about 1000000")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without-peer", action="store_true", help="measure ours alone")
    options = parser.parse_args()
    print(machine.describe())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows, bench, mix = folder / "rows.jsonl", folder / "bench.jsonl", folder / "mix.yaml"
        truth = write_rows(rows, bench, options.rows, options.seed)
        mix.write_text(MIX.format(rows=rows.name, bench=bench.name))
        size = rows.stat().st_size
        print(f"{options.rows} rows, {size / 1e6:.0f} MB, {size / options.rows:.0f} bytes a row")
        ours = measured([str(MENS_SUP), "data", "build", str(mix), "--out", str(folder / "ours")])
        found = judge(truth, kept_rows(folder / "ours" / "corpus.jsonl"))
        _show("mens-sup data build", options.rows, ours, found)
        if not options.without_peer:
            output = folder / "peer.jsonl"
            peer = measured([sys.executable, str(PEER), str(rows), str(bench), str(output)])
            _show("datasets + datasketch", options.rows, peer, judge(truth, kept_rows(output)))
            machine.verdict("times as fast", peer.wall / ours.wall, TARGET_RATIO, at_least=True)
            machine.verdict("times less processor time", peer.processor / ours.processor, TARGET_RATIO, at_least=True)
        machine.verdict("GiB resident", ours.resident / GIB, TARGET_GIB, at_least=False)
        machine.verdict("near copies found", found.near, TARGET_RECALL, at_least=True)


if __name__ == "__main__":
    main()
