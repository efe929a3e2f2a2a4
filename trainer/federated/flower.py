"""Flower's programs as this project starts them: no telemetry, no update check, no installing at run time."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from supervisor.problems import InputError
from trainer.federated.bytes_moved import DATABASE
from trainer.federated.identity import AUTHORITY, COORDINATOR, FLEET_KEY, FLEET_PUBLIC, SUPERLINK

VENV_VARIABLE = "MENS_FLOWER_VENV"
"""The environment with Flower in it, where that isn't this program's own."""
VERSION = "1.42"
HOME_VARIABLE = "FLWR_HOME"
"""Where Flower keeps what it keeps; all of its processes have it in their environment."""
CONNECTION = "lan"
COMMAND_SECONDS = 600
"""For one command of Flower's, which starts slowly on a crowded machine."""
GLANCE_SECONDS = 0.5
"""Between two looks whether to stop, while such a command runs."""
APP = """[project]
name = "federated-lora"
version = "1.0.0"
description = "One adapter, several boxes"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "mens-supervisor"

[tool.flwr.app.components]
serverapp = "trainer.federated.server_app:app"
clientapp = "trainer.federated.client_app:app"

[tool.flwr.app.config]
"""


def programs() -> Path:
    """The folder with Flower's programs. Raises InputError when there is none."""
    venv = os.environ.get(VENV_VARIABLE)
    folder = Path(venv) / "bin" if venv else Path(sys.executable).parent
    if not (folder / "flower-superlink").is_file():
        raise InputError(
            f"{folder / 'flower-superlink'} does not exist: mens-sup federate needs Flower {VERSION}. Make an "
            f"environment with it (docs/federated.md) and name it by {VENV_VARIABLE}."
        )
    return folder


def environment(folder: Path, more: Mapping[str, str]) -> dict[str, str]:
    """``folder``: where Flower keeps what it keeps. Proxies are left out: everything is in this room."""
    kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    return {
        **kept,
        HOME_VARIABLE: str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{programs()}:{kept.get('PATH', os.defpath)}",
        **more,
    }


def superlink(root: Path, port: int) -> list[str]:
    """``root``: the federation's folder. It listens on loopback only."""
    keys = root / COORDINATOR
    return [
        str(programs() / "flower-superlink"), "--host", "127.0.0.1", "--port", str(port),
        "--ssl-certfile", str(keys / f"{SUPERLINK}.pem"), "--ssl-keyfile", str(keys / f"{SUPERLINK}.key"),
        "--ssl-ca-certfile", str(keys / AUTHORITY), "--enable-supernode-auth",
        "--database", str(keys / DATABASE), "--disable-runtime-dependency-installation",
    ]  # fmt: skip


def supernode(folder: Path, host: str, port: int, own_port: int) -> list[str]:
    """``folder``: the node's; ``host``: a name or an address, as in node.json."""
    superlink = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return [
        str(programs() / "flower-supernode"), "--superlink", superlink,
        "--root-certificates", str(folder / AUTHORITY), "--auth-supernode-private-key", str(folder / FLEET_KEY),
        "--host", "127.0.0.1", "--port", str(own_port),
    ]  # fmt: skip


def connect(root: Path, port: int) -> None:
    """Write where Flower's own command finds the SuperLink, and the app that it submits."""
    home, app = root / COORDINATOR / "flower", root / COORDINATOR / "app"
    shutil.rmtree(app, ignore_errors=True)
    for folder in (home, app):
        folder.mkdir(parents=True, exist_ok=True)
    certificate = root.resolve() / COORDINATOR / AUTHORITY
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        f'address = "127.0.0.1:{port}"\nroot-certificates = "{certificate}"\n'
    )
    (app / "pyproject.toml").write_text(APP)


def illness(root: Path, port: int) -> str | None:
    """Why the SuperLink cannot be asked yet; None when it can. Past any proxy: it is on loopback."""
    context = ssl.create_default_context(cafile=str(root / COORDINATOR / AUTHORITY))
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=5)
    try:
        connection.request("GET", "/health")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    finally:
        connection.close()
    return None if status == http.client.OK else f"it answers {status}"


def register(root: Path, node: str, stopped: Callable[[], bool]) -> str | None:
    """Tell the SuperLink a node's public key; None, or why it was not taken. Known keys are refused by Flower."""
    key = root / COORDINATOR / node / FLEET_PUBLIC
    return _flwr(root, ["supernode", "register", str(key), CONNECTION, "--name", node], stopped)


def submit(root: Path, stopped: Callable[[], bool]) -> str | None:
    """Start the coordinator's rounds; None, or why not."""
    return _flwr(root, ["run", str(root / COORDINATOR / "app"), CONNECTION], stopped)


def _flwr(root: Path, arguments: list[str], stopped: Callable[[], bool]) -> str | None:
    command = subprocess.Popen(
        [str(programs() / "flwr"), *arguments], env=environment(root / COORDINATOR / "flower", {}), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + COMMAND_SECONDS
    while True:
        try:
            said, _ = command.communicate(timeout=GLANCE_SECONDS)
            break
        except subprocess.TimeoutExpired:
            late = time.monotonic() > deadline
            if late or stopped():
                os.killpg(command.pid, signal.SIGKILL)  # with whatever it has started, or its pipe stays open
                command.communicate()
                return f"the SuperLink has not answered for {COMMAND_SECONDS} seconds" if late else "asked to stop"
    said = " ".join(said.split())
    return None if command.returncode == 0 else said[-500:] or f"exit code {command.returncode}"
