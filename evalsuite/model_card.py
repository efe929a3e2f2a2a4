"""The model card of an export. Every number on it is read from a recorded artefact: manifest, configuration, gates."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.after_run import Trained
from evalsuite.gate_result import CheckResult, GateVerdict, gate_digest
from supervisor.protocol.manifest import Manifest
from supervisor.redact import hide_secrets

if TYPE_CHECKING:
    from evalsuite.export import GateState

SHOWN = {
    "learning_rate": "learning rate", "max_length": "window, tokens", "per_device_train_batch_size": "micro-batch",
    "gradient_accumulation_steps": "accumulation", "seed": "seed", "optim": "optimiser",
}  # fmt: skip


def card(run: Trained, manifest: Manifest, gates: Sequence[GateState], without_gate: str | None) -> str:
    """``without_gate``: why it went out although a gate did not pass."""
    return str(hide_secrets("\n".join(_lines(run, manifest, gates, without_gate)) + "\n"))


def _lines(run: Trained, manifest: Manifest, gates: Sequence[GateState], without_gate: str | None) -> Iterator[str]:
    base = manifest.identity.get("base", run.base).rpartition("@")
    yield from ("---", f"base_model: {json.dumps(base[0] or run.base)}", "library_name: peft", "---", "")
    yield from (f"# {run.run_dir.name}", "")
    yield f"A LoRA adapter on `{base[0] or run.base}` (revision `{base[2] or 'not recorded'}`), {run.checkpoint.name}."
    if without_gate is not None:
        yield from ("", f"> **Not every gate passed.** It went out all the same: {_plain(without_gate)}")
    yield from ("", "## Gates", "")
    yield from _gates(gates)
    yield from ("", "## Data", "")
    yield from _data(run.checkpoint)
    yield from ("", "## Training", "")
    yield from _training(run, manifest)
    yield from ("", "## Files", "", "| file | bytes | SHA-256 |", "| --- | --- | --- |")
    for name in ("adapter_model.safetensors", "adapter_config.json", "chat_template.jinja", "template.json"):
        record = manifest.files[name]
        yield f"| `{name}` | {record.size} | `{record.sha256}` |"


def _gates(gates: Sequence[GateState]) -> Iterator[str]:
    if not gates:
        yield "None: the run named no gate, so nothing is said of how this adapter compares with its base."
    for state in gates:
        result = state.result
        if result is None or state.problem:
            yield f"**{state.name}**: not judged. {_plain(state.problem)}"
            continue
        word = "COULD NOT BE JUDGED" if result.verdict is GateVerdict.UNJUDGED else result.verdict.value.upper()
        yield f"**{state.name}: {word}** (confidence {result.confidence:g}; result `{gate_digest(result)}`)"
        yield ""
        yield from (f"- {_plain(reason)}" for reason in result.reasons)
        if result.checks:
            yield ""
            yield "| bench | metric | against | this | that | difference | between | tasks x samples | verdict |"
            yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
            yield from map(_check, result.checks)
        yield ""
        yield from (f"- read: {each.role} {each.bench} `{each.sha256}`" for each in result.inputs)
        yield ""


def _check(found: CheckResult) -> str:
    return (
        f"| {_cell(found.bench)} | {_cell(found.metric)} | {found.against} | {found.candidate:.4f} | "
        f"{found.reference:.4f} | {found.difference:+.4f} | {found.lower:+.4f} and {found.upper:+.4f} | "
        f"{found.asked} x {found.samples_per_task} | {found.verdict.value} |"
    )


def _data(checkpoint: Path) -> Iterator[str]:
    found = _json(checkpoint / "sources.json")
    if not isinstance(found, list) or not found:
        yield "Not recorded."
        return
    columns = sorted({name for each in found for name in each})
    yield f"| {' | '.join(columns)} |"
    yield f"| {' | '.join('---' for _ in columns)} |"
    for each in found:
        yield f"| {' | '.join(_cell(each.get(name, '')) for name in columns)} |"


def _training(run: Trained, manifest: Manifest) -> Iterator[str]:
    rows: dict[str, Any] = {
        "optimiser steps": f"{manifest.step} of {manifest.planned_steps}",
        "tokens": manifest.tokens_seen,
        "rows": manifest.rows_seen,
        "evaluation loss, nats per token": "not evaluated" if manifest.eval_loss is None else _loss(manifest),
    }
    options = _json(run.checkpoint / "run_config.json")
    train = options.get("train", {}) if isinstance(options, dict) else {}
    rows |= {words: train[name] for name, words in SHOWN.items() if name in train}
    rows |= {f"identity: {name}": value for name, value in sorted(manifest.identity.items())}
    rows |= {f"version: {name}": value for name, value in sorted(manifest.versions.items())}
    yield from ("| | |", "| --- | --- |")
    yield from (f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items())


def _loss(manifest: Manifest) -> str:
    noise = "" if manifest.eval_loss_stderr is None else f" ± {manifest.eval_loss_stderr:.4f}"
    return f"{manifest.eval_loss:.4f}{noise}"


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def _cell(value: object) -> str:
    return _plain(str(value)).replace("|", "\\|")


def _plain(text: str) -> str:
    """On one line, and nothing of it HTML."""
    return " ".join(text.split()).replace("<", "&lt;")
