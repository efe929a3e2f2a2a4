"""Settings of the sampler section that its type never reads: refused, since whoever wrote them expects something. No
torch."""

from __future__ import annotations

from rft.config import SamplerSection
from supervisor.jobs import Problem

_VLLM, _OTHERS = ("vllm", "vllm_offline"), ("openai",)
_HERE = ("transformers", *_VLLM)
READ_BY: dict[str, tuple[str, ...]] = {
    "revision": _HERE,
    "adapter": _HERE,
    "quantization": ("transformers",),
    "dtype": _HERE,
    "device": _HERE,
    "template_of": _HERE,
    "chat_template": _HERE,
    "gpu_memory_utilization": _VLLM,
    "python": _VLLM,
    "base_url": _OTHERS,
    "api_key_file": _OTHERS,
    "max_requests_per_minute": _OTHERS,
}
"""Which types read a setting; all read those that are not here."""


def setting_problems(section: SamplerSection) -> list[Problem]:
    """Settings that differ from their default and that ``section.type`` does not read."""
    found = []
    for name, types in READ_BY.items():
        if section.type not in types and getattr(section, name) != SamplerSection.model_fields[name].default:
            message = f"sampler.{name} is not read by type: {section.type}, only by {' and '.join(types)}"
            found.append(Problem(f"sampler.{name}", message, "Remove it, or use another type."))
    return found
