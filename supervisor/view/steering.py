"""Steering the run that this very process supervises."""

from __future__ import annotations

import os
import signal

from supervisor.view.controls import Action


class OwnRun:
    """Stopping goes the way of every request to stop. A pause is that as well, and who called ``supervise`` goes on.

    ``paused``: the run has stopped, or will, because a pause was asked for.
    """

    def __init__(self) -> None:
        self.paused = False
        self.at_rest = False
        """It has stopped for the pause, and can go on."""
        self.ended = False
        """Somebody has had enough of a paused run."""

    @property
    def offers(self) -> frozenset[Action]:
        if self.at_rest:
            return frozenset({Action.RESUME, Action.STOP})
        return frozenset() if self.paused else frozenset({Action.PAUSE, Action.STOP})

    def stop(self) -> str:
        if self.at_rest:
            self.ended = True
            return "ending here"
        self.paused = False
        os.kill(os.getpid(), signal.SIGTERM)
        return "stopping: the trainer saves a checkpoint at its next step and ends"

    def pause(self) -> str:
        self.paused = True
        os.kill(os.getpid(), signal.SIGTERM)
        return "pausing: the trainer saves a checkpoint at its next step and ends; p goes on then"

    def resume(self) -> str:
        self.paused = self.at_rest = False
        return "going on from the checkpoint"
