"""When an adapter counts as applied, and what is sampled from."""

import os
from pathlib import Path

import pytest

from rft.samplers import weights
from rft.samplers.effect import effect_problem, largest_difference
from rft.samplers.weights import adapter_digest, model_digest
from rft.samplers.worker_sampler import proof_problem


# proves RFT-1: an adapter that was accepted and applied to nothing is found out
@pytest.mark.parametrize(
    ("effect", "noise", "applied"),
    [(0.0, 0.0, False), (1e-8, 0.0, False), (1e-4, 0.0, True), (0.02, 0.01, False), (0.5, 0.01, True),
     (float("nan"), 0.0, False)],
)  # fmt: skip
def test_effect_must_stand_out_of_the_noise(effect: float, noise: float, applied: bool) -> None:
    problem = effect_problem(effect, noise, "adapters/x", 40)
    assert (problem is None) is applied
    if problem:
        assert problem.startswith("sampler.adapter: adapters/x changes nothing")


def test_an_engine_that_says_nothing_proves_nothing() -> None:
    assert proof_problem(None, None, "a", 3) is not None
    assert largest_difference([-1.0, -2.0, -3.0], [-1.0, -2.5, -2.9]) == 0.5
    with pytest.raises(ValueError, match="zip"):
        largest_difference([1.0], [1.0, 2.0])


# proves RFT-6: the digest is over the whole weights, and they are read once
def test_digest_sees_every_byte_and_reads_unchanged_files_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_CACHE", str(tmp_path / "cache"))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(bytes(3 << 20))
    (model / "README.md").write_text("counts for nothing")
    reads: list[str] = []
    original = weights.digest_file

    def counted(path: Path) -> object:
        reads.append(path.name)
        return original(path)

    monkeypatch.setattr(weights, "digest_file", counted)
    first = model_digest(model)
    assert sorted(reads) == ["config.json", "model.safetensors"]
    assert model_digest(model) == first and len(reads) == 2
    state = (model / "model.safetensors").stat()
    with open(model / "model.safetensors", "r+b") as file:
        file.seek(1_500_000)
        file.write(b"\x01")
    os.utime(model / "model.safetensors", ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert model_digest(model) != first
    assert reads[2:] == ["model.safetensors"]


def test_digest_of_an_adapter(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        adapter_digest(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"1")
    first = adapter_digest(tmp_path)
    (tmp_path / "optimizer.safetensors").write_bytes(b"of no account")
    assert adapter_digest(tmp_path) == first
    (tmp_path / "adapter_model.safetensors").write_bytes(b"2")
    assert adapter_digest(tmp_path) != first
