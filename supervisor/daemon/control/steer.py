"""Steering a run that is being watched: through the daemon when it is of its queue, else by its run directory."""

from __future__ import annotations

import time
from typing import Literal

from supervisor.daemon.control.stopping import ask_to_stop
from supervisor.daemon.control.which import Found
from supervisor.daemon.service import Entry, EntryState
from supervisor.problems import InputError
from supervisor.protocol.lock import lock_holder
from supervisor.protocol.paths import RunPaths
from supervisor.view.controls import Action

ASK_SECONDS = 2.0


class Steer:
    """A view's Steering of the run ``found``."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._entry = found.entry
        self._asked_at = time.monotonic()

    @property
    def offers(self) -> frozenset[Action]:
        entry = self._newest()
        if entry is None:
            supervised = lock_holder(RunPaths(self._found.directory).supervisor_lock) is not None
            return frozenset({Action.STOP}) if supervised else frozenset()
        if entry.state.ended:
            return frozenset()
        return frozenset({Action.STOP, Action.RESUME if entry.state is EntryState.PAUSED else Action.PAUSE})

    @property
    def may_go_on(self) -> bool:
        """A run that is at rest now, but whose place in the queue is still open."""
        entry = self._newest()
        return entry is not None and not entry.state.ended

    def stop(self) -> str:
        if self._entry is not None:
            self._act("cancel")
            return "cancelled: it saves a checkpoint at its next step and ends"
        if not ask_to_stop(self._found.directory):
            return "nobody supervises it just now"
        return "stopping: it saves a checkpoint at its next step and ends"

    def pause(self) -> str:
        self._act("pause")
        return "pausing: it saves a checkpoint at its next step and ends; p lets it go on"

    def resume(self) -> str:
        self._act("resume")
        return "in the queue again; it goes on from its checkpoint"

    def _act(self, action: Literal["cancel", "pause", "resume"]) -> None:
        if self._entry is None or self._found.client is None:
            raise InputError("It is in no queue.")
        self._entry = self._found.client.act(self._entry.id, action)

    def _newest(self) -> Entry | None:
        """The entry as the daemon said it last, asked again now and then; one that does not answer changes nothing."""
        if self._entry is None or self._found.client is None or self._entry.state.ended:
            return self._entry
        if time.monotonic() - self._asked_at >= ASK_SECONDS:
            self._asked_at = time.monotonic()
            try:
                self._entry = self._found.client.entry(self._entry.id)
            except InputError:
                return self._entry
        return self._entry
