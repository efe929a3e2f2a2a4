"""``final/``: what a federation came to, as a checkpoint like any other, so that it goes through the same gates.

With ``run.yaml`` beside it the federation's folder is, for `mens-sup eval gates` and `mens-sup export`, a run. Free of
torch.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import save

from supervisor.protocol.atomic import STAGING_PREFIX, staged_directory, write_atomic
from supervisor.protocol.manifest import FORMAT_VERSION, MANIFEST_NAME, Manifest, digest_tree, write_manifest
from supervisor.protocol.paths import RunPaths
from supervisor.yaml_source import render_yaml
from trainer.federated.coordinator import State
from trainer.federated.packed import Blueprint, Flat, named, parted, side_by_side


def write_final(root: Path, plan: Blueprint, state: State, broadcast: Flat) -> Path:
    """``root/final``, whole or as it was, and ``root/run.yaml``. ``broadcast``: what a next round would begin from.

    The frozen adapter of exact mode goes into the trained one: their ranks lie side by side. Raises OSError, and
    ValueError for numbers that are not finite.
    """
    if not np.isfinite(broadcast).all():
        raise ValueError("the federation's adapter has values that are not finite")
    adapter, frozen_layout, frozen = parted(state.layout, broadcast)
    layout, flat = side_by_side(state.layout, adapter, frozen_layout, frozen)
    config = {**plan.adapter_config, "r": layout.rank, "lora_alpha": plan.scale * layout.rank}
    files = {
        "adapter_model.safetensors": save(named(layout, flat), {"format": "pt"}),
        "adapter_config.json": _json(config),
        "template.json": _json(plan.template),
        "chat_template.jinja": plan.chat_template.encode(),
        "run_config.json": _json({name: part for name, part in plan.run.items() if name not in ("kind", "gates")}),
    }
    write_atomic(RunPaths(root).run_yaml, render_yaml(plan.run).encode(), 0o600)
    final = RunPaths(root).final
    if _holds(final, files):
        return final
    before = final.with_name(f"{STAGING_PREFIX}{final.name}.before")
    shutil.rmtree(before, ignore_errors=True)
    if final.exists():
        final.rename(before)
    with staged_directory(final) as staged:
        for name, data in files.items():
            (staged / name).write_bytes(data)
        write_manifest(staged, _manifest(plan, state, layout.rank, staged))
    shutil.rmtree(before, ignore_errors=True)
    return final


def _holds(final: Path, files: Mapping[str, bytes]) -> bool:
    """Whether it is there already, file by file: a gate's verdict on it stands."""
    if not (final / MANIFEST_NAME).is_file():
        return False
    return all((final / name).is_file() and (final / name).read_bytes() == data for name, data in files.items())


def _manifest(plan: Blueprint, state: State, rank: int, staged: Path) -> Manifest:
    """Steps, tokens and rows are those of all deltas that counted."""
    steps = sum(record.steps for record in state.records)
    nodes = {node for record in state.records for node in record.counted}
    return Manifest(
        format_version=FORMAT_VERSION,
        step=steps,
        planned_steps=steps,
        tokens_seen=sum(record.tokens for record in state.records),
        rows_seen=sum(record.rows for record in state.records),
        epoch=0.0,
        attempt=1,
        lineage=1,
        created=time.time(),
        finite=True,
        files=digest_tree(staged),
        identity={
            **plan.identity,
            "rank": str(rank),
            "federation": f"{state.federation}, {len(nodes)} nodes, {state.done} rounds, {state.mode}",
        },
        versions=plan.versions,
    )


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
