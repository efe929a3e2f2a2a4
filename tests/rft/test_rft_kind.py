"""The kind ``rft`` before anything runs: paths, what is refused, relief, the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from toy_job import sections

from rft.config import RftSections
from rft.job import RFT
from supervisor.cli import main
from supervisor.jobs import keeps_own_state, load_kind, wanted_device

ROOT = Path(__file__).parents[2]
TASK = {"id": "add", "prompt": "Add.", "tests": ["assert add(1, 2) == 3"], "entry_point": "add"}


def job(place: Path, **changed: Any) -> Path:
    (place / "tasks.jsonl").write_text(json.dumps(TASK) + "\n")
    document = {
        "kind": "rft",
        "tasks": {"sources": [{"name": "own", "type": "jsonl", "path": "tasks.jsonl"}]},
        "sampler": {"model": "random:1x64"},
        **changed,
    }
    path = place / "job.yaml"
    path.write_text(json.dumps(document, indent=1))  # JSON is YAML
    return path


def test_the_kind_is_installed_and_keeps_its_own_state() -> None:
    assert load_kind("rft") is RFT and keeps_own_state(RFT) and RFT.command(sections())[-1] == "rft"


# proves SUP-18: a job whose samples another server draws needs no GPU of this machine
def test_the_device_that_a_job_asks_for() -> None:
    def device(**sampler: str) -> str:
        return wanted_device(RFT, sections(sampler={"model": "toy", **sampler}))

    assert (device(), device(device="cuda")) == ("auto", "cuda")
    assert device(type="openai", base_url="http://localhost/v1") == "cpu"


# proves law 1 for this package: what starts and plans a job holds no torch
def test_nothing_of_the_job_imports_torch() -> None:
    program = (
        "import sys, rft.__main__, rft.run, rft.parts, rft.job, rft.export, rft.status, rft.estimate, rft.cli\n"
        "sys.exit([name for name in ('torch', 'transformers') if name in sys.modules].__repr__() != '[]')"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_paths_are_absolute_and_names_stay(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    given = RftSections.model_validate(
        {
            "tasks": {
                "sources": [
                    {"name": "a", "type": "jsonl", "path": "tasks/*.jsonl"},
                    {"name": "b", "type": "declarations", "path": "stdlib"},
                ],
                "exclude_benches": ["humaneval"],
            },
            "sampler": {"model": "org/model", "adapter": {"path": "adapter"}, "python": ".venv-vllm/bin/python"},
        }
    )
    found = RFT.resolve(given, tmp_path)
    assert [source.path for source in found.tasks.sources] == [f"{tmp_path}/tasks/*.jsonl", "stdlib"]
    assert found.tasks.exclude_benches == ["humaneval"] and found.sampler.model == "org/model"
    assert found.sampler.adapter is not None and found.sampler.adapter.path == str(tmp_path / "adapter")
    assert found.sampler.python == str(tmp_path / ".venv-vllm/bin/python")


@pytest.mark.parametrize(
    ("changed", "key", "message"),
    [
        ({"sampling": {"temperature": 0.0}}, "sampling.temperature", "the same answer every time"),
        ({"sampling": {"max_new_tokens": 4096}}, "sampling.max_new_tokens", "leaves no room for a prompt"),
        ({"budget": {"accepted_per_task": 9}}, "budget.accepted_per_task", "no task would ever have enough"),
        ({"spend": {"max_cost": 1.0}}, "spend.max_cost", "no price is given"),
        ({"sampler": {"model": "package:no-such"}}, "sampler.model", "is not installed"),
        ({"sampler": {"model": "m", "type": "openai"}}, "sampler.base_url", "needs base_url"),
        ({"sampler": {"model": "random:1x64", "adapter": {"path": "nowhere"}}}, "adapter.path", "holds no adapter"),
        ({"sampler": {"model": "random:1x64", "temperature": 1}}, "sampler.temperature", "is not a known key"),
    ],
)
def test_what_cannot_work_is_refused_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, Any], key: str, message: str
) -> None:
    assert main(["validate", str(job(tmp_path, **changed))]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert message in said and f"{tmp_path}/job.yaml:" in said and key.split(".")[-1] in said, said


def test_relief_draws_fewer_samples_at_a_time() -> None:
    document = sections(sampler={"model": "toy", "max_num_seqs": 5}).model_dump(mode="json")
    relief = RFT.rungs["halve_micro_batch"](document, {})
    assert relief is not None and relief.lossless and "host_oom" in relief.helps
    (patch,) = relief.patches
    assert (patch.key, patch.old, patch.new) == ("sampler.max_num_seqs", 5, 2)
    document["sampler"]["max_num_seqs"] = 1
    assert RFT.rungs["halve_micro_batch"](document, {}) is None
    document["sampler"] |= {"max_num_seqs": 8, "type": "openai"}
    assert RFT.rungs["halve_micro_batch"](document, {}) is None


def test_a_job_of_another_kind_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.yaml"
    path.write_text("name: x\nkind: sft\n")
    assert main(["rft", "run", str(path)]) == 2
    assert "train.yaml:2: kind is sft, not rft" in capsys.readouterr().err


# proves RFT-7
def test_a_dry_run_samples_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = {"type": "openai", "model": "m", "base_url": "http://127.0.0.1:1/v1"}
    assert main(["rft", "run", str(job(tmp_path, sampler=server)), "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tasks"] == 1 and found["samples_most"] == 8 and not found["prompt_tokens_measured"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.yaml", "tasks.jsonl"]
