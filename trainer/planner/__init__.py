"""What a run will need before it starts: memory by tracing the real training step, steps and tokens from its data."""
