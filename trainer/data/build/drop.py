"""What is left out for what it is: answers that the oracle does not pass, and rows that cannot be rendered."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator

import numpy as np

from supervisor.jobs import Problem
from supervisor.problems import ConfigError, InputError
from trainer.cache import cache_root
from trainer.data.build.gather import Say, row_problem
from trainer.data.build.mix import Mix
from trainer.data.build.oracle import UNDECIDED, Oracle, OracleUnusableError, Verdict
from trainer.data.build.spool import Spool, row_in
from trainer.data.build.table import Bools, Reason, Table
from trainer.data.build.tokens import TokenCounter, TokenTable
from trainer.data.messages import BadRow, Row
from trainer.data.sources import MAX_SHOWN_PROBLEMS

VERDICTS_PER_SIGN = 100
"""Verdicts between two lines of progress."""
_WHY_UNDECIDED = {
    Verdict.TIMEOUT: "the oracle took longer than {:g} s",
    Verdict.CRASH: "the oracle died of a signal, such as a segmentation fault",
}


def judge(mix: Mix, table: Table, say: Say) -> dict[int, list[str]]:
    """Ask the oracles. Returns verdicts by source that has one, in the order of its rows that were kept so far.

    Raises ConfigError when a command cannot be started, InputError when the machine or the cache of verdicts fails,
    OSError.
    """
    cache = cache_root() / "oracle"
    verdicts: dict[int, list[str]] = {}
    for index, section in enumerate(mix.sections.sources):
        if section.oracle is None:
            continue
        wanted = table.kept(index)
        numbers = np.flatnonzero(wanted)
        say(f"{section.name}: the oracle judges {len(numbers)} answers")
        try:
            with Oracle(section.oracle, cache, mix.base) as oracle:
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
        except sqlite3.Error as error:
            message = f"The verdicts in {cache}/oracle.sqlite cannot be used: {error}."
            raise InputError(f"{message} Remove the file, and the oracle is asked anew.") from None
        verdicts[index] = found
        counts = Counter(found)
        for verdict in UNDECIDED:
            if counts[verdict.value]:
                say(
                    f"WARNING: {section.name}: {counts[verdict.value]} of {len(numbers)} answers have no verdict: "
                    f"{_WHY_UNDECIDED[verdict].format(section.oracle.timeout_seconds)}. They count as not passed, and "
                    "another machine, or a less busy one, may judge them otherwise and so build another corpus"
                )
        if section.oracle.on_fail == "drop":
            failed = np.array([verdict != Verdict.PASS.value for verdict in found], np.bool_)
            table.drop(numbers[failed], Reason.ORACLE)
    return verdicts


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
    for number, counts in zip(numbers.tolist(), counter.count(_rows_of(table.spool, wanted)), strict=True):
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


def _rows_of(spool: Spool, wanted: Bools) -> Iterator[Row]:
    return (row_in(line) for number, line in spool.lines() if wanted[number])
