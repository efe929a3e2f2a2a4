"""The weights that a mix declares, as they travel with the corpus. No numpy."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

MOST_PASSES = 4.0
"""Passes over the data beyond which repeating it teaches little that is new (Muennighoff et al. 2023,
arXiv 2305.16264)."""
DEFAULT_MAX_REPEATS = MOST_PASSES


class MixSpec(msgspec.Struct, frozen=True):
    """Per source its name, lane and weight. ``max_repeats`` bounds the passes over a source in one epoch."""

    names: tuple[str, ...]
    lanes: tuple[str, ...]
    weights: tuple[float, ...]
    max_repeats: float = DEFAULT_MAX_REPEATS

    def shares(self) -> tuple[float, ...]:
        """Declared share of what is learnt, by source."""
        total = sum(self.weights)
        return tuple(weight / total for weight in self.weights)


def mix_spec_of(sources: Iterable[tuple[str, str, float | None]], max_repeats: float) -> MixSpec | None:
    """Of ``(name, lane, weight)`` of sources, all of which have a weight or none; None without weights."""
    weighted = [(name, lane, weight) for name, lane, weight in sources if weight is not None]
    if not weighted:
        return None
    names, lanes, weights = zip(*weighted, strict=True)
    return MixSpec(names, lanes, weights, max_repeats)
