"""What is made of a sampler's death."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from rft.samplers.kept import Kept
from rft.samplers.restarts import Lifeline, Restarts
from rft.samplers.sampler import SamplerLostError, SamplerUnusableError
from rft.samplers.vllm_env import hopeless

LOG = Path("attempts/0001/sampler.log")


# proves RFT-1: started again a bounded number of times
def test_so_many_times_and_no_more() -> None:
    said: list[str] = []
    restarts = Restarts("worker", 2, LOG, said.append)
    restarts.ready()
    restarts.spend("was ended by SIGKILL", ["loading", "ready"], 7)
    restarts.spend("ended with exit code 1", ["Traceback", "ValueError: of the engine", "bye"], 0)
    with pytest.raises(SamplerLostError, match=r"^The worker was ended by SIGKILL, and sampler.restarts allows it"):
        restarts.spend("was ended by SIGKILL", [], 0)
    assert said == [
        "the worker was ended by SIGKILL and is started again (1 more times allowed); 7 samples are asked for again. "
        "Its last words in attempts/0001/sampler.log: ready",
        "the worker ended with exit code 1 and is started again (0 more times allowed). "
        "Its last words in attempts/0001/sampler.log: ValueError: of the engine",
    ]


# Bad input: what fails at every start is not started for ever
def test_twice_before_it_was_ready_is_enough() -> None:
    restarts = Restarts("vLLM server", 9, LOG, lambda sentence: None)
    restarts.spend("ended with exit code 1", ["RuntimeError: unheard of"], 0)
    with pytest.raises(SamplerUnusableError, match=r"exit code 1, twice before it was ready. .*: unheard of"):
        restarts.spend("ended with exit code 1", ["RuntimeError: unheard of"], 0)


def test_what_the_log_calls_hopeless_is_not_tried_again() -> None:
    said: list[str] = []
    restarts = Restarts("vLLM server", 3, LOG, said.append, hopeless)
    last = ["torch.OutOfMemoryError: CUDA out of memory."]
    with pytest.raises(SamplerUnusableError, match="does not fit into memory"):
        restarts.spend("ended with exit code 1", last, 0)
    assert not said
    restarts.ready()
    restarts.spend("was ended by SIGKILL", last, 3)
    assert "is started again" in said[0]


def test_secrets_in_last_words_are_hidden() -> None:
    said: list[str] = []
    Restarts("worker", 1, LOG, said.append).spend("ended", ["OSError: token=hf_abcdefghijklmnop denied"], 0)
    assert "hf_abc" not in said[0]


class Sleeper:
    """A sampler that never answers. ``line_is_gone``: it cannot be spoken with."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.line_is_gone = False

    def launch(self) -> Kept:
        return Kept([sys.executable, "-S", "-c", "import time; time.sleep(3600)"], {}, self.log)

    def answers(self, seconds: float) -> bool:
        time.sleep(0.01)
        return False

    def gone(self) -> bool:
        return self.line_is_gone

    def drop(self) -> None:
        pass


# proves RFT-1: how it ended is said also when its line was gone before it was reaped
def test_what_killed_it_is_waited_for(tmp_path: Path) -> None:
    sleeper = Sleeper(tmp_path / "log")
    life = Lifeline(sleeper, Restarts("worker", 0, LOG, lambda _: None), "worker", 600.0, sleeper.log, lambda: 0)

    def kill() -> None:
        if life.pid is not None:
            os.kill(life.pid, signal.SIGKILL)
            sleeper.line_is_gone = True

    with pytest.raises(SamplerLostError, match=r"^The worker was ended by SIGKILL"):
        life.start(kill)
