"""Elements whose text can't become markup: whatever is no :class:`Html` is escaped, model output above all."""

from __future__ import annotations

import re
from html import escape


class Html(str):
    """Markup. Only this package makes it, from text that it escaped."""

    __slots__ = ()


Content = Html | str | int | float
"""What an element holds: markup stays, anything else is written as text."""
Attribute = str | int | float | bool | None
"""Of an element: None and False leave it out, True stands without a value."""

_VOID = frozenset({"meta", "br", "hr", "img", "wbr"})
_REFUSED = frozenset({"script", "style", "iframe", "object", "embed", "link", "base", "form", "foreignobject"})
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""Controls, what reorders or hides text, and halves of characters, which no encoder takes; tab and line feed stay."""


def visible(text: str) -> str:
    """``text`` with what nobody would see, or what would turn its neighbours round, spelt out: ``<U+202E>``."""
    return _UNSEEN.sub(lambda found: f"<U+{ord(found.group()):04X}>", text.replace("\r\n", "\n"))


def markup(content: Content) -> Html:
    """``content`` as markup."""
    if isinstance(content, Html):
        return content
    return Html(escape(visible(content if isinstance(content, str) else number(content))))


def joined(*contents: Content) -> Html:
    """Several contents, one after the other."""
    return Html("".join(markup(content) for content in contents))


def element(name: str, /, *contents: Content, **attributes: Attribute) -> Html:
    """``<name attribute="...">contents</name>``. ``class_`` writes ``class``, ``text_anchor`` writes ``text-anchor``.

    Scripts, styles and handlers are refused with ValueError: what they hold is not protected by escaping.
    """
    if not _NAME.fullmatch(name) or name.lower() in _REFUSED:
        raise ValueError(f"{name} is no element that a page of ours may have")
    written = [name]
    for key, value in attributes.items():
        plain = key.rstrip("_").replace("_", "-")
        if not _NAME.fullmatch(plain) or plain.lower().startswith("on") or plain in ("href", "src", "style"):
            raise ValueError(f"{plain} is no attribute that a page of ours may have")
        if value is True:
            written.append(plain)
        elif value is not None and value is not False:
            written.append(f'{plain}="{markup(value)}"')
    opened = Html(f"<{' '.join(written)}>")
    return opened if name in _VOID else Html(f"{opened}{joined(*contents)}</{name}>")


def link(target: str, *contents: Content) -> Html:
    """A link to a page beside this one or to a place in it (``#name``); another scheme or host raises ValueError."""
    if not re.fullmatch(r"(?:[\w.%/-]+)?(?:\?[\w=&%.-]*)?(?:#[\w.%-]+)?", target, re.ASCII) or target.startswith("//"):
        raise ValueError(f"{target!r} is not the address of a page beside this one")
    return Html(f'<a href="{escape(target)}">{joined(*contents)}</a>')


def number(value: float) -> str:
    """A number as short as it can be read: six digits at most."""
    return str(value) if isinstance(value, int) else f"{value:.6g}"
