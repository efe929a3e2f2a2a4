"""Settings of one type of sampler under another."""

from pathlib import Path

import pytest
from tiny_sampling import sampling

from rft.config import SamplerSection
from rft.samplers.open import open_sampler
from rft.samplers.sampler import SamplerUnusableError
from rft.samplers.settings import READ_BY, setting_problems

OTHER_VALUES = {
    "revision": "abc", "adapter": {"path": "a"}, "quantization": "nf4", "dtype": "bfloat16", "device": "cpu",
    "template_of": "a", "chat_template": "t.jinja", "gpu_memory_utilization": 0.5, "python": "python3", "base_url": "http://h/v1",
    "api_key_file": "key", "max_requests_per_minute": 9,
}  # fmt: skip


# proves TRN-9 for samplers: a knob that nobody would read is refused
@pytest.mark.parametrize("kind", ["transformers", "vllm", "vllm_offline", "openai"])
@pytest.mark.parametrize("name", READ_BY)
def test_a_setting_that_is_not_read_is_refused(kind: str, name: str) -> None:
    section = SamplerSection.model_validate({"type": kind, "model": "m", name: OTHER_VALUES[name]})
    found = [problem.key for problem in setting_problems(section)]
    assert found == ([] if kind in READ_BY[name] else [f"sampler.{name}"])


def test_every_setting_is_accounted_for(tmp_path: Path) -> None:
    assert set(OTHER_VALUES) == set(READ_BY) <= set(SamplerSection.model_fields)
    section = SamplerSection(model="m", base_url="http://h/v1", python="p")
    with pytest.raises(SamplerUnusableError, match=r"sampler.python is not read by .* sampler.base_url is not read by"):
        open_sampler(section, sampling(), tmp_path, 1)
