"""Schedules as people write them for cron, with cron's meaning."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from supervisor.daemon.service import NotPossibleError

if TYPE_CHECKING:
    from apscheduler.triggers.cron import CronTrigger

_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_HOW = "Write five fields: minute, hour, day of the month, month, day of the week, such as `0 2 * * *` for every night."


def trigger_of(cron: str) -> CronTrigger:
    """The trigger of five fields, in the machine's time zone. Raises NotPossibleError."""
    from apscheduler.triggers.cron import CronTrigger

    fields = cron.split()
    if len(fields) != 5:
        raise NotPossibleError(f"{cron!r} is no schedule. {_HOW}")
    minute, hour, day, month, weekday = fields
    if day != "*" and weekday != "*":
        raise NotPossibleError(
            f"{cron!r} names a day of the month and a day of the week, which cron takes for either of them. Add one "
            "schedule for each."
        )
    try:
        trigger = CronTrigger(minute=minute, hour=hour, day=day, month=month, day_of_week=_by_name(weekday))
        never = trigger.get_next_fire_time(None, datetime.now(trigger.timezone)) is None
    except (ValueError, TypeError) as error:
        raise NotPossibleError(f"{cron!r} is no schedule ({error}). {_HOW}") from None
    if never:
        raise NotPossibleError(f"{cron!r} never comes. {_HOW}")
    return trigger


def _by_name(field: str) -> str:
    """Days of the week by name: cron counts them from Sunday (0 or 7), the scheduler from Monday."""
    if field == "*" or not any(character.isdigit() for character in field):
        return field
    days: list[str] = []
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        if span == "*":
            first, last = "0", "6"
        low = _number(first)
        high = _number(last) if last else (6 if step else low)
        if not 0 <= low <= high <= 7 or (step and int(step) < 1):
            raise ValueError(f"{part!r} are no days of the week")
        days += [_DAYS[number % 7] for number in range(low, high + 1, int(step or 1))]
    return ",".join(dict.fromkeys(days))


def _number(day: str) -> int:
    return _DAYS.index(day.lower()[:3]) if day[:1].isalpha() else int(day)
