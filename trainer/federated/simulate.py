"""``mens-sup federate simulate``: a whole federation on this machine, real processes over loopback."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from supervisor.problems import InputError
from supervisor.yaml_source import read_yaml, render_yaml
from trainer.federated.config import load_federation
from trainer.federated.identity import init
from trainer.federated.join import TRAIN_FILE, end
from trainer.federated.serve import Stop


def simulate(file: Path, nodes: int, out: Path, say: Callable[[str], None]) -> int:
    """``nodes`` boxes with the file's training, all on its data; 0 when all rounds are done. Raises InputError."""
    sections = load_federation(file)
    train, _ = read_yaml(Path(sections.train))
    document, _ = read_yaml(file)
    names = [f"node{number}" for number in range(1, nodes + 1)]
    port, inner = _free_port(), _free_port()
    try:
        made = init(out, sections.name, "127.0.0.1", port, names, sections.train)
    except FileExistsError:
        raise InputError(f"{out} exists already. Name another folder by --out, or remove it.") from None
    here = {"host": "127.0.0.1", "port": port, "nodes": names, "train": sections.train}
    made.write_text(render_yaml({**document, **here}))
    for number, name in enumerate(names):
        options = train.get("train")
        own = {**(options if isinstance(options, dict) else {}), "seed": 1000 + number}
        training = _absolute({**train, "train": own}, Path(sections.train).parent)
        (out / name / TRAIN_FILE).write_text(render_yaml(training))
    say(f"{nodes} nodes in {out}")
    stop = Stop()
    program = str(Path(sys.executable).parent / "mens-sup")
    commands = [["serve", str(made), "--inner-port", str(inner)], *(["join", str(out / name)] for name in names)]
    running = []
    try:
        for command in commands:
            with open(out / f"{Path(command[1]).stem}.log", "ab") as log:
                running.append(
                    subprocess.Popen(
                        [program, "federate", *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                        start_new_session=True,
                    )
                )  # fmt: skip
        while running[0].poll() is None and not stop.asked:
            if all(node.poll() is not None for node in running[1:]):
                say(f"no node is left; {out}/node1.log and the others say why")
                return 1
            time.sleep(0.5)
        return 1 if running[0].returncode is None else running[0].returncode
    finally:
        for process in reversed(running):
            process.terminate()
        for process in reversed(running):
            end(process, 180.0)


def _absolute(train: dict[str, object], base: Path) -> dict[str, object]:
    """Sources of rows are meant from the training's own folder on."""
    data = train.get("data")
    if not isinstance(data, dict):
        return train
    sources = [
        {**source, "path": str((base / str(source["path"])).resolve())}
        if isinstance(source, dict) and source.get("path") not in (None, "stdlib")
        else source
        for source in data.get("sources", [])
    ]
    return {**train, "data": {**data, "sources": sources}}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])

