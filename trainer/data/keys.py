"""What makes two answers the same: whitespace and letter case do not count."""

from __future__ import annotations

import hashlib

CLUSTER_FIELD = "duplicate_cluster"
"""Metadata field in which ``mens-sup data build`` says which rows of its output are near duplicates."""


def normalised(text: str) -> str:
    """``text`` with runs of whitespace as one space, without case."""
    return " ".join(text.split()).casefold()


def response_key(text: str) -> str:
    """32 hexadecimal digits that are equal for answers which differ only in whitespace or case."""
    return normalised_key(normalised(text))


def normalised_key(text: str) -> str:
    """:func:`response_key` of a text that went through :func:`normalised`."""
    return hashlib.blake2b(text.encode("utf-8"), digest_size=16).hexdigest()
