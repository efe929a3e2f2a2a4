# proves DAT-4: the gate measures, and unknown is not met
from __future__ import annotations

import pytest

from trainer.data.build.readiness import Measured, Thresholds, shortfalls

GOOD = Measured(rows=100, unique_responses=90, judged=100, passed=99, over_length=5, max_length=512)
ASKED = Thresholds(min_rows=100, min_unique_responses=0.9, min_oracle_pass_rate=0.99, max_over_length=0.05)


def test_what_is_met_exactly_is_met() -> None:
    assert shortfalls(ASKED, GOOD) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": 99, "unique_responses": 99, "over_length": 0}, "99 rows where min_rows asks for 100"),
        ({"unique_responses": 89}, "0.890 different answers per row"),
        ({"passed": 98}, "an oracle pass rate of 0.980"),
        ({"judged": 0, "passed": 0}, "no answer was judged"),
        ({"over_length": 6}, "longer than 512 tokens where max_over_length allows 5.0%"),
        ({"over_length": None}, "no token was counted"),
    ],
)
def test_every_shortfall_is_named_with_both_numbers(changes: dict[str, int | None], words: str) -> None:
    import msgspec

    (found,) = shortfalls(ASKED, msgspec.structs.replace(GOOD, **changes))
    assert words in found


def test_no_rows_at_all_meet_nothing() -> None:
    assert len(shortfalls(ASKED, Measured(rows=0, unique_responses=0))) == 4
