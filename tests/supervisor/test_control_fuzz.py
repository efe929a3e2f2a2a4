"""The control server against requests made up from its own OpenAPI document, right ones and wrong ones."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from control_bench import Bench, control_bench
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from requests.adapters import HTTPAdapter
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


class UnixAdapter(HTTPAdapter):
    """Sends everything to one Unix socket."""

    def __init__(self, path: Path) -> None:
        class Connection(HTTPConnection):
            def connect(self) -> None:
                self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self.sock.settimeout(60)
                self.sock.connect(str(path))

        class Pool(HTTPConnectionPool):
            ConnectionCls = Connection

        self._pool = Pool("localhost")
        super().__init__()

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> HTTPConnectionPool:
        return self._pool


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with control_bench(tmp_path) as made:
        (tmp_path / "job.yaml").write_text("kind: sft\n")
        for _ in range(3):
            made.ask("POST", "/v1/entries", {"config": str(tmp_path / "job.yaml")})
        yield made


class Fuzz:
    """Every operation with ``examples`` right and as many wrong requests. ``codes``: what was answered, how often."""

    def __init__(self, bench: Bench, examples: int) -> None:
        self.codes: Counter[int] = Counter()
        self._config = str(bench.socket.parent / "job.yaml")
        self._session = requests.Session()
        self._session.mount("http://", UnixAdapter(bench.socket))
        schema = schemathesis.openapi.from_dict(bench.ask("GET", "/openapi.json")[1])
        for each in schema.get_all_operations():
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                with suppress(Unsatisfiable):  # nothing can be wrong where nothing is given
                    self._ask(each.ok(), mode, examples)

    def _ask(self, operation: Any, mode: GenerationMode, examples: int) -> None:
        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def ask(case: Any) -> None:
            if mode is GenerationMode.POSITIVE and isinstance(case.body, dict) and len(case.body["config"]) % 2:
                case.body["config"] = self._config
            response = case.call(base_url="http://localhost", session=self._session)
            self.codes[response.status_code] += 1
            case.validate_response(response, checks=CHECKS)

        ask()


# proves SUP-18: whatever is asked, the answer is one that the document names, and the daemon goes on
def test_made_up_requests(bench: Bench) -> None:
    codes = Fuzz(bench, 2).codes
    assert codes.total() >= 30 and {200, 404, 422} <= set(codes), codes
    assert bench.works()


@pytest.mark.slow
def test_many_made_up_requests(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    codes = Fuzz(bench, 150).codes
    print(dict(codes))
    assert codes.total() >= 3000 and {200, 201, 400, 403, 404, 409, 422} <= set(codes), codes
    assert bench.works() and bench.server.connections <= 1
    said = capfd.readouterr()
    assert "Traceback" not in said.out + said.err
