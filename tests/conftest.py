"""What all tests need."""

import signal

# A shell starts its background jobs with SIGINT ignored, and children inherit that: tests of Ctrl-C would see nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)
