"""Telling people who aren't watching, without ever waiting for it: every message is a process of its own.

A message that cannot be delivered is a problem to be recorded, never an error.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from supervisor.config_sections import NotifySettings
from supervisor.redact import SECRET_NAME, hide_secrets
from supervisor.secret_file import read_addresses, without

LIMIT_SECONDS = 30.0
MOST_AT_ONCE = 8
"""Messages under way; what comes while there are so many is recorded as not sent."""
_TAIL_CHARACTERS = 300
_TEXT_CHARACTERS = 4000


@dataclass
class _Sending:
    who: str
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    until: float
    secrets: tuple[str, ...]


class Teller:
    """Starts messages and looks after them. ``problem`` gets a sentence for each that did not arrive."""

    def __init__(self, problem: Callable[[str], object], *, limit_seconds: float = LIMIT_SECONDS) -> None:
        self._problem = problem
        self._limit = limit_seconds
        self._sending: list[_Sending] = []

    def tell(self, settings: NotifySettings, what: str, payload: Mapping[str, Any]) -> None:
        """Tell whoever ``settings`` name about the event ``what``, if they want to hear of it."""
        if what not in settings.on:
            return
        message = hide_secrets(dict(payload))
        if settings.command:
            text = json.dumps(message, default=str)
            self._start(f"the notification command {settings.command[0]}", settings.command, text)
        if settings.urls_file is not None:
            self._to_services(Path(settings.urls_file), what, message)

    def ping(self, settings: NotifySettings) -> None:
        """Call the address of the dead man's switch."""
        if settings.ping_file is None:
            return
        found = read_addresses(Path(settings.ping_file))
        if isinstance(found, str):
            self._problem(f"the dead man's switch was not told: {found}")
        else:
            self._module("the dead man's switch", "supervisor.notify_ping", json.dumps({"urls": found}), found)

    def look(self) -> None:
        """Take in what has ended, end what takes too long. Cheap; call it often."""
        left = []
        for each in self._sending:
            if each.process.poll() is not None:
                self._ended(each)
            elif time.monotonic() >= each.until:
                _kill(each.process)
                self._problem(f"{each.who} took longer than {self._limit:g} s and was killed")
                each.errors.close()
            else:
                left.append(each)
        self._sending = left

    def finish(self) -> None:
        """Wait for what is under way; each message has its limit."""
        while self._sending:
            self.look()
            if self._sending:
                time.sleep(0.02)

    def _to_services(self, file: Path, what: str, message: Mapping[str, Any]) -> None:
        found = read_addresses(file)
        if isinstance(found, str):
            self._problem(f"nobody was notified: {found}")
            return
        title, body = words(what, message)
        text = json.dumps({"urls": found, "title": title, "body": body, "what": what})
        self._module("the notification services", "supervisor.notify_apprise", text, found)

    def _module(self, who: str, module: str, text: str, secrets: Sequence[str]) -> None:
        self._start(who, [sys.executable, "-P", "-m", module], text, secrets)

    def _start(self, who: str, command: Sequence[str], text: str, secrets: Sequence[str] = ()) -> None:
        if len(self._sending) >= MOST_AT_ONCE:
            self._problem(f"{who} was not asked: {MOST_AT_ONCE} messages are under way already")
            return
        environment = {name: value for name, value in os.environ.items() if not SECRET_NAME.search(name)}
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - read when the process has ended
        try:
            with tempfile.TemporaryFile() as given:  # not a pipe: one that is full would make us wait
                given.write(text.encode("utf-8", "replace"))
                given.seek(0)
                process = subprocess.Popen(
                    list(command),
                    stdin=given,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env=environment,
                    start_new_session=True,
                )
        except OSError as error:
            errors.close()
            self._problem(f"{who} could not be started: {error.strerror}")
            return
        self._sending.append(_Sending(who, process, errors, time.monotonic() + self._limit, tuple(secrets)))

    def _ended(self, each: _Sending) -> None:
        code = each.process.returncode
        if code:
            each.errors.seek(0, os.SEEK_END)
            each.errors.seek(max(0, each.errors.tell() - 4 * _TAIL_CHARACTERS))
            said = each.errors.read().decode("utf-8", "replace").strip()
            tail = without(said, each.secrets)[-_TAIL_CHARACTERS:]
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._problem(f"{each.who} failed with {how}" + (f": {tail}" if tail else ""))
        each.errors.close()


def words(what: str, message: Mapping[str, Any]) -> tuple[str, str]:
    """Title and text for people."""
    run = str(message.get("run", ""))
    title = f"{run}: {what.replace('_', ' ')}"
    planned = message.get("planned_steps")
    where = f"attempt {message.get('attempt', '?')}, step {message.get('step', '?')} of {planned or '?'}"
    body = f"{message.get('message', '')}\n{where}\n{message.get('run_dir', '')}"
    return title[:200], body.strip()[:_TEXT_CHARACTERS]


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()
    process.wait()
