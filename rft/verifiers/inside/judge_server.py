"""A judge in a process of its own: loads a function once, then judges each request in a child of its own.

    python judge_server.py DESCRIPTOR FILE NAME ARGUMENT

``FILE`` defines ``NAME``, which is called with ARGUMENT (JSON) and gives the function that judges: from a JSON value to
a JSON value. If it has a method ``prepare``, that is called with the value first, before there is a child.

Requests come as lines on the socket DESCRIPTOR: ``{"seconds", "memory", "value"}``. The answer to each is one line:
``{"value"}``, ``{"timeout": true}``, ``{"died": signal or exit code}`` or ``{"raised": text}``. The first line, without
a request, is ``{"ready": true}`` or ``{"raised": text}``. A child that hangs, dies or changes what it knows takes
nobody else with it. Ends when the other side closes the socket.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_REPLY = 1_000_000
_PR_SET_CHILD_SUBREAPER = 36


def main(descriptor: int, file: str, name: str, argument: str) -> int:
    connection = socket.socket(fileno=descriptor)
    try:
        judge = load(file, name)(json.loads(argument))
    except BaseException:  # noqa: BLE001  (whatever it is, it is told)
        send(connection, {"raised": traceback.format_exc()[-4000:]})
        return 1
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    send(connection, {"ready": True})
    for line in connection.makefile("rb"):
        request = json.loads(line)
        reply = prepared(judge, request["value"])
        send(connection, reply or in_child(connection, judge, request))
    return 0


def load(file: str, name: str) -> Any:
    scope: dict[str, Any] = {"__name__": "judge", "__file__": file}
    with open(file, encoding="utf-8") as source:
        exec(compile(source.read(), file, "exec"), scope)
    return scope[name]


def prepared(judge: Any, value: Any) -> dict[str, Any] | None:
    """What a judge wants to keep for later requests is made here, and of nothing that is judged."""
    try:
        if hasattr(judge, "prepare"):
            judge.prepare(value)
    except Exception:  # noqa: BLE001  (as above)
        return {"raised": traceback.format_exc()[-4000:]}
    return None


def send(connection: socket.socket, reply: dict[str, Any]) -> None:
    connection.sendall(json.dumps(reply).encode() + b"\n")


def in_child(connection: socket.socket, judge: Callable[[Any], Any], request: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            os.close(connection.fileno())
            os.setpgid(0, 0)
            memory = request.get("memory")
            if memory:
                resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            answer(writing, judge, request["value"])
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    try:
        return outcome(reading, child, request["seconds"])
    finally:
        os.close(reading)
        end_descendants()


def end_descendants() -> None:
    """What a child has started and left in a session of its own shall not meet the next one."""
    me = os.getpid()
    while True:
        for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(pid), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def answer(writing: int, judge: Callable[[Any], Any], value: Any) -> None:
    try:
        reply = {"value": judge(value)}
        data = json.dumps(reply).encode()
    except BaseException:  # noqa: BLE001  (as above)
        data = json.dumps({"raised": traceback.format_exc()[-4000:]}).encode()
    with open(writing, "wb") as out:
        out.write(data)


def outcome(reading: int, child: int, seconds: float) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    data = b""
    over = False
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reading], [], [], left)[0]:
            over = True
            break
        piece = os.read(reading, 65536)
        data += piece
        if not piece or len(data) > MAX_REPLY:
            break
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if over:
        return {"timeout": True}
    try:
        reply: dict[str, Any] = json.loads(data)
        return reply
    except ValueError:
        return {"died": -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)}


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:5]))
