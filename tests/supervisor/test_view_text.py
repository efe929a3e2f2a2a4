"""Text for terminals."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol.events import Event
from supervisor.view.text import clean, count, duration, printable, progress_bar, sparkline
from supervisor.view.wording import clock, describe, number


# proves SUP-19: what a trainer or a log says cannot move the cursor, set a title or turn text around
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;owned\x07title", "title"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[2J\x1b[Hgone", "gone"),
        ("a\rb\nc\td", "a b c d"),
        ("bell\x07 nul\x00 c1\x9b31m", "bell nul c131m"),
        ("pay \u202eexe.txt", "pay exe.txt"),
        ("\x1b]never closed", ""),
        ("  much   space ", "much space"),
    ],
)
def test_clean(text: str, expected: str) -> None:
    assert clean(text) == expected


def test_clean_keeps_lines_when_asked() -> None:
    assert clean("one\r\n  two\x1b[1m", lines=True) == "one\n  two"


@given(st.text())
def test_clean_leaves_nothing_that_a_terminal_acts_on(text: str) -> None:
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in clean(text))


def test_printable_in_any_encoding() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert printable("2048 → 1536 · 4\u00d78 \u2013 naïve 漢", stream) == "2048 -> 1536 - 4x8 - na?ve ?"
    assert printable("→ 漢", io.TextIOWrapper(io.BytesIO(), encoding="utf-8")) == "→ 漢"


def test_durations_and_counts() -> None:
    assert [duration(seconds) for seconds in (-1, 0, 59.6, 61, 3725, 90000)] == [
        "0 s", "0 s", "1 m 00 s", "1 m 01 s", "1 h 02 m", "1 d 01 h"
    ]  # fmt: skip
    assert [count(number) for number in (0, 8.25, 9, 12345.6)] == ["0", "8.2", "9", "12 346"]


def test_sparkline_falls_with_the_loss_and_fits() -> None:
    assert sparkline([8, 7, 6, 5, 4, 3, 2, 1], 8) == "█▇▆▅▄▃▂▁"
    assert sparkline([2.0] * 5, 3) == "▁▁▁"
    assert len(sparkline(list(range(1000)), 40)) == 40
    assert sparkline([], 10) == sparkline([1.0], 0) == ""
    assert sparkline([3, 2, 1], 3, unicode=False).isascii()


def test_progress_bar() -> None:
    assert progress_bar(0.5, 4) == "━━──"
    assert progress_bar(7.0, 4) == "━━━━"
    assert progress_bar(0.25, 4, unicode=False) == "#---"


def event(kind: str, message: str = "", step: int | None = None, **data: object) -> Event:
    return Event(0.0, "trainer", kind, 1, step, message, data)


# proves SUP-19: each event of interest is one readable line
@pytest.mark.parametrize(
    ("given_event", "expected"),
    [
        (event("corpus", rows=80, tokens=8000), "corpus: 80 rows, 8 000 tokens"),
        (event("corpus", rows=8, dropped={"no_label": 3, "empty": 1}), "corpus: 8 rows, dropped: no_label 3, empty 1"),
        (event("plan", planned_steps=40, planned_tokens=12345), "plan: 40 steps, 12 345 tokens"),
        (event("evaluation", step=20, eval_loss=2.5, eval_tokens=9), "evaluation: step 20, loss 2.5000 over 9 tokens"),
        (event("checkpoint", step=20, bytes=2048, seconds=0.25), "checkpoint: step 20 saved, 2.0 KiB in 0.2 s"),
        (event("checkpoint", step=20), "checkpoint: step 20 saved"),
        (event("resumed", "from step-00000020", step=20), "resumed: at step 20"),
        (event("failure", "cuda_oom\x1b[31m at step 3"), "failure: cuda_oom at step 3"),
        (event("attempt_started", "attempt 2 starts"), "attempt 2 starts"),
        (event("a_new_kind", "says [bold]this[/bold]"), "a new kind: says [bold]this[/bold]"),
        (event("evaluation", eval_loss="nonsense"), None),
        (event("corpus", rows=True, dropped="x"), None),
        (event("progress", loss=1.0), None),
        (event("phase", phase="loading"), None),
    ],
)  # fmt: skip
def test_describe(given_event: Event, expected: str | None) -> None:
    assert describe(given_event) == expected


def test_only_finite_numbers_count() -> None:
    values = [1, 1.5, True, "1", None, float("nan"), float("inf")]
    assert [number({"x": value}, "x") for value in values] == [1, 1.5, None, None, None, None, None]


# proves SUP-19: a trainer may write anything into its events
def test_what_is_no_moment_has_no_time_of_day() -> None:
    assert clock(1e30) == clock(-1e30) == clock(float("nan")) == clock(float("inf")) == "?"
