"""``mens-sup federate serve``: SuperLink, front and the coordinator's rounds, each started anew when it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from supervisor.problems import InputError
from supervisor.protocol.lock import lock_holder
from trainer.federated import flower
from trainer.federated.blueprint import standing_blueprint
from trainer.federated.config import FederationSections, load_federation
from trainer.federated.coordinator import (
    BLUEPRINT_FILE,
    FAILURE_FILE,
    STANDING,
    STATE_FILE,
    State,
    aggregation_problem,
    lock_path,
    read_adapter,
    waiting_text,
    write_state,
)
from trainer.federated.final import write_final
from trainer.federated.front import Front, every_address
from trainer.federated.identity import AUTHORITY, COORDINATOR, DELTA_PUBLIC, FLEET_PUBLIC, FRONT
from trainer.federated.leftovers import alone, end_marked
from trainer.federated.packed import Blueprint, Layout
from trainer.federated.submissions import Submissions
from trainer.federated.wire import plain

FILE_VARIABLE = "MENS_FEDERATION"
HEALTHY_SECONDS = 180.0
END_SECONDS = 15.0
RESUBMIT_SECONDS = 60.0
"""A submitted run takes so long to begin at most; after that it is taken for dead and submitted anew."""
KNOWN_KEY = "already in use"
PARTING_DEADLINES = 3
"""Of rounds: the nodes are told that it is over within one, and no longer than these is waited for that."""


class Stop:
    """Set by SIGTERM and SIGINT."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        self.asked = True


def serve(file: Path, inner_port: int, say: Callable[[str], None]) -> int:
    """Until all rounds are done and the nodes know it, or are not waited for any longer (0), or asked to stop (1).

    Nodes that are away while rounds are left are waited for as long as that takes, and named; a coordinator's process
    that ends again and again is not (1).

    ``inner_port``: the SuperLink's, on loopback. Started again after the end it tells those that do not know it yet.

    Raises InputError, OSError.
    """
    sections = load_federation(file)
    root = file.resolve().parent
    if not (root / COORDINATOR / AUTHORITY).is_file():
        raise InputError(f"{root / COORDINATOR}: no keys there; make the federation by mens-sup federate init.")
    state = read_state(root)
    if state is not None and (problem := aggregation_problem(state, sections.aggregation)):
        raise InputError(f"{file}: {problem}.")
    for node in sections.nodes:
        if not all((root / COORDINATOR / node / name).is_file() for name in (DELTA_PUBLIC, FLEET_PUBLIC)):
            raise InputError(
                f"{file}: nodes names {node}, and {root / COORDINATOR} has no keys of it. Name only nodes that "
                "mens-sup federate init has made."
            )
    flower.programs()
    with alone(root / COORDINATOR / "serve.lock", f"{file}: this federation's coordinator"):
        left = end_marked(flower.HOME_VARIABLE, str(root / COORDINATOR / "flower"), END_SECONDS)
        if left:
            say(f"{left} processes of a coordinator that was killed were ended")
        return _serve(file, root, sections, inner_port, say)


def _serve(file: Path, root: Path, sections: FederationSections, inner_port: int, say: Callable[[str], None]) -> int:
    """While nobody else does."""
    path = root / COORDINATOR / BLUEPRINT_FILE
    plan = standing_blueprint(path, Path(sections.train), begun=read_state(root) is not None)
    if problem := _rank_problem(plan.layout, sections):
        raise InputError(f"{sections.train}: {problem}.")
    state = read_state(root)
    if state is not None and state.done >= sections.rounds.count:
        say(f"all {state.done} rounds are done: {_export(root, plan, state)}")
        if set(state.told) >= set(sections.nodes):
            return 0
        if state.ended and not _coordinator_lives(root):
            write_state(root / COORDINATOR / STANDING, msgspec.structs.replace(state, ended=False))
    flower.connect(root, inner_port)
    stop = Stop()
    keys = root / COORDINATOR
    try:
        behind = ("127.0.0.1", inner_port)
        front = Front(
            (every_address(sections.host), sections.port), keys / f"{FRONT}.pem", keys / f"{FRONT}.key", behind,
            keys / AUTHORITY,
        )  # fmt: skip
    except OSError as error:
        raise InputError(f"{file}: port {sections.port} cannot be served: {error.strerror or error}.") from None
    threading.Thread(target=front.serve_forever, daemon=True).start()
    say(f"serving {sections.name} on port {sections.port}")
    link: subprocess.Popen[bytes] | None = None
    submitted, done_since = 0.0, 0.0
    submissions, waited = Submissions(), state.waited if state is not None else 0
    try:
        while not stop.asked:
            if link is None or link.poll() is not None:
                if link is not None:
                    say(f"the SuperLink died ({link.returncode}); it is started anew")
                    _end(link)  # what it had started lives on
                link = _superlink(root, file, inner_port, sections, stop, say)
                submitted = 0.0
            state = read_state(root)
            if state is not None and state.waited != waited:
                waited = state.waited
                if waited:
                    say(waiting_text(state))
            if state is not None and state.done >= sections.rounds.count:
                if not done_since:
                    done_since = time.monotonic()
                    say(f"all {state.done} rounds are done: {_export(root, plan, state)}")
                longest = PARTING_DEADLINES * sections.rounds.deadline_seconds
                if state.ended or time.monotonic() - done_since > longest:
                    if away := sorted(set(sections.nodes) - set(state.told)):
                        say(f"{', '.join(away)} cannot be told that it is over; start serve again when they are back")
                    return 0
            if not _coordinator_lives(root) and time.monotonic() - submitted > RESUBMIT_SECONDS:
                failure = _taken_failure(root)
                if failure:
                    say(f"the coordinator's process failed: {failure}")
                if give_up := submissions.why_not(state, failure):
                    say(give_up)
                    return 1
                why = flower.submit(root, lambda: stop.asked)
                say("the rounds are submitted" if why is None else f"the rounds cannot be submitted just now: {why}")
                submitted = time.monotonic()
            time.sleep(0.5)
        return 1
    finally:
        front.shutdown()
        front.server_close()
        if link is not None:
            _end(link)


def read_state(root: Path) -> State | None:
    """None before the first round was begun."""
    try:
        return msgspec.json.decode((root / COORDINATOR / STANDING / STATE_FILE).read_bytes(), type=State)
    except FileNotFoundError:
        return None


def _export(root: Path, plan: Blueprint, state: State) -> Path:
    return write_final(root, plan, state, read_adapter(root / COORDINATOR / STANDING, state.round))


def _rank_problem(layout: Layout, sections: FederationSections) -> str | None:
    """The mean of products has no more directions than a layer has."""
    narrow = [layer for layer in layout.layers if min(layer.rows, layer.columns) < layout.rank]
    if not narrow or sections.aggregation.mode == "exact":
        return None
    return (
        f"model.lora.r is {layout.rank}, and {narrow[0].name} is only {narrow[0].rows} x {narrow[0].columns}. "
        "Lower it, or leave that layer out"
    )


def _taken_failure(root: Path) -> str:
    """What the coordinator's process has died of since this was last asked; empty where it left nothing."""
    path = root / COORDINATOR / STANDING / FAILURE_FILE
    try:
        said = path.read_text("utf-8", "replace")
    except FileNotFoundError:
        return ""
    path.unlink()
    return plain(said)


def _coordinator_lives(root: Path) -> bool:
    return lock_holder(lock_path(root / COORDINATOR / STANDING)) is not None


def _superlink(
    root: Path, file: Path, port: int, sections: FederationSections, stop: Stop, say: Callable[[str], None]
) -> subprocess.Popen[bytes]:
    home = root / COORDINATOR / "flower"
    more = {FILE_VARIABLE: str(file.resolve())}
    with open(root / COORDINATOR / "superlink.log", "ab") as log:
        link = subprocess.Popen(
            flower.superlink(root, port), env=flower.environment(home, more), stdin=subprocess.DEVNULL, stdout=log,
            stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        _await_health(root, port, link, stop)
        for node in sections.nodes:
            why = flower.register(root, node, lambda: stop.asked)
            if stop.asked:
                break
            if why is not None and KNOWN_KEY not in why:
                say(f"{node} cannot be registered: {why}")
    except BaseException:
        _end(link)
        raise
    return link


def _await_health(root: Path, port: int, link: subprocess.Popen[bytes], stop: Stop) -> None:
    began = time.monotonic()
    while not stop.asked and (why := flower.illness(root, port)) is not None:
        if link.poll() is not None or time.monotonic() - began > HEALTHY_SECONDS:
            where = root / COORDINATOR / "superlink.log"
            raise InputError(f"the SuperLink does not come up ({why}); {where} says why.")
        time.sleep(0.5)


def _end(process: subprocess.Popen[bytes]) -> None:
    """With what it has started: Flower's programs start others."""
    for number, patience in ((signal.SIGTERM, END_SECONDS), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue


def say(sentence: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {sentence}\n")
    sys.stdout.flush()
