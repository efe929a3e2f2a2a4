"""What a difference between two evaluations is worth. Pure; numpy and scipy, so imported late."""
