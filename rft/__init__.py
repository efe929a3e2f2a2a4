"""Corpora by rejection sampling and GRPO groups."""
