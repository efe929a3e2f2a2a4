"""Flower's programs as this project starts them: no telemetry, no update check, no installing at run time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
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
    """``folder``: the node's."""
    return [
        str(programs() / "flower-supernode"), "--superlink", f"{host}:{port}",
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


def register(root: Path, node: str) -> str | None:
    """Tell the SuperLink a node's public key; None, or why it was not taken. Known keys are refused by Flower."""
    key = root / COORDINATOR / node / FLEET_PUBLIC
    return _flwr(root, ["supernode", "register", str(key), CONNECTION, "--name", node])


def submit(root: Path) -> str | None:
    """Start the coordinator's rounds; None, or why not."""
    return _flwr(root, ["run", str(root / COORDINATOR / "app"), CONNECTION])


def _flwr(root: Path, arguments: list[str]) -> str | None:
    try:
        answer = subprocess.run(
            [str(programs() / "flwr"), *arguments], env=environment(root / COORDINATOR / "flower", {}), check=False,
            capture_output=True, text=True, timeout=COMMAND_SECONDS, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"the SuperLink has not answered for {COMMAND_SECONDS} seconds"
    said = " ".join(f"{answer.stdout} {answer.stderr}".split())
    return None if answer.returncode == 0 else said[-500:] or f"exit code {answer.returncode}"
