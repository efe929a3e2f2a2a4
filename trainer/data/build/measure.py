"""What a corpus came to: per source and as a whole, against what the mix asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from supervisor.problems import ConfigError
from trainer.data.build.manifest import SourceRecord
from trainer.data.build.mix import Mix
from trainer.data.build.oracle import UNDECIDED, Verdict
from trainer.data.build.readiness import Measured, shortfalls
from trainer.data.build.table import Bools, Reason, Table
from trainer.data.build.tokens import TokenTable
from trainer.data.mix_spec import MixSpec, mix_spec_of
from trainer.data.mixture import passes
from trainer.data.token_rows import length_histogram


def measure(
    mix: Mix, table: Table, verdicts: dict[int, list[str]], tokens: TokenTable | None
) -> tuple[list[SourceRecord], Measured]:
    """Records of the sources, and the measure of the whole."""
    sections = mix.sections
    spec = mix_spec_of(((source.name, source.lane, source.weight) for source in sections.sources), sections.max_repeats)
    learnt = [
        None if tokens is None else int(tokens.learnt[table.kept(index)].sum())
        for index in range(len(mix.sections.sources))
    ]
    repeats = _repeats(spec, learnt)
    records = []
    for index, section in enumerate(mix.sections.sources):
        kept = table.kept(index)
        reasons = table.reasons[(table.sources == index) & ~kept]
        counts = Counter(Reason(reason) for reason in reasons.tolist())
        counts.update({reason: count for (of, reason), count in table.gathering.lost.items() if of == index})
        lengths = None if tokens is None else tokens.tokens[kept]
        records.append(
            SourceRecord(
                name=section.name,
                type=section.type,
                lane=section.lane,
                weight=section.weight,
                rows_sha256=table.gathering.digests[index].hexdigest(),
                read=table.gathering.read[index],
                dropped={reason.words: counts[reason] for reason in Reason if counts[reason]},
                tokens=None if lengths is None else int(lengths.sum()),
                learnt_tokens=learnt[index],
                share=None if spec is None else spec.shares()[index],
                repeats=None if repeats is None else repeats[index],
                thresholds=section.readiness.thresholds(),
                measured=_measured(mix, table, kept, verdicts.get(index, []), tokens),
                histogram=None if lengths is None else length_histogram(lengths),
            )
        )
    judged = [verdict for found in verdicts.values() for verdict in found]
    return records, _measured(mix, table, table.kept(), judged, tokens)


def refuse_unready(mix: Mix, records: Sequence[SourceRecord], whole: Measured) -> None:
    """Raises ConfigError with every threshold that is not met, the sources' before the whole's."""
    problems = []
    for index, record in enumerate(records):
        for text in shortfalls(record.thresholds, record.measured):
            fates = "".join(f"; {count} {reason.replace('_', ' ')}" for reason, count in record.dropped.items())
            message = f"source {record.name} is not ready: {text} ({record.read} read{fates})"
            remedy = "Bring better data for it, or change its readiness if that is what you want."
            problems.append(mix.problem(f"sources.{index}.readiness", message, remedy))
    for text in shortfalls(mix.sections.readiness.thresholds(), whole) if not problems else []:
        problems.append(mix.problem("readiness", f"the corpus is not ready: {text}", "Bring more or better data."))
    if problems:
        raise ConfigError(problems)


def _repeats(spec: MixSpec | None, learnt: Sequence[int | None]) -> list[float] | None:
    known = [count for count in learnt if count]
    if spec is None or len(known) < len(learnt):
        return None
    repeats: list[float] = passes(known, spec.shares(), spec.max_repeats).repeats.tolist()
    return repeats


def _measured(mix: Mix, table: Table, kept: Bools, verdicts: Sequence[str], tokens: TokenTable | None) -> Measured:
    window = mix.sections.max_length
    return Measured(
        rows=int(kept.sum()),
        unique_responses=len(np.unique(table.answers[kept])),
        judged=len(verdicts),
        passed=list(verdicts).count(Verdict.PASS.value),
        over_length=None if tokens is None or window is None else int((tokens.tokens[kept] > window).sum()),
        max_length=window,
        undecided=sum(list(verdicts).count(verdict.value) for verdict in UNDECIDED),
    )
