"""The daemon: a queue of jobs, one at a time per GPU, and how it is asked."""
