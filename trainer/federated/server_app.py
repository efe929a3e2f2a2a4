"""The ServerApp: the coordinator's loop on Flower's grid. Imports flwr.

Flower gives up a run when its SuperLink dies; ``federate serve`` submits it anew, and it goes on with the round that is
in the coordinator's folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from supervisor.protocol.atomic import write_atomic
from supervisor.protocol.lock import FileLock
from trainer.federated.bytes_moved import DATABASE, counted_bytes
from trainer.federated.common import Common
from trainer.federated.config import FederationSections, load_federation
from trainer.federated.coordinator import BLUEPRINT_FILE, FAILURE_FILE, STANDING, Coordinator, begin, lock_path
from trainer.federated.deltas import Asked
from trainer.federated.identity import COORDINATOR, read_delta_public
from trainer.federated.mailbox import Task
from trainer.federated.messages import answer, content
from trainer.federated.packed import Blueprint, Flat, Layout, parted
from trainer.federated.parting import part
from trainer.federated.serve import FILE_VARIABLE
from trainer.federated.timed_wire import TimedWire
from trainer.federated.wire import Answer, WireError, collected

app = ServerApp()


class GridWire:
    """Implements trainer.federated.wire.Wire on a grid of Flower's."""

    def __init__(self, grid: Grid, sections: FederationSections, database: Path, common: Common | None) -> None:
        self._grid = grid
        self._common = common
        self._database = database
        self._sections = sections
        self._ids: dict[str, int] = {}

    def online(self) -> Sequence[str]:
        # A node's name was registered together with its key, so nobody else can take it.
        self._ids = {info.name: info.node_id for info in self._tried(self._grid.get_nodes) if info.name}
        return list(self._ids)

    def ask(self, node: str, asked: Asked, broadcast: Flat, seconds_valid: float) -> str:
        rounds, aggregation = self._sections.rounds, self._sections.aggregation
        task = Task(
            asked.federation, asked.round, asked.began_from, asked.layout, rounds.train_seconds, rounds.warmup_steps,
            frozen_rank=parted(asked.layout, broadcast)[1].rank,
            frozen_room=aggregation.residual_rank if aggregation.mode == "exact" else 0,
            common=self._common,
        )  # fmt: skip
        return self._push(node, task, broadcast, seconds_valid)

    def dismiss(self, node: str, rounds: int, seconds_valid: float) -> str:
        task = Task(self._sections.name, rounds, "", Layout(0, ()), 0, 0, over=True)
        return self._push(node, task, None, seconds_valid)

    def _push(self, node: str, task: Task, broadcast: Flat | None, seconds_valid: float) -> str:
        message = Message(
            content({"node": node, "task": msgspec.json.encode(task)}, broadcast),
            dst_node_id=self._ids[node],
            message_type="train",
            ttl=seconds_valid,
            group_id=str(task.round),
        )
        handles = list(self._tried(lambda: self._grid.push_messages([message])))
        if not handles or not handles[0]:
            raise WireError(f"{node} cannot be sent anything")
        return str(handles[0])

    def collect(self, handles: Sequence[str]) -> Sequence[Answer]:
        return collected(handles, self._pull)

    def _pull(self, handle: str) -> Answer | None:
        messages = self._tried(lambda: list(self._grid.pull_messages([handle])))
        return answer(handle, messages[0]) if messages else None

    def bytes_moved(self) -> int | None:
        """By Flower's own counter, over all runs that were submitted to this SuperLink."""
        return counted_bytes(self._database)

    def _tried(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (httpx.HTTPError, OSError) as error:
            raise WireError(" ".join(str(error).split())[:300] or type(error).__name__) from error


def _say(sentence: str) -> None:
    sys.stdout.write(f"{sentence}\n")  # Flower takes it into the run's log
    sys.stdout.flush()


@app.main()  # type: ignore[untyped-decorator]  # flwr is not looked at
def main(grid: Grid, context: Context) -> None:
    """Raises what has gone wrong, and leaves it for `federate serve`, which sees nothing else of this process."""
    file = Path(os.environ[FILE_VARIABLE])
    folder = file.resolve().parent / COORDINATOR
    standing = folder / STANDING
    standing.mkdir(parents=True, exist_ok=True)
    lock = FileLock(lock_path(standing))
    lock.acquire()  # one that was submitted while another still works ends here, and the other goes on
    try:
        _coordinate(grid, load_federation(file), folder)
    except Exception as error:
        write_atomic(standing / FAILURE_FILE, f"{type(error).__name__}: {error}".encode())
        raise
    finally:
        lock.release()


def _coordinate(grid: Grid, sections: FederationSections, folder: Path) -> None:
    blueprint = msgspec.json.decode((folder / BLUEPRINT_FILE).read_bytes(), type=Blueprint)
    keys = {node: read_delta_public(folder, node) for node in sections.nodes}
    state = begin(folder / STANDING, sections.name, blueprint.layout, blueprint.seed, sections.aggregation)
    wire = TimedWire(GridWire(grid, sections, folder / DATABASE, blueprint.common))
    coordinator = Coordinator(folder / STANDING, sections, blueprint.scale, keys, wire, _say)
    part(coordinator, coordinator.run(state))
