"""Sampling through a real vLLM, with a LoRA adapter, and its processes killed in the middle. Needs ``make vllm``."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tiny_sampling import CAP_SECONDS, TINY, by_sample, requests_for, sample_all, sampling

from rft.config import SamplerSection, SamplingSection
from rft.samplers.open import open_sampler
from rft.samplers.openai_sampler import OpenAISampler
from rft.samplers.sampler import Completion, SamplerIdentity, SamplerUnusableError
from rft.samplers.vllm_server import VllmServerSampler
from rft.samplers.worker_sampler import WorkerSampler

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
MODEL = TINY
EACH = 4


def vllm_section(kind: str, adapter: Path | None, **changes: object) -> SamplerSection:
    values: dict[str, object] = {
        "type": kind, "model": MODEL, "max_num_seqs": 4, "max_model_len": 512, "start_seconds": CAP_SECONDS * 4,
        "adapter": {"path": str(adapter)} if adapter else None, **changes,
    }  # fmt: skip
    return SamplerSection.model_validate(values)


def drawing() -> SamplingSection:
    return sampling(temperature=0.8, max_new_tokens=32)


class Relay(socketserver.BaseRequestHandler):
    """A connection to the bridge is one to the server's socket."""

    def handle(self) -> None:
        assert isinstance(self.server, Bridge)
        with socket.socket(socket.AF_UNIX) as there:
            there.connect(self.server.path)
            threading.Thread(target=pump, args=(there, self.request), daemon=True).start()
            pump(self.request, there)


class Bridge(socketserver.ThreadingTCPServer):
    """A TCP address for a Unix socket."""

    daemon_threads = True

    def __init__(self, path: str) -> None:
        super().__init__(("127.0.0.1", 0), Relay)
        self.path = path


def pump(source: socket.socket, sink: socket.socket) -> None:
    with source.makefile("rb", 0) as read, sink.makefile("wb", 0) as write:
        shutil.copyfileobj(read, write, 1 << 14)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


class Served:
    """The adapter on a server: started once for all tests of this file."""

    def __init__(self, folder: Path, adapter: Path) -> None:
        self.said: list[str] = []
        self.adapter = adapter
        self.section = vllm_section("vllm", adapter)
        sampler = open_sampler(self.section, drawing(), folder, 1, self.said.append)
        assert isinstance(sampler, VllmServerSampler)
        self.sampler = sampler
        self.identity: SamplerIdentity = sampler.start()
        self.requests = requests_for(self.section, EACH)
        self.undisturbed = by_sample(sample_all(sampler, self.requests))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, make_adapter: Callable[[str, float], Path]) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("run"), make_adapter(MODEL, 0.5))
    yield served
    served.sampler.close()


# proves RFT-1: samples by vLLM, from ids of our renderer, with the log-probabilities of what was drawn
def test_samples_of_the_server(served: Served) -> None:
    assert served.identity.kind == "vllm"
    assert served.identity.engine.startswith("vllm")
    assert served.identity.adapter_effect is not None and served.identity.adapter_effect > 0.01
    assert len(served.undisturbed) == len(served.requests)
    for text, ids, logprobs, finish in served.undisturbed.values():  # type: ignore[misc]  # only completions here
        assert len(ids) == len(logprobs) <= 32
        assert all(value <= 0 for value in logprobs)
        assert "<|im_end|>" not in text
        assert finish == "stop" or len(ids) == 32


# proves RFT-1: vLLM with the adapter says what transformers with the adapter says
def test_log_probabilities_are_those_of_transformers(served: Served, tmp_path: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from trainer.base_model import locate

    model = AutoModelForCausalLM.from_pretrained(str(locate(MODEL, None).path), dtype=torch.float32).eval()
    adapted = PeftModel.from_pretrained(model, str(served.adapter)).eval()
    request = served.requests[0]
    drawn = served.undisturbed[request.task_id, request.index, request.seed]
    ids, logprobs = drawn[1], drawn[2]  # type: ignore[index]

    def of(model: torch.nn.Module) -> torch.Tensor:
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([[*request.prompt_ids, *ids]])).logits[0]
        shares = torch.log_softmax(logits[len(request.prompt_ids) - 1 : -1].float() / 0.8, dim=-1)
        return shares.gather(-1, torch.tensor(ids)[:, None])[:, 0]

    assert torch.allclose(of(adapted), torch.tensor(logprobs), atol=1e-2)
    with adapted.disable_adapter():
        assert not torch.allclose(of(adapted), torch.tensor(logprobs), atol=1e-1)


# proves RFT-4: the server killed -9 in the middle: nothing lost, nothing doubled, no process left
@pytest.mark.parametrize("victim", ["server", "engine"])
def test_killed_in_the_middle(served: Served, victim: str) -> None:
    struck: list[int] = []
    family: list[psutil.Process] = []
    before = len(served.said)

    def kill(done: int) -> None:
        if not struck and done >= 2:
            server = psutil.Process(served.sampler.pid or 0)
            family.extend([server, *server.children(recursive=True)])
            engine = max(server.children(recursive=True), key=lambda process: process.memory_info().rss)
            struck.append(server.pid if victim == "server" else engine.pid)
            os.kill(struck[0], signal.SIGKILL)

    found = sample_all(served.sampler, served.requests, kill)
    assert struck
    assert set(by_sample(found)) == set(served.undisturbed)
    assert len(served.said) == before + 1 and "is started again" in served.said[-1]
    _, alive = psutil.wait_procs(family, CAP_SECONDS)
    assert not alive, "the engine of the dead server holds no memory any more"


# proves RFT-1: the server as any OpenAI-compatible one
def test_real_server_through_the_openai_sampler(served: Served, tmp_path: Path) -> None:
    assert served.sampler._folder is not None
    path = str(Path(served.sampler._folder.name, "http"))
    with Bridge(path) as bridge:
        threading.Thread(target=bridge.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{bridge.server_address[1]}/v1"
        section = SamplerSection(type="openai", model="adapter", base_url=url, max_num_seqs=4)
        sampler = OpenAISampler(section, drawing(), print)
        identity = sampler.start()
        found = sample_all(sampler, requests_for(section, 2))
        sampler.close()
        with pytest.raises(SamplerUnusableError, match=r"does not serve nobody; it serves adapter, base"):
            OpenAISampler(section.model_copy(update={"model": "nobody"}), drawing(), print).start()
        bridge.shutdown()
    assert identity.engine.startswith("vllm at")
    assert len(by_sample(found)) == 6
    assert all(isinstance(one, Completion) and one.logprobs and one.prompt_tokens > 10 for one in found)


# proves RFT-1: the engine as a worker script, it or its child killed in the middle, and no process left
@pytest.mark.parametrize("victim", ["worker", "engine"])
def test_engine_without_a_server(tmp_path: Path, make_adapter: Callable[[str, float], Path], victim: str) -> None:
    section = vllm_section("vllm_offline", make_adapter(MODEL, 0.5))
    said: list[str] = []
    sampler = open_sampler(section, drawing(), tmp_path, 1, said.append)
    assert isinstance(sampler, WorkerSampler)
    identity = sampler.start()
    assert identity.adapter_effect is not None and identity.adapter_effect > 0.01
    requests = requests_for(section, EACH)
    family: list[psutil.Process] = []

    def kill(done: int) -> None:
        if not family and done >= 2:
            worker = psutil.Process(sampler.pid or 0)
            family.extend([worker, *worker.children(recursive=True)])
            struck = worker if victim == "worker" else next(each for each in family if "EngineCore" in each.name())
            struck.kill()

    found = sample_all(sampler, requests, kill)
    sampler.close()
    assert len(by_sample(found)) == len(requests)
    assert family and len(said) == 1
    assert psutil.wait_procs(family, timeout=CAP_SECONDS)[1] == []
    for one in found:
        assert isinstance(one, Completion) and one.token_ids and one.logprobs
        assert len(one.token_ids) == len(one.logprobs)


# proves RFT-1: a base without an adapter, which vLLM would compile where it could
@pytest.mark.parametrize("kind", ["vllm", "vllm_offline"])
def test_a_base_alone(kind: str, tmp_path: Path) -> None:
    section = vllm_section(kind, None)
    sampler = open_sampler(section, drawing(), tmp_path, 1)
    identity = sampler.start()
    requests = requests_for(section, 2)
    found = sample_all(sampler, requests)
    sampler.close()
    assert identity.adapter_effect is None
    assert len(by_sample(found)) == len(requests)
    assert all(isinstance(one, Completion) for one in found)


# proves RFT-1: an adapter that changes nothing is refused by what was measured
@pytest.mark.parametrize("kind", ["vllm", "vllm_offline"])
def test_an_adapter_without_effect_is_refused(
    kind: str, tmp_path: Path, make_adapter: Callable[[str, float], Path]
) -> None:
    sampler = open_sampler(vllm_section(kind, make_adapter(MODEL, 0.0)), drawing(), tmp_path, 1)
    with pytest.raises(SamplerUnusableError, match=r"changes nothing: over the \d+ tokens of a probe"):
        sampler.start()
    sampler.close()


# Bad input: no memory for keys and values
def test_a_server_without_room_for_one_sample_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rft.samplers import vllm_env

    monkeypatch.setattr(vllm_env, "_kv_bytes", lambda *_: 1 << 18)
    sampler = open_sampler(vllm_section("vllm", None), drawing(), tmp_path, 1)
    with pytest.raises(SamplerUnusableError, match=r"no memory left for keys and values .* vLLM said: "):
        sampler.start()
    sampler.close()
