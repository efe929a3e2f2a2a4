"""``mens-sup watch``, ``logs`` and ``report``, and how a run stands: by its folder, or through the daemon."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, get_args

import msgspec

from supervisor.daemon.control.errors import DaemonRefusedError
from supervisor.daemon.control.logs import PIECE_BYTES, Stream, read_piece
from supervisor.daemon.control.which import Found, find_run
from supervisor.daemon.control.wire import LogPiece, encode
from supervisor.daemon.service import EntryState
from supervisor.problems import InputError
from supervisor.protocol.paths import RunPaths
from supervisor.state import Outcome, RunState
from supervisor.status import known_state, read_status, render_status
from supervisor.view.text import clean

POLL_SECONDS = 0.5
EXIT_CODES = {Outcome.COMPLETED: 0, Outcome.STOPPED: 3, Outcome.FAILED_CONFIG: 2}
"""Of `mens-sup run`; 1 for the rest."""
_RESTLESS = ("machine", "GPU", "time", "disk free")
"""Lines of a status that change all the time."""


def status_of(text: str | None) -> dict[str, Any]:
    """read_status of the run that is meant, with ``entry``: its place in the queue, None for a run outside of it.

    What of the queue has no run yet has the outcome None. Raises InputError.
    """
    found = find_run(text)
    entry = None if found.entry is None else msgspec.json.decode(encode(found.entry))
    if found.asked is not None:
        client, number = found.asked
        try:
            return {**client.status(number), "entry": entry}
        except DaemonRefusedError as error:
            if error.status != 409 or found.entry is None or found.entry.started_at is not None:
                raise
            return {"id": None, "run_dir": str(found.directory), "outcome": None, "entry": entry}
    return {**read_status(found.directory), "entry": entry}


def render(status: dict[str, Any]) -> str:
    """A few aligned lines."""
    lines = []
    if (entry := status["entry"]) is not None:
        said = f"{entry['id']}, {entry['state']}, priority {entry['priority']}"
        lines.append(f"{'queue':<13}{said}{clean('. ' + entry['explanation']) if entry['explanation'] else ''}")
    if status["outcome"] is not None:
        lines.append(_rendered(status))
    return "\n".join(lines)


def _rendered(status: dict[str, Any]) -> str:
    try:
        return render_status(status)
    except KeyError as error:  # what comes through the daemon is as its version has it
        from supervisor.daemon.control.address import socket_to_ask
        from supervisor.daemon.control.client import another_version

        raise InputError(f"{another_version(socket_to_ask())} (It does not say {error}.)") from None


def watch(options: argparse.Namespace) -> int:
    found = _begun(find_run(options.run))
    if found.asked is not None:
        return _watch_through_daemon(found)
    from supervisor.daemon.control.steer import Steer
    from supervisor.view.screen import open_view

    _state_of(found)
    steer = Steer(found)
    with open_view(found.directory, live=not options.no_live, steering=steer, lines_after=False) as view:
        while True:
            view()
            state = _state_of(found)
            if view.left:
                return 0
            if state.outcome is not Outcome.RUNNING and not steer.may_go_on:
                break
            view.wait(POLL_SECONDS)
    return _ended(found, state.outcome, state.explanation)


def logs(options: argparse.Namespace) -> int:
    found = find_run(options.run)
    if found.entry is None and not RunPaths(found.directory).run_yaml.exists():
        raise InputError(f"{found.directory} holds no run (no run.yaml). Name a run's folder.")
    if options.follow:
        found = _begun(found)
    streams = [_LogStream(found, each) for each in get_args(Stream) if options.only in (None, each)]
    attempt: int | None = options.attempt
    for each in streams:
        each.begin(attempt, options.lines)
    while True:
        pieces = [each.more() for each in streams]
        if any(piece.end < piece.size and piece.text for piece in pieces):
            continue
        if not pieces[0].attempt and (pieces[0].over or not options.follow):
            raise InputError(f"{found.directory}: no attempt has begun, so its program has written nothing yet.")
        if not options.follow or all(piece.over for piece in pieces):
            return 0
        if attempt is None and pieces[0].attempt < pieces[0].latest_attempt:
            for each in streams:
                each.begin(pieces[0].attempt + 1, None)
            continue
        if attempt is not None and attempt < pieces[0].latest_attempt:
            return 0
        time.sleep(POLL_SECONDS)


def report(options: argparse.Namespace) -> int:
    found = find_run(options.run)
    if found.asked is not None:
        client, number = found.asked
        data = client.page(number)
        target = options.out or Path(f"report-{number}.html")
    else:
        from supervisor.report import REPORT_NAME, run_page

        data = run_page(RunPaths(found.directory))
        target = options.out or found.directory / REPORT_NAME
    if str(target) == "-":
        sys.stdout.buffer.write(data)
        return 0
    from supervisor.protocol.atomic import write_atomic

    try:
        write_atomic(target, data)
    except OSError as error:  # it names a staged file
        raise InputError(f"{target} cannot be written: {error.strerror}. Name another file with --out.") from error
    sys.stdout.write(f"{target}\n")
    if options.show and not _open(target):
        raise InputError(f"There is no browser here to show it. The page is {target}.")
    return 0


class _LogStream:
    """One of the two outputs of an attempt, from where it was read last."""

    def __init__(self, found: Found, stream: Stream) -> None:
        self._found = found
        self._stream = stream
        self._attempt: int | None = None
        self._offset = 0

    def begin(self, attempt: int | None, lines: int | None) -> None:
        """With the last ``lines`` (None: all) of ``attempt`` (None: the newest)."""
        piece = self._piece(attempt, 0 if lines is None else -PIECE_BYTES)
        self._attempt, self._offset = piece.attempt or attempt, piece.start
        if lines is not None:
            self._show("".join(piece.text.splitlines(keepends=True)[-lines:]))
            self._offset = piece.end

    def more(self) -> LogPiece:
        """Show what has come."""
        piece = self._piece(self._attempt, self._offset)
        self._attempt = piece.attempt or self._attempt
        self._offset = piece.end
        self._show(piece.text)
        return piece

    def _show(self, text: str) -> None:
        """What a program wrote must not steer the terminal; a file gets it as it is."""
        if text:
            sys.stdout.write(clean(text, lines=True) if sys.stdout.isatty() else text)
            sys.stdout.flush()

    def _piece(self, attempt: int | None, offset: int) -> LogPiece:
        if self._found.asked is not None:
            client, number = self._found.asked
            return client.log(number, self._stream, attempt, offset)
        return read_piece(self._found.directory, self._stream, attempt, offset)


def _begun(found: Found) -> Found:
    """Wait until a run that is still in the queue can be looked at, oneself or through the daemon."""
    said = False
    while not found.readable and found.entry is not None and found.client is not None:
        entry = found.client.entry(found.entry.id)
        if entry.state.ended or (entry.started_at is not None and found.hidden):
            break
        if not said and entry.started_at is None:
            sys.stderr.write(f"{entry.id} ({clean(entry.name)}) is {entry.state}; waiting for it to begin.\n")
            said = True
        time.sleep(POLL_SECONDS)
    return found


def _watch_through_daemon(found: Found) -> int:
    """Lines from the daemon, for those who can't read the run directory."""
    assert found.asked is not None
    client, number = found.asked
    shown: list[str] = []
    while True:
        try:
            status = client.status(number)
        except DaemonRefusedError as error:
            entry = client.entry(number)
            if error.status != 409:
                raise
            if entry.state.ended:
                said = f"{number} ({clean(entry.name)}) is {entry.state}. {clean(entry.explanation)}".rstrip()
                sys.stdout.write(f"{said}\n")
                return EXIT_CODES[Outcome.STOPPED] if entry.state is EntryState.CANCELLED else 1
        else:
            text = _rendered(status)
            if (told := [line for line in text.splitlines() if not line.startswith(_RESTLESS)]) != shown:
                shown = told
                sys.stdout.write(f"{text}\n\n")
                sys.stdout.flush()
            if status["outcome"] != Outcome.RUNNING:
                return EXIT_CODES.get(Outcome(status["outcome"]), 1)
        time.sleep(4 * POLL_SECONDS)


def _state_of(found: Found) -> RunState:
    state = known_state(found.directory)
    if state is None:
        raise InputError(f"{found.directory} holds no run (no state.json). Name a run's folder.")
    return state


def _ended(found: Found, outcome: Outcome, explanation: str) -> int:
    sys.stdout.write(f"{found.directory}: {outcome.value.replace('_', ' ')}. {clean(explanation, lines=True)}".rstrip())
    sys.stdout.write("\n")
    return EXIT_CODES.get(outcome, 1)


def _open(page: Path) -> bool:
    import webbrowser

    return webbrowser.open(page.absolute().as_uri())


