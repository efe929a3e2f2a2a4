"""``mens-sup federate simulate``: a whole federation on this machine, real processes over loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from supervisor.config_errors import problems_of
from supervisor.config_file import located
from supervisor.config_sections import SupervisorSections
from supervisor.problems import ConfigError, InputError
from supervisor.yaml_source import read_yaml, render_yaml
from trainer.config import FederatedSection, SftSections
from trainer.federated import flower
from trainer.federated.config import load_federation
from trainer.federated.identity import init
from trainer.federated.join import MAILBOX, TRAIN_FILE, end
from trainer.federated.serve import Stop
from trainer.job import SFT

PARTING_SECONDS = 180.0
"""For the nodes' trainers to save and end, once all rounds are done."""
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Laid:
    """A federation of this machine's own. ``inner_port``: free for its SuperLink; ``nodes``: their folders."""

    file: Path
    inner_port: int
    nodes: tuple[Path, ...]

    def commands(self) -> list[list[str]]:
        """What runs it: the coordinator's first."""
        program = str(Path(sys.executable).parent / "mens-sup")
        serve = [program, "federate", "serve", str(self.file), "--inner-port", str(self.inner_port)]
        return [serve, *([program, "federate", "join", str(node)] for node in self.nodes)]


def lay_out(file: Path, nodes: int, out: Path, host: str = "127.0.0.1") -> Laid:
    """Make ``out`` with ``nodes`` boxes, all with the file's training and its data but a seed of their own.

    Raises InputError.
    """
    sections = load_federation(file)
    training = _training(Path(sections.train))
    document, _ = read_yaml(file)
    names = [f"node{number}" for number in range(1, nodes + 1)]
    port, inner = _free_port(), _free_port()
    try:
        made = init(out, sections.name, host, port, names, sections.train)
    except FileExistsError:
        raise InputError(f"{out} exists already. Name another folder by --out, or remove it.") from None
    here = {"host": host, "port": port, "nodes": names, "train": sections.train}
    made.write_text(render_yaml({**document, **here}))
    for number, name in enumerate(names):
        options = {**training.get("train", {}), "seed": 1000 + number}
        (out / name / TRAIN_FILE).write_text(render_yaml({**training, "train": options}))
    return Laid(made, inner, tuple(out / name for name in names))


def start(command: list[str], log: Path, more: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """``more``: environment that it gets unless that is set already."""
    with open(log, "ab") as stream:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True,
            env={**(more or {}), **os.environ},
        )  # fmt: skip


def threads_of_each(nodes: int) -> int:
    """How many threads each trainer computes with: more than there are cores would wait for each other in every
    parallel loop."""
    return max(1, len(os.sched_getaffinity(0)) // nodes)


def simulate(file: Path, nodes: int, out: Path, say: Callable[[str], None]) -> int:
    """0 when all rounds are done. Raises InputError."""
    flower.programs()  # else every process would say so, each in its own log
    laid = lay_out(file, nodes, out)
    say(f"{nodes} nodes in {out}")
    stop = Stop()
    logs = [out / "serve.log", *(out / f"{node.name}.log" for node in laid.nodes)]
    running = []
    try:
        for command, log in zip(laid.commands(), logs, strict=True):
            running.append(start(command, log, {"OMP_NUM_THREADS": str(threads_of_each(nodes))}))
        while running[0].poll() is None and not stop.asked:
            if all(node.poll() is not None for node in running[1:]) and any(node.returncode for node in running[1:]):
                say(f"no node is left; {out}/node1.log and the others say why")
                return 1
            time.sleep(0.5)
        until = time.monotonic() + PARTING_SECONDS
        while running[0].returncode == 0 and not stop.asked and time.monotonic() < until:
            if all(node.poll() is not None for node in running[1:]):  # told that it is over, they end by themselves
                break
            time.sleep(0.5)
        if running[0].returncode:
            say(f"serve has ended with exit code {running[0].returncode}; {logs[0]} says why")
        return 1 if running[0].returncode is None else running[0].returncode
    finally:
        for process in reversed(running):
            process.terminate()
        for process in reversed(running):
            end(process, 180.0)


def _training(file: Path) -> dict[str, Any]:
    """As it may lie in any folder: with absolute paths, and without gates, which judge ``final/``.

    Raises ConfigError for one that no node could use.
    """
    document, lines = read_yaml(file)

    def parsed(model: type[M], keys: Iterable[str]) -> M:
        part = {key: document[key] for key in keys}
        try:
            return model.model_validate_json(json.dumps(part), strict=True)
        except ValidationError as error:
            problems = problems_of(error, model, part)
            raise ConfigError([located(problem, str(file), lines) for problem in problems]) from None

    own = parsed(SupervisorSections, document.keys() - SftSections.model_fields.keys()).resolved(file.parent)
    sections = SFT.resolve(parsed(SftSections, document.keys() & SftSections.model_fields.keys()), file.parent)
    federated = sections.model_copy(update={"federated": FederatedSection(mailbox=str(file.parent / MAILBOX))})
    if problems := SFT.preflight(federated):
        raise ConfigError([located(problem, str(file), lines) for problem in problems])
    given = {**own.model_dump(mode="json", exclude_unset=True), **sections.model_dump(mode="json", exclude_unset=True)}
    return {key: value for key, value in given.items() if key != "gates"}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])

