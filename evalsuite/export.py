"""A checkpoint ready to be handed on: verified, judged by its run's gates, with a card of what is recorded of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from ruamel.yaml import YAML

from evalsuite.after_run import RESULT_FILE, Trained, place_of, trained
from evalsuite.gate_config import load_gate
from evalsuite.gate_result import GateResult, GateVerdict, gate_digest, read_gate
from evalsuite.model_card import card
from rft.samplers.weights import adapter_digest
from supervisor.problems import InputError
from supervisor.protocol.atomic import staged_directory
from supervisor.protocol.manifest import digest_tree, read_manifest
from supervisor.protocol.paths import RunPaths

CARD, RECORD = "README.md", "export.json"
FILES = (
    "adapter_model.safetensors", "adapter_config.json", "chat_template.jinja", "template.json", "run_config.json",
    "sources.json",
)  # fmt: skip
"""Of a checkpoint: what is needed to use the adapter, and to know what it was trained on."""


@dataclass(frozen=True)
class GateState:
    """A gate of the run: its result, or the ``problem`` that there is none."""

    name: str
    result: GateResult | None
    problem: str = ""

    @property
    def passed(self) -> bool:
        return self.result is not None and self.result.verdict is GateVerdict.PASS and not self.problem


def export(run_dir: Path, out: Path, without_gate: str | None) -> Mapping[str, Any]:
    """Write ``out``, a new folder, whole or not at all; what is recorded of it. ``without_gate``: why it may go out
    although a gate did not pass, which is written into the card. Raises InputError."""
    if out.exists():
        raise InputError(f"{out} exists already and is never overwritten. Name a new folder.")
    run = trained(run_dir)
    states = gate_states(run)
    refused = [state for state in states if not state.passed]
    if refused and without_gate is None:
        raise InputError(_refusal(run, refused))
    manifest = read_manifest(run.checkpoint)
    with staged_directory(out) as staged:
        for name in FILES:
            if name in manifest.files:
                shutil.copyfile(run.checkpoint / name, staged / name)
        for state in states:
            if state.result is not None:
                (staged / "gates").mkdir(exist_ok=True)
                result_file = place_of(run.run_dir, state.name) / RESULT_FILE
                shutil.copyfile(result_file, staged / "gates" / f"{state.name}.json")
        reason = without_gate if refused else None
        (staged / CARD).write_text(card(run, manifest, states, reason), encoding="utf-8")
        record = {
            "format": 1,
            "checkpoint": run.checkpoint.name,
            "base": manifest.identity.get("base", run.base),
            "adapter": adapter_digest(run.checkpoint),
            "gates": {state.name: _said(state) for state in states},
            "without_gate": reason,
            "files": msgspec.to_builtins(digest_tree(staged)),
        }
        (staged / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    return record


def gate_states(run: Trained) -> list[GateState]:
    """Of the gates that the run's configuration names, in its order, and of those judged by hand besides."""
    document = YAML(typ="safe", pure=True).load(RunPaths(run.run_dir).run_yaml)
    found: dict[str, GateState] = {}
    for file in document.get("gates") or ():
        try:
            name = load_gate(Path(file)).name
        except InputError as error:
            name = Path(file).stem
            found[name] = GateState(name, None, f"its file cannot be read: {error}")
            continue
        found[name] = _state(run, name)
    for path in sorted(place_of(run.run_dir, "").glob(f"*/{RESULT_FILE}")):
        found.setdefault(path.parent.name, _state(run, path.parent.name))
    return list(found.values())


def _state(run: Trained, name: str) -> GateState:
    path = place_of(run.run_dir, name) / RESULT_FILE
    try:
        result = read_gate(path)
    except InputError as error:
        return GateState(name, None, str(error))
    if result.verdict is GateVerdict.UNJUDGED:
        return GateState(name, result)
    digest = adapter_digest(run.checkpoint)
    judged = {each.model.adapter for each in result.inputs if each.role == "candidate" and each.model is not None}
    if judged != {digest}:
        return GateState(name, result, f"it judged another checkpoint than {run.checkpoint.name}")
    return GateState(name, result)


def _said(state: GateState) -> dict[str, Any]:
    result = state.result
    return {
        "verdict": None if result is None else result.verdict.value,
        "sha256": None if result is None else gate_digest(result),
        "problem": state.problem,
    }


def _refusal(run: Trained, refused: Sequence[GateState]) -> str:
    lines = []
    for state in refused:
        if state.result is None or state.problem:
            lines.append(f"{state.name} has not judged {run.checkpoint.name}: {state.problem}")
        else:
            word = "could not be judged" if state.result.verdict is GateVerdict.UNJUDGED else state.result.verdict.value
            lines.append(f"{state.name}: {word} ({'; '.join(state.result.reasons)})")
    found = " ".join(f"{line.rstrip('.')}." for line in lines)
    return (
        f"{run.run_dir} is not exported, since not every gate of it passed. {found} Train on, judge again with "
        "`mens-sup eval gates`, or take the responsibility with --without-gate REASON, which the model card shows."
    )
