"""What runs inside a sandbox, on the standard library alone: bound there read-only, under the same module names."""
