"""The trainer's side of being a standby: get ready, wait for the job, or end with the supervisor.

A standby is the trainer's own command with $MENS_STANDBY in its environment: the number of its end of a socket
pair, a colon, and the ``attempt.json`` of the attempt that runs now, which the next one will resemble.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from supervisor.protocol.attempt import SPEC_VARIABLE

STANDBY_VARIABLE = "MENS_STANDBY"
READY = b"ready"
"""Sent by the standby when everything is imported."""
TAKEN = b"taken"
"""Sent by the standby when it has become the attempt's trainer."""
MAX_MESSAGE = 64 * 1024


def await_job(get_ready: Callable[[Path], None]) -> None:
    """Call it first thing in a trainer's main. Returns at once in a trainer that was started for an attempt.

    In a standby, ``get_ready(present attempt's attempt.json)`` imports what takes long, without a GPU, a lock or a
    file of the run. Then it waits for the job; afterwards the environment and both output streams are
    the attempt's. The process ends when the supervisor does, also in the middle of ``get_ready``.
    """
    told = os.environ.pop(STANDBY_VARIABLE, None)
    if told is None:
        return
    number, _, present = told.partition(":")
    with socket.socket(fileno=int(number)) as channel:
        channel.set_inheritable(False)
        _end_with_the_other_side(channel, True)
        get_ready(Path(present))
        _end_with_the_other_side(channel, False)
        channel.send(READY)
        message, descriptors, _, _ = socket.recv_fds(channel, MAX_MESSAGE, 2)
        if not message:
            os._exit(0)  # the supervisor is gone, or has no use for us
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, stream in zip(descriptors, (1, 2), strict=True):
            os.dup2(descriptor, stream)
            os.close(descriptor)
        os.environ[SPEC_VARIABLE] = message.decode("utf-8", "surrogateescape")
        channel.send(TAKEN)


def _end_with_the_other_side(channel: socket.socket, wanted: bool) -> None:
    """Whether SIGIO, whose default action is to end us, comes when the other side closes or writes."""
    flags = fcntl.fcntl(channel, fcntl.F_GETFL)
    fcntl.fcntl(channel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(channel, fcntl.F_SETFL, flags | os.O_ASYNC if wanted else flags & ~os.O_ASYNC)
    if _closed(channel):  # before the flag was set
        os._exit(0)


def _closed(channel: socket.socket) -> bool:
    poller = select.poll()
    poller.register(channel, select.POLLHUP)
    return bool(poller.poll(0))
