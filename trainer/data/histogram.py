"""The length histogram's unit, shared with the supervisor's side, which has no numpy."""

HISTOGRAM_BIN_TOKENS = 64
"""Entry ``i`` of the histogram in the ``corpus`` event counts rows of more than 64 i and at most 64 (i + 1) tokens."""
