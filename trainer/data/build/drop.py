"""What is left out of the corpus, one reason after another, and the order in which that happens.

Exact repeats, answers that the oracle does not pass, near duplicates of a row that is kept so far, rows that the
tokenizer's template cannot render, and what is beyond a cap.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from supervisor.jobs import Problem
from supervisor.problems import ConfigError
from trainer.cache import cache_root
from trainer.data.build.gather import Say, row_problem
from trainer.data.build.mix import Mix
from trainer.data.build.oracle import Oracle, OracleUnusableError, Verdict
from trainer.data.build.spool import Spool, row_in
from trainer.data.build.table import Bools, Ints, Reason, Table
from trainer.data.build.tokens import TokenCounter, TokenTable
from trainer.data.messages import BadRow, Row
from trainer.data.near_duplicates import Duplicates
from trainer.data.sources import MAX_SHOWN_PROBLEMS

VERDICTS_PER_SIGN = 100
"""Verdicts between two lines of progress."""


def drop_exact(table: Table, duplicates: Duplicates) -> None:
    table.drop(table.compared[duplicates.exact()], Reason.EXACT_DUPLICATE)


def judge(mix: Mix, table: Table, say: Say) -> dict[int, list[str]]:
    """Ask the oracles. Returns verdicts by source that has one, in the order of its rows that were kept so far.

    Raises ConfigError when a command cannot be started, OSError.
    """
    verdicts: dict[int, list[str]] = {}
    for index, section in enumerate(mix.sections.sources):
        if section.oracle is None:
            continue
        wanted = table.kept(index)
        numbers = np.flatnonzero(wanted)
        say(f"{section.name}: the oracle judges {len(numbers)} answers")
        try:
            with Oracle(section.oracle, cache_root() / "oracle") as oracle:
                answers = (row.messages[-1].content for row in _rows_of(table.spool, wanted))
                found = []
                for verdict in oracle.judge(answers):
                    found.append(verdict.value)
                    if len(found) % VERDICTS_PER_SIGN == 0:
                        say(f"{section.name}: {len(found)} of {len(numbers)} answers judged")
                say(f"{section.name}: {oracle.from_cache} of {len(numbers)} verdicts were known from before")
        except OracleUnusableError as error:
            problem = mix.problem(f"sources.{index}.oracle.command", str(error), "Install it, or correct the command.")
            raise ConfigError([problem]) from None
        verdicts[index] = found
        if section.oracle.on_fail == "drop":
            failed = np.array([verdict != Verdict.PASS.value for verdict in found], np.bool_)
            table.drop(numbers[failed], Reason.ORACLE)
    return verdicts


def drop_near(mix: Mix, table: Table, duplicates: Duplicates) -> Ints:
    """Returns the cluster of every row: the number of the first row that it is a copy of, or its own."""
    clusters = np.arange(len(table.sources), dtype=np.int64)
    near = mix.sections.duplicates.near
    of = duplicates.exact_of if near == "off" else duplicates.cluster_of
    clusters[table.compared] = table.compared[of]
    if near == "drop":
        kept = np.flatnonzero(table.kept())
        repeated = np.ones(len(kept), np.bool_)
        repeated[np.unique(clusters[kept], return_index=True)[1]] = False
        table.drop(kept[repeated], Reason.NEAR_DUPLICATE)
    return clusters


def count_tokens(mix: Mix, table: Table, counter: TokenCounter | None, say: Say) -> TokenTable | None:
    """Tokens of every row that is kept. One that cannot be rendered is dropped, or refused if it can be corrected.

    Raises ConfigError.
    """
    if counter is None:
        return None
    wanted = table.kept()
    numbers = np.flatnonzero(wanted)
    say(f"counting the tokens of {len(numbers)} rows")
    found = TokenTable(np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.int64), {})
    problems: list[Problem] = []
    for number, counts in zip(numbers.tolist(), counter(_rows_of(table.spool, wanted)), strict=True):
        if not isinstance(counts, BadRow):
            found.tokens[number], found.learnt[number] = counts
            continue
        section = mix.sections.sources[int(table.sources[number])]
        table.reasons[number] = Reason.NOT_RENDERED
        found.problems[number] = counts.problem
        if section.on_bad_row == "refuse" and section.type != "declarations":
            problems.append(row_problem(counts))
            if len(problems) >= MAX_SHOWN_PROBLEMS:
                break
    if problems:
        raise ConfigError(problems)
    return found


def cap(mix: Mix, table: Table, tokens: TokenTable | None) -> None:
    """Leave out what is beyond a source's caps, by the rows' seeded ranks."""
    for index, section in enumerate(mix.sections.sources):
        kept = np.flatnonzero(table.kept(index))
        order = kept[np.argsort(table.ranks[kept], kind="stable")]
        within = np.ones(len(order), np.bool_)
        if section.max_rows is not None:
            within[section.max_rows :] = False
        if section.max_tokens is not None and tokens is not None:
            within &= np.cumsum(tokens.tokens[order]) <= section.max_tokens
        table.drop(order[~within], Reason.CAPPED)


def _rows_of(spool: Spool, wanted: Bools) -> Iterator[Row]:
    return (row_in(line) for number, line in spool.lines() if wanted[number])
