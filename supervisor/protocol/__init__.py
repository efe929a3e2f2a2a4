"""The run-directory contract between a supervisor and a trainer.

Only the standard library, msgspec and xxhash are used here, so that any trainer can import it cheaply.
The same contract is written down for other languages in docs/run-directory.md.
"""
