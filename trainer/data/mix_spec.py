"""The weights that a mix declares, as they travel with the corpus. No numpy."""

from __future__ import annotations

import msgspec

DEFAULT_MAX_REPEATS = 4.0


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
