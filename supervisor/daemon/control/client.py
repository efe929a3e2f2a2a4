"""Asking the daemon. Standard library and msgspec only: commands start at once."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from supervisor.daemon.control.address import socket_to_ask
from supervisor.daemon.control.errors import DaemonRefusedError, NoDaemonError
from supervisor.daemon.control.wire import ErrorAnswer, LogPiece, decode
from supervisor.daemon.service import Entry, Health, Schedule

T = TypeVar("T")

MAX_ANSWER = 64 << 20
LOOKING_THROUGH_SECONDS = 100.0
"""For questions that make the daemon read a configuration and all that it names."""


class DaemonClient:
    """Of the daemon at ``path`` (see socket_to_ask). One connection per question.

    Every method raises NoDaemonError, and DaemonRefusedError for what the daemon will not do.
    """

    def __init__(self, path: Path | None = None, seconds: float = 30.0) -> None:
        self.path = path or socket_to_ask()
        self._seconds = seconds

    def health(self) -> Health:
        return self._understood(self._ask("GET", "/v1/health"), Health)

    def entries(self, ended: int) -> list[Entry]:
        """Those that have not ended, and the ``ended`` that ended last."""
        return self._understood(self._ask("GET", f"/v1/entries?ended={ended}"), list[Entry])

    def entry(self, entry_id: int) -> Entry:
        return self._understood(self._ask("GET", f"/v1/entries/{entry_id}"), Entry)

    def submit(self, request: Mapping[str, Any]) -> Entry:
        """``request``: SubmitRequest of the OpenAPI document."""
        return self._understood(self._ask("POST", "/v1/entries", request, LOOKING_THROUGH_SECONDS), Entry)

    def act(self, entry_id: int, action: Literal["cancel", "pause", "resume"]) -> Entry:
        return self._understood(self._ask("POST", f"/v1/entries/{entry_id}/{action}"), Entry)

    def status(self, entry_id: int) -> dict[str, Any]:
        """Of the entry's run, as `mens-sup status --json`; DaemonRefusedError 409 while it has none."""
        return self._understood(self._ask("GET", f"/v1/entries/{entry_id}/status"), dict[str, Any])

    def log(self, entry_id: int, stream: str, attempt: int | None, offset: int) -> LogPiece:
        query: dict[str, str | int] = {"stream": stream, "offset": offset}
        if attempt is not None:
            query["attempt"] = attempt
        return self._understood(self._ask("GET", f"/v1/entries/{entry_id}/log?{urlencode(query)}"), LogPiece)

    def page(self, entry_id: int) -> bytes:
        """The page of the entry's run, HTML in UTF-8."""
        return self._ask("GET", f"/runs/{entry_id}")

    def schedules(self) -> list[Schedule]:
        return self._understood(self._ask("GET", "/v1/schedules"), list[Schedule])

    def add_schedule(self, config: Path, cron: str) -> Schedule:
        request = {"config": str(config), "cron": cron}
        return self._understood(self._ask("POST", "/v1/schedules", request, LOOKING_THROUGH_SECONDS), Schedule)

    def remove_schedule(self, schedule_id: str) -> None:
        self._ask("DELETE", f"/v1/schedules/{quote(schedule_id, safe='')}")

    def _understood(self, data: bytes, kind: type[T]) -> T:
        try:
            return decode(data, kind)
        except msgspec.DecodeError as error:
            raise NoDaemonError(f"{another_version(self.path)} ({error})") from None

    def _ask(
        self, method: str, target: str, body: Mapping[str, Any] | None = None, seconds: float | None = None
    ) -> bytes:
        headers = {} if body is None else {"Content-Type": "application/json"}
        patience = seconds or self._seconds
        connection = _UnixConnection(self.path, patience)
        try:
            with suppress(BrokenPipeError):  # who is refused is told so before having asked
                connection.request(method, target, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            data = answer.read(MAX_ANSWER + 1)
        except TimeoutError:
            raise NoDaemonError(
                f"The daemon at {self.path} did not answer within {patience:g} s; what was asked may still be done. "
                "Look at its queue (mens-sup queue) and its journal (journalctl -u mens-supervisor)."
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise NoDaemonError(_nobody(self.path, error)) from None
        finally:
            connection.close()
        if len(data) > MAX_ANSWER:
            raise NoDaemonError(f"The answer of the daemon at {self.path} is larger than {MAX_ANSWER >> 20} MiB.")
        if answer.status >= 400:
            raise DaemonRefusedError(answer.status, _sentence(data, answer.status))
        return data


def another_version(path: Path) -> str:
    return (
        f"The daemon at {path} answers in a way that is not known here: it is probably of another version. Restart it: "
        "systemctl restart mens-supervisor."
    )


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(os.fspath(self._path))


def _nobody(path: Path, error: Exception) -> str:
    if isinstance(error, PermissionError):
        return (
            f"You may not ask the daemon at {path}: it answers its own user, root and the members of its group alone. "
            "An administrator can add you to the group: usermod -aG mens-supervisor USER, then log in again."
        )
    said = "" if isinstance(error, FileNotFoundError | ConnectionRefusedError) else f" ({error})"
    return (
        f"No daemon answers at {path}{said}; start it by: systemctl start mens-supervisor, or as yourself: "
        "mens-sup daemon. MENS_SUP_SOCKET names another socket."
    )


def _sentence(data: bytes, status: int) -> str:
    try:
        return decode(data, ErrorAnswer).error
    except msgspec.DecodeError:
        return f"The daemon answers with the error {status}."
