"""What a job is: what its samples and verdicts depend on. A run directory belongs to one job."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rft.samplers.sampler import SamplerIdentity, Sampling
from rft.store import Store
from trainer.errors import CheckpointIncompatibleError

IDENTITY = "identity"
CHANGEABLE = ("tasks", "sampler", "sampling", "verifiers")
"""May be accepted: every row says from which it comes. Another seed would make other samples of the same number."""


def model_identity(found: SamplerIdentity) -> dict[str, str]:
    """What is known only when the sampler runs."""
    return {
        "sampler.model": f"{found.model} by {found.kind}, weights {found.model_digest or 'unknown'}",
        "sampler.adapter": "none" if found.adapter is None else (found.adapter_digest or found.adapter),
        "sampler.template": found.template_hash or "the server's own",
        "sampler.precision": f"{found.dtype}, quantization {found.quantization or 'unknown'}",
        "sampler.window": str(found.max_model_len or "unknown"),
        "sampler.engine": found.engine,
    }


def sampling_identity(sampling: Sampling, seed: int) -> dict[str, str]:
    return {"sampling": msgspec.json.encode(sampling, order="sorted").decode(), "seed": str(seed)}


def verifiers_identity(versions: Mapping[tuple[str, str], str]) -> dict[str, str]:
    """``versions`` by source and verifier."""
    return {"verifiers": ", ".join(f"{source}: {name} {found}" for (source, name), found in sorted(versions.items()))}


def check_identity(store: Store, found: Mapping[str, str], accepted: tuple[str, ...]) -> dict[str, str]:
    """Compare with what the job began with and remember what is new; a sentence for each accepted change, by name.

    Call it inside a batch. Raises CheckpointIncompatibleError naming the difference.
    """
    text = store.recall(IDENTITY)
    known: dict[str, str] = {} if text is None else msgspec.json.decode(text, type=dict[str, str])
    said: dict[str, str] = {}
    for name, value in found.items():
        before = known.get(name)
        if before == value:
            continue
        if before is not None:
            if not _accepts(accepted, name):
                raise CheckpointIncompatibleError(_refusal(store, name, before, value))
            store.note_change(name, before, value)
            said[name] = f"{name} changed from {before} to {value}, as accepted; rows say which they come from"
        known[name] = value
    store.remember(IDENTITY, msgspec.json.encode(known, order="sorted").decode())
    return said


def _accepts(accepted: tuple[str, ...], name: str) -> bool:
    section = name.partition(".")[0]
    return section in CHANGEABLE and (section in accepted or name in accepted)


def _refusal(store: Store, name: str, before: str, after: str) -> str:
    section = name.partition(".")[0]
    remedy = f"go on all the same with --accept-change {section}, or " if section in CHANGEABLE else ""
    return (
        f"the samples in {store.path.name} belong to another job: {name} was {before} and is {after} now. Put it back, "
        f"{remedy}start in a new --run-dir."
    )
