"""``mens-sup rft export``: the accepted answers of a job as a corpus, and a manifest that says what it is."""

from __future__ import annotations

import copy
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rft.config import CorpusSection
from rft.diversity import Answer, answer_key, choose
from rft.owned_file import Owner, check_target, claimed
from rft.provenance import PROVENANCE_FIELD, row_of_sample
from rft.standing import NO_PASS_AT_K, Standing, open_to_read, standing
from rft.store import Origin, Store, StoredSample
from rft.tasks.leakage import row_text
from rft.tasks.task import Task
from rft.verifiers.verdict import Isolation, Outcome
from supervisor.problems import InputError
from supervisor.protocol.atomic import write_atomic
from trainer.data.messages import RowError
from trainer.data.rows import row_of

MANIFEST_SUFFIX = ".manifest.json"
FORMAT_VERSION = 1

Guard = Callable[[Sequence[str]], list[str | None]]
"""For each text the item of a bench that it contains, None when it contains none."""


def export(run_dir: Path, out: Path, guard_of: Callable[[Standing], Guard]) -> dict[str, Any]:
    """Write the corpus and its manifest; the manifest. Two exports of one store are equal to the byte.

    Raises InputError when ``out`` is something else than an earlier export of this run, or there is no accepted answer.
    """
    manifest_path = out.with_name(f"{out.name}{MANIFEST_SUFFIX}")
    with open_to_read(run_dir) as store:
        owner = Owner(run_dir, store.run_id)
        check_target(out, manifest_path, owner, "corpus")
        found = standing(run_dir, store)
        rows = _Rows(store, found, guard_of(found))
        with claimed(out, manifest_path, owner, "corpus"):
            write_atomic(out, rows.lines())
        manifest = _manifest(owner, out, store, found, rows)
    write_atomic(manifest_path, json.dumps(manifest, indent=2, ensure_ascii=False).encode() + b"\n")
    return manifest


class _Rows:
    """The rows in order, and what became of every sample."""

    def __init__(self, store: Store, found: Standing, guard: Guard) -> None:
        self._store, self._guard = store, guard
        self._corpus: CorpusSection = found.sections.corpus
        self._origins: dict[int, Origin] = store.samplers()
        self.left_out: Counter[str] = Counter()
        self.sources: dict[str, Counter[str]] = {source: Counter() for source in store.task_counts()}
        self.isolation: Counter[str] = Counter()
        self.leaked: Counter[str] = Counter()
        self.verifiers: set[tuple[str, str]] = set()
        self.origins: set[int] = set()
        self.rows = self.size = 0
        self.digest = hashlib.sha256()

    def lines(self) -> Iterator[bytes]:
        for number, task in self._store.each_task():
            samples = self._store.samples(number)
            counts = self.sources[task.source]
            counts["tasks"] += 1
            counts["samples"] += len(samples)
            taken = 0
            for sample in self._without_benches(task, self._chosen(task, samples)):
                line = self._line(task, sample)
                if line is not None:
                    taken += 1
                    yield line
            counts["rows"] += taken
            counts["tasks_with_rows"] += taken > 0
        if not self.rows:
            raise InputError(f"{self._store.path.parent} has no accepted answer to export.")

    def _chosen(self, task: Task, samples: list[StoredSample]) -> list[StoredSample]:
        accepted = {}
        for sample in samples:
            if sample.verdict is None:
                self.left_out["never drawn" if sample.refused else "not judged"] += 1
            elif sample.verdict.outcome is Outcome.ACCEPTED:
                accepted[sample.index] = sample
            else:
                outcome = sample.verdict.outcome
                self.left_out["unscored" if outcome is Outcome.ERROR else outcome.value] += 1
        self.sources[task.source]["accepted"] += len(accepted)
        answers = [
            Answer(index, answer_key(sample.text, self._corpus.distinct), sample.completion_tokens)
            for index, sample in accepted.items()
        ]
        chosen = choose(answers, self._corpus.keep, self._corpus.max_per_task)
        different = len({answer.key for answer in answers})
        self.left_out["same as another answer of the task"] += len(answers) - different
        self.left_out["over corpus.max_per_task"] += different - len(chosen)
        return [accepted[index] for index in chosen]

    def _without_benches(self, task: Task, samples: list[StoredSample]) -> list[StoredSample]:
        found = self._guard([row_text(task, sample.text) for sample in samples]) if samples else []
        for item in filter(None, found):
            self.left_out["contains an item of a bench"] += 1
            self.leaked[item] += 1
        return [sample for sample, item in zip(samples, found, strict=True) if item is None]

    def _line(self, task: Task, sample: StoredSample) -> bytes | None:
        row = row_of_sample(task, sample, self._origins[sample.sampler])
        try:
            row_of(copy.deepcopy(row), file="", line=0, metadata_fields=frozenset({PROVENANCE_FIELD}))
        except RowError as error:
            self.left_out[f"no row to train on: {error.reason}"] += 1
            return None
        assert sample.verdict is not None
        self.isolation[sample.verdict.isolation.value] += 1
        self.verifiers.add((sample.verdict.verifier, sample.verdict.version))
        self.origins.add(sample.sampler)
        line = msgspec.json.encode(row) + b"\n"
        self.rows += 1
        self.size += len(line)
        self.digest.update(line)
        return line


def _manifest(owner: Owner, out: Path, store: Store, found: Standing, rows: _Rows) -> dict[str, Any]:
    sections = found.sections
    origins = store.samplers()
    return {
        "format_version": FORMAT_VERSION,
        "corpus": out.name,
        **owner.words,
        "rows": rows.rows,
        "bytes": rows.size,
        "sha256": rows.digest.hexdigest(),
        "metadata_fields": [PROVENANCE_FIELD],
        "complete": found.complete,
        "stopped_early": found.capped,
        "sources": {source: dict(counts) for source, counts in rows.sources.items()},
        "left_out": dict(sorted((+rows.left_out).items())),
        "bench_items_found": dict(sorted(rows.leaked.items())),
        "excluded_benches": list(sections.tasks.exclude_benches),
        "isolation": dict(sorted(rows.isolation.items())),
        "unprotected": rows.isolation[Isolation.NONE.value] > 0,
        "verifiers": [f"{name} {version}" for name, version in sorted(rows.verifiers)],
        "samplers": [msgspec.to_builtins(origins[number]) for number in sorted(rows.origins)],
        "seed": sections.seed,
        "corpus_settings": sections.corpus.model_dump(mode="json"),
        "adaptive_budget": sections.budget.adaptive,
        "pass_at_k": NO_PASS_AT_K if sections.budget.adaptive else "see `mens-sup rft status RUN_DIR --pass-at K`",
        "accepted_changes": [f"{name}: {before} -> {after}" for _, name, before, after in store.changes()],
    }
