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

from evalsuite.after_run import GATE_FILE, RESULT_FILE, Trained, judged_adapters, place_of, trained
from evalsuite.gate_config import GateSections, load_gate
from evalsuite.gate_result import GateResult, GateVerdict, gate_digest, read_gate
from evalsuite.model_card import card
from rft.samplers.weights import adapter_digest
from supervisor.problems import InputError
from supervisor.protocol.atomic import staged_directory
from supervisor.protocol.events import read_events
from supervisor.protocol.manifest import digest_file, digest_tree, read_manifest
from supervisor.protocol.paths import RunPaths
from trainer.residual_file import half_problem

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
    if problem := half_problem(run.checkpoint):
        raise InputError(problem)
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
    """Of the gates that the run's configuration names, in its order, of those judged by hand besides, and of those that
    its events tell of."""
    document = YAML(typ="safe", pure=True).load(RunPaths(run.run_dir).run_yaml)
    found: dict[str, GateState] = {}
    for file in document.get("gates") or ():
        try:
            gate = load_gate(Path(file))
        except InputError as error:
            state = GateState(Path(file).stem, None, f"its file cannot be read: {error}")
        else:
            state = _state(run, gate.name)
            if state.result is not None and not state.problem and not _judged_by(run, gate, state.result):
                problem = f"its result is not one of {file}: another gate, or an older version of it, has judged"
                state = GateState(gate.name, state.result, problem)
        if state.name in found:
            state = GateState(state.name, None, f"two gates of the run have this name, and {file} is one; rename it")
        found[state.name] = state
    for path in sorted(place_of(run.run_dir, "").glob(f"*/{RESULT_FILE}")):
        found.setdefault(path.parent.name, _state(run, path.parent.name))
    for event in read_events(RunPaths(run.run_dir).events):
        name = str(event.data.get("gate", "a gate of no name"))
        if event.kind == "gate" and name not in found:
            found[name] = GateState(name, None, "it has judged this run before, and its result is gone")
    return list(found.values())


def _state(run: Trained, name: str) -> GateState:
    path = place_of(run.run_dir, name) / RESULT_FILE
    try:
        result = read_gate(path)
    except InputError as error:
        return GateState(name, None, str(error))
    if result.verdict is GateVerdict.UNJUDGED:
        return GateState(name, result)
    if judged_adapters(result) != {adapter_digest(run.checkpoint)}:
        return GateState(name, result, f"it judged another checkpoint than {run.checkpoint.name}")
    return GateState(name, result)


def _judged_by(run: Trained, gate: GateSections, result: GateResult) -> bool:
    """Whether ``result`` is one of ``gate``: of its file beside it, which asks the same but for the run's own parts."""
    path = place_of(run.run_dir, gate.name) / GATE_FILE
    own = {"benches": {"__all__": {"candidate", "adapter"}}}
    try:
        judged = load_gate(path)
        digest = digest_file(path).sha256
    except (InputError, OSError):
        return False
    read = {each.sha256 for each in result.inputs if each.role == "gate"}
    return read == {digest} and judged.model_dump(exclude=own) == gate.model_dump(exclude=own)


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
