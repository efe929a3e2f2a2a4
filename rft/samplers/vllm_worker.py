"""vLLM's engine without a server: ``python vllm_worker.py FRAMES FD``, run by the Python of vLLM's environment.

A single file, since nothing else of ours is there; ``FRAMES`` is the path of :mod:`.frames`, and the messages are those
of :mod:`.wire` as plain dictionaries. It ends with the other side, also in the middle of a computation.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import queue
import socket
import sys
import threading
import time
from multiprocessing.connection import wait
from types import ModuleType
from typing import Any

import msgspec

# The engine computes in a child while this process reads its answers; in one process a tenth of the speed is lost.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
# This process has a thread and holds a socket; a forked one would have both.
os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
BROKEN_OFF_TIMES = 3
"""After so many answers to one request that the engine gave up, another engine is needed."""


def main() -> None:
    frames = _load(sys.argv[1])
    channel = socket.socket(fileno=int(sys.argv[2]))
    inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(frames, channel, inbox), daemon=True).start()
    setup = inbox.get()
    worker = _Worker(setup)
    if (problem := worker.template_problem()) is not None:
        frames.send(channel, {"type": "unusable", "problem": problem})
        return
    frames.send(channel, worker.ready())
    while True:
        for message in worker.advance(inbox):
            frames.send(channel, message)


def _load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("frames", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _listen(frames: ModuleType, channel: socket.socket, inbox: queue.SimpleQueue[dict[str, Any]]) -> None:
    try:
        for body in frames.receive(channel):
            inbox.put(msgspec.msgpack.decode(body))
    finally:
        os._exit(0)  # whoever asked is gone


def _end_with_engine() -> None:
    """An engine that was killed says nothing, and whoever waits for its answers would wait for ever."""
    wait([child.sentinel for child in multiprocessing.active_children()])
    sys.stderr.write("the engine's process ended\n")
    sys.stderr.flush()
    os._exit(1)


class _Worker:
    def __init__(self, setup: dict[str, Any]) -> None:
        import vllm
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import RequestOutputKind

        self._setup = setup
        self._section, self._sampling = setup["section"], setup["sampling"]
        self._params, self._final = vllm.SamplingParams, RequestOutputKind.FINAL_ONLY
        self._llm = vllm.LLM(**setup["engine"], disable_custom_all_reduce=True)
        self._engine = self._llm.llm_engine
        threading.Thread(target=_end_with_engine, daemon=True).start()
        adapter = self._section["adapter"]
        self._lora = LoRARequest("adapter", 1, adapter["path"]) if adapter else None
        self._began: dict[str, float] = {}
        self._asks: dict[str, dict[str, Any]] = {}
        self._broken_off: dict[str, int] = {}

    def template_problem(self) -> str | None:
        """Why vLLM's own rendering of a conversation has other token ids than ours; None when it has the same."""
        tokenizer = self._llm.get_tokenizer()
        text = tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in self._setup["probe"]],
            chat_template=self._setup["chat_template"] if self._section["chat_template"] else None,
            add_generation_prompt=True,
            tokenize=False,
            **self._section["chat_template_kwargs"],
        )
        theirs, ours = tokenizer(text, add_special_tokens=False)["input_ids"], list(self._setup["probe_ids"])
        if theirs == ours:
            return None
        return (
            f"sampler.chat_template: vLLM renders a conversation to {len(theirs)} token ids that are not the "
            f"{len(ours)} of the renderer of the training. Its tokenizer or chat template is another one: check "
            "sampler.model and sampler.chat_template, and the transformers version in vLLM's environment."
        )

    def ready(self) -> dict[str, Any]:
        import torch
        import vllm
        from vllm.platforms import current_platform

        effect = noise = None
        if self._lora is not None:
            with_it, without, again = (self._prompt_logprobs(lora) for lora in (self._lora, None, None))
            effect, noise = _largest_difference(with_it, without), _largest_difference(without, again)
        on_gpu = current_platform.device_type == "cuda"
        return {
            "type": "ready",
            "engine": f"vllm {vllm.__version__}, torch {torch.__version__}",
            "device": torch.cuda.get_device_name() if on_gpu else current_platform.device_type,
            "dtype": str(self._setup["engine"]["dtype"]),
            "adapter_effect": effect,
            "adapter_noise": noise,
        }

    def advance(self, inbox: queue.SimpleQueue[dict[str, Any]]) -> list[dict[str, Any]]:
        """Take in what is asked, waiting only when there is nothing to do, and compute one step."""
        messages = []
        while not inbox.empty() or not self._engine.has_unfinished_requests():
            if (refusal := self._add(inbox.get())) is not None:
                messages.append(refusal)
                if not self._engine.has_unfinished_requests():
                    return messages
        for output in self._engine.step():
            if output.finished and (drawn := self._drawn(output)) is not None:
                messages.append(drawn)
        return messages

    def _add(self, ask: dict[str, Any]) -> dict[str, Any] | None:
        ids = list(ask["prompt_ids"])
        room = min(self._sampling["max_new_tokens"], self._section["max_model_len"] - len(ids))
        if room < 1 or not ids:
            problem = f"its prompt has {len(ids)} tokens, sampler.max_model_len leaves no room for an answer"
            return {"type": "rejected", "key": ask["key"], "problem": problem}
        params = self._params(
            temperature=self._sampling["temperature"],
            top_p=self._sampling["top_p"],
            top_k=self._sampling["top_k"],
            max_tokens=room,
            stop=list(self._sampling["stop"]),
            stop_token_ids=list(self._setup["stop_token_ids"]),
            seed=ask["seed"],
            skip_special_tokens=False,
            spaces_between_special_tokens=False,
            logprobs=0 if self._setup["keep_logprobs"] else None,
            output_kind=self._final,
        )
        key = str(ask["key"])
        self._asks[key] = ask
        self._began[key] = time.monotonic()
        self._engine.add_request(key, {"prompt_token_ids": ids}, params, lora_request=self._lora)
        return None

    def _drawn(self, output: Any) -> dict[str, Any] | None:
        """None when the engine broke the answer off: it is asked for again. Raises RuntimeError when it always does."""
        answer = output.outputs[0]
        ids = list(answer.token_ids)
        # request ids may have something appended; the key comes first
        key = output.request_id.split("-")[0]
        ask = self._asks.pop(key)
        if answer.finish_reason in ("abort", "error"):
            self._broken_off[key] = self._broken_off.get(key, 0) + 1
            if self._broken_off[key] == BROKEN_OFF_TIMES:
                raise RuntimeError(f"the engine broke an answer off {BROKEN_OFF_TIMES} times ({answer.finish_reason})")
            self._add(ask)
            return None
        self._broken_off.pop(key, None)
        logprobs = None
        if self._setup["keep_logprobs"]:
            logprobs = [entry[token].logprob for entry, token in zip(answer.logprobs, ids, strict=True)]
        return {
            "type": "drawn",
            "key": int(key),
            "text": answer.text,
            "token_ids": ids,
            "logprobs": logprobs,
            "finish": "length" if answer.finish_reason == "length" else "stop",
            "seconds": time.monotonic() - self._began.pop(key),
        }

    def _prompt_logprobs(self, lora: Any) -> list[float]:
        ids = list(self._setup["probe_ids"])
        params = self._params(temperature=0, max_tokens=1, prompt_logprobs=0)
        output = self._llm.generate({"prompt_token_ids": ids}, params, lora_request=lora, use_tqdm=False)[0]
        return [entry[token].logprob for entry, token in zip(output.prompt_logprobs[1:], ids[1:], strict=True)]


def _largest_difference(first: list[float], second: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(first, second, strict=True))


if __name__ == "__main__":
    main()
