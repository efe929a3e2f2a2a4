"""Sampling from servers that speak OpenAI's interface, against a small one that misbehaves on request."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tiny_sampling import by_sample, requests_for, sample_all, sampling

from rft.config import SamplerSection
from rft.samplers.asking import Patience
from rft.samplers.openai_sampler import OpenAISampler, as_openai
from rft.samplers.sampler import Completion, Refused, Request, SamplerLostError, SamplerUnusableError
from trainer.data.messages import Message, ToolCall

KEY = "sk-nobody-must-ever-see-this-0123456789"
Reply = tuple[int, dict[str, Any], dict[str, str]]
Script = Callable[[dict[str, Any]], Reply | None]
QUICK = Patience(tries=4, first=0.01, longest=0.5)


class Server(ThreadingHTTPServer):
    """``script`` may answer a request in another way (None: as usual)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: Script = lambda body: None
        self.asked: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.at_once = self.most_at_once = 0
        self.guard = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.allowed():
            self.reply(200, {"data": [{"id": "m1", "owned_by": "stand-in"}, {"id": "m2"}]}, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return
        server = self.server
        with server.guard:
            server.asked.append(body)
            server.times.append(time.monotonic())
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
            special = server.script(body)
        try:
            if special is not None and special[0] == 0:
                self.close_connection = True
                self.connection.close()
                return
            self.reply(*(special or usual(body)))
        finally:
            with server.guard:
                server.at_once -= 1

    def allowed(self) -> bool:
        said = self.headers.get("Authorization", "")
        if said == f"Bearer {KEY}":
            return True
        self.reply(401, {"error": {"message": f"Incorrect API key provided: {said.removeprefix('Bearer ')}"}}, {})
        return False

    def reply(self, status: int, body: dict[str, Any], headers: dict[str, str]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def usual(body: dict[str, Any]) -> Reply:
    """An answer that is a function of question and seed, as with fixed seeds."""
    text = f"{body['messages'][-1]['content']} {body['seed']}"
    choice: dict[str, Any] = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop", "index": 0}
    if body.get("logprobs"):
        choice["logprobs"] = {"content": [{"token": "x", "logprob": -0.5}, {"token": "y", "logprob": -1.5}]}
    return 200, {"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}, {}


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    path.chmod(0o600)
    return path


def section_of(server: Server, key: Path, **changes: object) -> SamplerSection:
    values = {"type": "openai", "model": "m1", "base_url": server.url, "api_key_file": str(key), "max_num_seqs": 4}
    return SamplerSection.model_validate({**values, **changes})


# proves RFT-1: what a server broke off is no answer
def test_an_answer_that_was_broken_off_is_asked_for_again(server: Server, key_file: Path) -> None:
    section, seen = section_of(server, key_file), set[int]()

    def broken(body: dict[str, Any]) -> Reply | None:
        if "seed" not in body or body["seed"] in seen or body["seed"] not in seeds:
            return None
        seen.add(body["seed"])
        status, answer, headers = usual(body)
        answer["choices"][0] |= {"finish_reason": "abort", "message": {"role": "assistant", "content": "hal"}}
        return status, answer, headers

    requests = requests_for(section, 2)
    seeds = {request.seed for request in requests}
    sampler = opened(section)
    sampler.start()
    server.script = broken
    found = sample_all(sampler, requests)
    sampler.close()
    assert seen == seeds
    assert all(isinstance(one, Completion) and one.text.endswith(f" {one.seed}") for one in found)


def test_a_server_that_breaks_everything_off_is_lost(server: Server, key_file: Path) -> None:
    section = section_of(server, key_file)
    sampler = opened(section)
    sampler.start()
    answer = usual({"messages": [{"content": "x"}], "seed": 1})[1]
    answer["choices"][0]["finish_reason"] = "error"
    server.script = lambda body: (200, answer, {})
    with pytest.raises(SamplerLostError, match="broke an answer off 3 times, with error"):
        sample_all(sampler, requests_for(section, 1))
    sampler.close()


def opened(section: SamplerSection, said: list[str] | None = None, **drawing: object) -> OpenAISampler:
    return OpenAISampler(section, sampling(**drawing), (said if said is not None else []).append, QUICK)


# proves RFT-1: any OpenAI-compatible server
def test_samples_from_a_server(server: Server, key_file: Path) -> None:
    section = section_of(server, key_file)
    sampler = opened(section, temperature=0.7, top_k=5, stop=["END"])
    identity = sampler.start()
    assert identity.engine == f"stand-in at 127.0.0.1:{server.server_address[1]}"
    assert (identity.model_digest, identity.template_hash, identity.adapter_effect) == (None, None, None)
    requests = requests_for(section, 7)
    found = sample_all(sampler, requests)
    sampler.close()
    assert len(by_sample(found)) == 21
    for one, request in zip(sorted(found, key=lambda one: (one.task_id, one.index)), requests, strict=True):
        assert isinstance(one, Completion)
        assert one.text == f"{request.messages[-1].content} {request.seed}"
        assert (one.token_ids, one.logprobs, one.finish) == (None, (-0.5, -1.5), "stop")
        assert (one.prompt_tokens, one.completion_tokens) == (9, 2)
    options = {"temperature": 0.7, "top_k": 5, "stop": ["END"], "max_tokens": 24, "n": 1}
    assert options.items() <= server.asked[-1].items()
    assert server.most_at_once <= 4


# proves RFT-1: passing troubles cost nothing
def test_troubles_that_pass_are_sat_out(server: Server, key_file: Path) -> None:
    troubles = iter(
        [
            (429, {"error": "slow down"}, {"Retry-After": "0.2"}), (500, {"error": "oops"}, {}), (0, {}, {}),
            (503, {"error": "loading"}, {}), (429, {}, {"Retry-After": "never"}),
        ]
    )  # fmt: skip
    section = section_of(server, key_file)
    sampler = opened(section)
    sampler.start()
    server.script = lambda body: next(troubles, None)
    requests = requests_for(section, 2)
    found = sample_all(sampler, requests)
    sampler.close()
    assert len(by_sample(found)) == len(requests)
    assert all(isinstance(one, Completion) for one in found)


def test_retry_after_is_kept(server: Server, key_file: Path) -> None:
    section = section_of(server, key_file)
    sampler = opened(section)
    sampler.start()
    waits = iter([(429, {}, {"Retry-After": "0.4"})])
    server.script = lambda body: next(waits, None)
    sample_all(sampler, requests_for(section, 1)[:1])
    sampler.close()
    assert server.times[-1] - server.times[-2] >= 0.4


def test_no_more_requests_a_minute_than_allowed(server: Server, key_file: Path) -> None:
    section = section_of(server, key_file, max_requests_per_minute=600)
    sampler = opened(section)
    sampler.start()
    sample_all(sampler, requests_for(section, 2))
    sampler.close()
    assert server.times[-1] - server.times[0] >= 0.1 * (len(server.times) - 1) * 0.95


# Bad input: a clear refusal, and no key in it
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model": "m3"}, r"sampler.model: the server at 127.0.0.1:\d+ does not serve m3; it serves m1, m2."),
        ({"base_url": "http://127.0.0.1:9/v1"}, r"sampler.base_url: nobody answers at 127.0.0.1:9 "),
    ],
)
def test_what_cannot_work_is_refused(
    server: Server, key_file: Path, changes: dict[str, object], expected: str
) -> None:
    sampler = opened(section_of(server, key_file, **changes))
    with pytest.raises(SamplerUnusableError, match=expected):
        sampler.start()
    sampler.close()


def test_a_wrong_key_is_refused_and_not_shown(server: Server, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("plain-looking-key-of-another-service\n")
    wrong.chmod(0o600)
    said: list[str] = []
    sampler = opened(section_of(server, wrong), said)
    with pytest.raises(SamplerUnusableError, match=r"^sampler.api_key_file: the server refuses the key") as refusal:
        sampler.start()
    sampler.close()
    assert "plain-looking" not in str(refusal.value) + repr(said)
    assert "[key]" in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "mode", "expected"),
    [
        (f"{KEY}\n", 0o640, r"others may read or change .* \(mode 640\)"),
        ("", 0o600, "is not a key"),
        (f"export KEY={KEY} \n", 0o600, "is not a key"),
        (None, 0o600, "cannot be read"),
    ],
)
def test_key_files_that_will_not_do(tmp_path: Path, server: Server, text: str | None, mode: int, expected: str) -> None:
    path = tmp_path / "key"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(SamplerUnusableError, match=expected) as refusal:
        opened(section_of(server, path))
    assert KEY not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [(None, "needs the server's address"), ("localhost:8000", "must begin with http"),
     ("https://me:secret@host/v1", "must not hold a user")],
)  # fmt: skip
def test_addresses_that_will_not_do(server: Server, key_file: Path, url: str | None, expected: str) -> None:
    with pytest.raises(SamplerUnusableError, match=expected) as refusal:
        opened(section_of(server, key_file, base_url=url))
    assert "secret" not in str(refusal.value)


def test_a_server_out_of_memory_is_refused_before_sampling(server: Server, key_file: Path) -> None:
    server.script = lambda body: (500, {"error": "CUDA out of memory"}, {})
    sampler = opened(section_of(server, key_file))
    with pytest.raises(SamplerUnusableError, match=r"question of two words: status 500: .*out of memory"):
        sampler.start()
    sampler.close()
    assert len(server.asked) == QUICK.tries


# proves RFT-4: what was given is safe, what is owed may be asked for again
def test_a_server_that_goes_silent_ends_in_bounded_tries(server: Server, key_file: Path) -> None:
    section = section_of(server, key_file)
    sampler = opened(section)
    sampler.start()
    requests = requests_for(section, 2)
    good = {requests[0].seed, requests[1].seed}
    server.script = lambda body: None if body["seed"] in good else (500, {"error": "engine dead"}, {})
    sampler.submit(requests)
    got: list[Completion | Refused] = []

    def until_it_gives_up() -> None:
        while True:
            got.extend(sampler.wait(5))

    with pytest.raises(SamplerLostError, match=r"a request in 4 tries; the last time: status 500: .*dead"):
        until_it_gives_up()
    assert {one.seed for one in got} == good
    sampler.close()


def test_a_request_that_the_server_refuses_is_not_the_end(server: Server, key_file: Path) -> None:
    section = section_of(server, key_file)
    sampler = opened(section)
    sampler.start()
    requests = requests_for(section, 1)
    bad = requests[1].seed
    server.script = lambda body: (400, {"error": "context length"}, {}) if body["seed"] == bad else None
    long = Request("long", 0, 1, tuple(range(5000)), (Message("user", "x"),))
    found = sample_all(sampler, [*requests, long])
    sampler.close()
    refused = {one.task_id: one.problem for one in found if isinstance(one, Refused)}
    assert set(refused) == {"q/1", "long"}
    assert "status 400" in refused["q/1"] and "context length" in refused["q/1"]
    assert "5000 tokens" in refused["long"]


def test_options_that_change_nothing_give_way(server: Server, key_file: Path) -> None:
    def picky(body: dict[str, Any]) -> Reply | None:
        if "max_tokens" in body:
            return 400, {"error": "Unsupported parameter: 'max_tokens', use 'max_completion_tokens'"}, {}
        if "logprobs" in body:
            return 400, {"error": "logprobs are not supported"}, {}
        return None

    server.script = picky
    section = section_of(server, key_file)
    said: list[str] = []
    sampler = opened(section, said)
    sampler.start()
    found = sample_all(sampler, requests_for(section, 1))
    sampler.close()
    assert all(isinstance(one, Completion) and one.logprobs is None for one in found)
    assert server.asked[-1]["max_completion_tokens"] == 24
    assert said == ["the server gives no log-probabilities; the samples are kept without"]
    server.script = lambda body: (400, {"error": "temperature must be 1"}, {})
    sampler = opened(section)
    with pytest.raises(SamplerUnusableError, match="temperature must be 1"):
        sampler.start()
    sampler.close()


def test_tool_calls_go_there_and_come_back_as_text(server: Server, key_file: Path) -> None:
    turn = as_openai(Message("assistant", "", (ToolCall("find", {"q": "ä"}),)))
    assert turn["tool_calls"][0]["function"] == {"name": "find", "arguments": '{"q": "ä"}'}
    call = {"id": "1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}
    choice = {"message": {"role": "assistant", "content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}
    section = section_of(server, key_file)
    sampler = opened(section, logprobs=False)
    sampler.start()
    server.script = lambda body: (200, {"choices": [choice], "usage": {"completion_tokens": 5}}, {})
    (one,) = sample_all(sampler, requests_for(section, 1)[:1])
    sampler.close()
    assert isinstance(one, Completion)
    assert one.text == '<tool_call>\n{"name": "find", "arguments": {"q": 1}}\n</tool_call>'
    assert one.finish == "stop"
