"""A real SuperLink behind its front, tried from another network namespace, as from another machine."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from real_federation import RealFederation, eventually, need_flower  # type: ignore[import-not-found]

from trainer.federated import flower
from trainer.federated.bytes_moved import DATABASE
from trainer.federated.identity import AUTHORITY, COORDINATOR, NODE_FILE, init

COORDINATORS_ADDRESS, BOXES_ADDRESS = "10.213.7.1", "10.213.7.2"
HOSTILE = '''
"""Makes a box's ClientApp send other bytes than it has signed."""

import sys
from importlib.machinery import PathFinder

NAME = "trainer.federated.client_app"


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != NAME:
            return None
        spec = PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            content = module.content
            module.content = lambda values, flat: content(values, None if flat is None else flat * 2)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
'''
POST = """
import http.client, ssl, sys
host, port, path, authority = sys.argv[1:]
if authority:
    context = ssl.create_default_context(cafile=authority)
    connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=120)
else:
    connection = http.client.HTTPConnection(host, int(port), timeout=120)
try:
    connection.request("POST", path, b"", {"content-type": "application/protobuf"})
    answer = connection.getresponse()
    print(answer.status, answer.read().decode(errors="replace"))
except (OSError, http.client.HTTPException) as error:
    print(type(error).__name__, error)
"""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[RealFederation]:
    """The coordinator in one namespace, everybody else in another; one line between them."""
    need_flower()
    mark = uuid.uuid4().hex[:8]
    here, there = f"mens-c-{mark}", f"mens-b-{mark}"
    try:
        _ip("netns", "add", here)
        _ip("netns", "add", there)
        _ip("link", "add", "mens0", "netns", here, "type", "veth", "peer", "name", "mens0", "netns", there)
        for space, address in ((here, COORDINATORS_ADDRESS), (there, BOXES_ADDRESS)):
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", "mens0")
            _ip("-n", space, "link", "set", "mens0", "up")
            _ip("-n", space, "link", "set", "lo", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        _remove(here, there)
        pytest.skip(f"NO NETWORK NAMESPACES, NOTHING WAS REFUSED: {error} {getattr(error, 'stderr', '')}; run as root")
    rounds = "{count: 2, train_seconds: 5, deadline_seconds: 600, late_rounds: 0, warmup_steps: 2}"
    made = RealFederation.make(tmp_path, 2, rounds, COORDINATORS_ADDRESS)
    made.serve_prefix = ("ip", "netns", "exec", here)
    made.node_prefix = ("ip", "netns", "exec", there)
    yield made
    made.clean()
    _remove(here, there)


def _remove(*spaces: str) -> None:
    if shutil.which("ip"):
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


def _post(fed: RealFederation, path: str, *, encrypted: bool = True, port: int | None = None) -> str:
    """The answer's status and text, or the error, to a POST from the other side of the line."""
    authority = str(fed.laid.nodes[0] / AUTHORITY) if encrypted else ""
    arguments = [COORDINATORS_ADDRESS, str(port or fed.port), path, authority]
    answer = subprocess.run(
        [*fed.node_prefix, sys.executable, "-c", POST, *arguments], capture_output=True, text=True, check=True
    )
    return answer.stdout.strip()


def _rows(fed: RealFederation, query: str) -> list[tuple[object, ...]]:
    path = fed.root / COORDINATOR / DATABASE
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=60)) as connection:
        return connection.execute(query).fetchall()


# proves FED-1 (from another machine: a registered node takes part; an unregistered one, the control API, plain HTTP and
# a tampered delta get nowhere)
@pytest.mark.slow
@pytest.mark.flower
def test_what_another_machine_can_and_cannot_do(federation: RealFederation, tmp_path: Path) -> None:
    fed = federation
    (tmp_path / "hostile").mkdir()
    (tmp_path / "hostile/sitecustomize.py").write_text(HOSTILE)
    fed.serve()
    fed.join("node1")
    fed.join("node2", "env", f"PYTHONPATH={tmp_path / 'hostile'}:{os.environ.get('PYTHONPATH', '')}")

    eventually("the front answers", lambda: "403" in _post(fed, "/health"))
    eventually("the SuperLink answers", lambda: not _post(fed, "/v1/fleet/pull-messages").startswith("503"))
    for path in ("/v1/control/start-run", "/v1/control/list-runs", "/v1/fleet/../control/start-run", "/v1/runtime/x"):
        assert _post(fed, path).startswith("403"), path
    assert "200" not in _post(fed, "/v1/fleet/pull-messages", encrypted=False)
    assert "ConnectionRefusedError" in _post(fed, "/v1/control/list-runs", port=fed.laid.inner_port)
    # The fleet API is reached, and Flower refuses whoever has no registered key.
    nobody = _post(fed, "/v1/fleet/pull-messages")
    assert nobody.startswith(("400", "401", "403", "412")) and "only the fleet API" not in nobody, nobody
    submitted = eventually("the rounds are submitted", lambda: _apps(fed) or None)
    assert len(submitted) == 1
    assert _flowers_own_command(fed, tmp_path) != 0
    _stranger_gets_nowhere(fed, tmp_path)
    assert _apps(fed) == submitted

    fed.await_end_of(0)
    state = fed.state()
    assert state is not None
    first = state.records[0]
    assert set(first.counted) == {"node1"}
    assert "not those that were signed" in first.refused["node2"]
    said = subprocess.run(
        [*fed.serve_prefix, fed.laid.commands()[0][0], "federate", "status", str(fed.laid.file)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "node2 refused: its bytes are not those that were signed" in said
    assert fed.running["serve"].wait(1800) == 0
    assert _apps(fed) == submitted
    for node in ("node1", "node2"):
        fed.stop(node)
    assert fed.left() == []


def _apps(fed: RealFederation) -> list[tuple[object, ...]]:
    """Whose runs the SuperLink was given; serve submits its own anew when they have died."""
    return _rows(fed, "SELECT DISTINCT fab_id FROM run")


def _flowers_own_command(fed: RealFederation, tmp_path: Path) -> int:
    """Exit code of `flwr run` with another app from the other side, with the right certificate."""
    home = tmp_path / "flwr"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "lan"\n\n[superlink.lan]\naddress = "{COORDINATORS_ADDRESS}:{fed.port}"\n'
        f'root-certificates = "{fed.laid.nodes[0] / AUTHORITY}"\n'
    )
    (home / "app").mkdir()
    (home / "app/pyproject.toml").write_text(flower.APP.replace("federated-lora", "another-app"))
    answer = subprocess.run(
        [*fed.node_prefix, str(flower.programs() / "flwr"), "run", str(home / "app"), "lan"],
        env=flower.environment(home, {}), capture_output=True, text=True, check=False, timeout=1800,
    )  # fmt: skip
    return answer.returncode


def _stranger_gets_nowhere(fed: RealFederation, tmp_path: Path) -> None:
    """A SuperNode with the right certificate, address and name, but a key that was never registered."""
    init(tmp_path / "others", "lan", COORDINATORS_ADDRESS, fed.port, ["node1"], "train.yaml")
    stranger = tmp_path / "others/node1"
    for name in (AUTHORITY, NODE_FILE):
        shutil.copy(fed.laid.nodes[0] / name, stranger / name)
    known = eventually("two registered nodes", lambda: (n := _rows(fed, "SELECT count(*) FROM node")) == [(2,)] and n)
    log = tmp_path / "stranger.log"
    with open(log, "wb") as stream:
        link = subprocess.Popen(
            [*fed.node_prefix, *flower.supernode(stranger, COORDINATORS_ADDRESS, fed.port, 19_443)],
            env=flower.environment(tmp_path / "strangers", {}), stdout=stream, stderr=stream, start_new_session=True,
        )  # fmt: skip
    try:
        assert link.wait(1800) != 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(link.pid, signal.SIGKILL)
        link.wait()
    assert _rows(fed, "SELECT count(*) FROM node") == known, log.read_text()
