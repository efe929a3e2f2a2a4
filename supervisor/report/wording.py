"""Words and figures of the pages."""

from __future__ import annotations

from supervisor.html.markup import Content, Html, element
from supervisor.view.wording import local_time

_KINDS = {
    "completed": "good", "running": "soft", "stopped": "unsure", "unattended": "unsure", "gave up": "bad",
    "failed config": "bad", "damaged": "bad",
}  # fmt: skip


def day(moment: float) -> str:
    """Local date and time of Unix seconds, empty for 0."""
    return local_time(moment, "%Y-%m-%d %H:%M:%S") if moment else ""


def outcome_kind(standing: str) -> str:
    """The colour of an outcome in words: good, bad, unsure or soft."""
    return _KINDS.get(standing, "soft")


def whole(content: Content) -> Html:
    """Never broken into lines."""
    return element("span", content, class_="whole")


def short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3].rstrip()}..."
