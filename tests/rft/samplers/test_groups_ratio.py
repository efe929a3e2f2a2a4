"""What the groups' file holds is what a trainer computes: at the sampled weights every importance ratio is one."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from tiny_sampling import TINY, requests_for, sample_all, tiny_section
from transformers import AutoModelForCausalLM

from rft.config import RftSections
from rft.groups import write_groups
from rft.samplers.open import open_sampler
from rft.samplers.renderer import prompt_renderer
from rft.samplers.sampler import Completion, Sampling
from rft.store import Arrived, Judged, Origin, Store
from rft.tasks.task import Check, Task
from rft.verifiers.verdict import Isolation, Outcome, Verdict
from trainer.base_model import locate

pytestmark = pytest.mark.slow
EACH, TEMPERATURE = 4, 0.8


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("groups")
    document = {
        "tasks": {"sources": [{"name": "q", "type": "jsonl", "path": "x"}]},
        "sampler": tiny_section().model_dump(),
        "sampling": {"samples_per_task": EACH, "max_new_tokens": 16, "temperature": TEMPERATURE},
        "budget": {"adaptive": False},
    }
    job = RftSections.model_validate(document)
    sampler = open_sampler(job.sampler, job.sampling, folder, 1)
    try:
        identity = sampler.start()
        requests = requests_for(job.sampler, EACH)
        found = sample_all(sampler, requests)
    finally:
        sampler.close()
    names = list(dict.fromkeys(request.task_id for request in requests))
    questions = {request.task_id: request.messages for request in requests}
    store = Store.open(folder)
    with store.batch():
        origin = store.origin_number(Origin(identity, Sampling(TEMPERATURE, 1.0, 0, 16)))
        store.add_tasks(Task(name, "q", questions[name], Check("v", {})) for name in names)
        for one in found:
            assert isinstance(one, Completion)
            number = names.index(one.task_id) + 1
            store.add([Arrived(number, one)], origin, 1)
            outcome = Outcome.ACCEPTED if one.index % 2 else Outcome.REJECTED
            store.add_verdicts([Judged(number, one.index, Verdict(outcome, "", "v", "1", Isolation.NOT_RUN), None)])
    renderer = prompt_renderer(job.sampler)
    assert renderer is not None
    out = folder / "groups.jsonl"
    write_groups(store, job, lambda task: renderer.ids(task.messages, task.tools), renderer.template_hash, out)
    return [json.loads(line) for line in out.read_text().splitlines()]


# proves RFT-8
def test_a_plain_ppo_loss_sees_ratios_of_one_and_the_gradient_of_the_advantages(rows: list[dict[str, Any]]) -> None:
    assert len(rows) == 3 * EACH
    model = AutoModelForCausalLM.from_pretrained(locate(TINY, None).path, dtype=torch.float32)
    worst, tokens, loss = 0.0, 0, torch.tensor(0.0)
    for row in rows:
        ids = torch.tensor([row["prompt_ids"] + row["completion_ids"]])
        logits = model(ids).logits[0, len(row["prompt_ids"]) - 1 : -1] / row["temperature"]
        picked = torch.tensor(row["completion_ids"])
        logprobs = logits.log_softmax(-1).gather(1, picked[:, None])[:, 0]
        sampled = torch.tensor(row["logprobs"])
        assert logprobs.shape == sampled.shape
        worst = max(worst, float((logprobs - sampled).detach().abs().max()))
        ratio = (logprobs - sampled).exp()
        advantage = row["advantage"]
        loss = loss - torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).sum()
        tokens += len(picked)
    assert worst < 1e-3, f"log-probabilities differ by {worst:g} nats"
    mean = float(loss.detach()) / tokens
    expected = -sum(row["advantage"] * len(row["completion_ids"]) for row in rows) / tokens
    assert math.isclose(mean, expected, abs_tol=1e-3), "the clipped objective at ratio one is the mean advantage"
    loss.backward()
    norm = sum(float(p.grad.norm()) ** 2 for p in model.parameters() if p.grad is not None) ** 0.5
    assert math.isfinite(norm) and norm > 0


# proves RFT-8
def test_the_file_is_self_contained(rows: list[dict[str, Any]]) -> None:
    for group in {row["group"] for row in rows}:
        mine = [row for row in rows if row["group"] == group]
        assert len({tuple(row["prompt_ids"]) for row in mine}) == 1 and len({row["seed"] for row in mine}) == EACH
        assert {row["template_hash"] for row in mine} != {None}
        assert {row["temperature"] for row in mine} == {TEMPERATURE}
        assert all(len(row["completion_ids"]) == 16 for row in mine if row["truncated"])
