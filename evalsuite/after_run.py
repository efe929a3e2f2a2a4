"""The gates of a finished training: its best checkpoint and, where need be, its base are asked the gate's benches, each
as a supervised evaluation, and the gate judges. Everything lies in RUN/eval/GATE; what is done is not done again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from ruamel.yaml import YAML

from evalsuite.baselines import cached_baseline
from evalsuite.gate_command import run_gate
from evalsuite.gate_config import CACHED, BenchSection, GateSections, load_gate
from evalsuite.gate_inputs import digest_of_bench
from evalsuite.gate_result import GateResult, GateVerdict, gate_digest, read_gate, write_gate
from evalsuite.scores import SCORES_NAME, read_scores
from rft.samplers.weights import adapter_digest
from supervisor.forwarding import run_forwarding
from supervisor.problems import InputError
from supervisor.protocol.atomic import write_atomic
from supervisor.protocol.events import EventLog
from supervisor.protocol.manifest import verify_checkpoint
from supervisor.protocol.paths import RunPaths

FOLDER = "eval"
GATE_FILE, RESULT_FILE = "gate.yaml", "gate.json"
EVALUATION_STOPPED = 3
"""Exit code of `mens-sup eval run` that was stopped on request."""

Evaluate = Callable[[Sequence[str]], int]
"""Runs ``mens-sup eval run`` with these arguments; its exit code."""


class StoppedError(Exception):
    """An evaluation was stopped on request; the same command goes on."""


@dataclass(frozen=True)
class Trained:
    """What a training left: ``base`` and ``revision`` of its model, the checkpoint that a gate is about."""

    run_dir: Path
    base: str
    revision: str | None
    checkpoint: Path


def trained(run_dir: Path) -> Trained:
    """Raises InputError when there is no run of a model with a whole checkpoint."""
    paths = RunPaths(run_dir)
    if not paths.run_yaml.is_file():
        raise InputError(f"{run_dir} holds no run (no {paths.run_yaml.name}). Name the folder of a training.")
    document = YAML(typ="safe", pure=True).load(paths.run_yaml)
    model = document.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("base"), str):
        raise InputError(f"{run_dir} is a run of kind {document.get('kind')}: it trains no adapter to be judged.")
    link = next((link for link in (paths.best, paths.final) if link.exists()), None)
    if link is None:
        raise InputError(f"{run_dir} has no checkpoint yet (neither best nor final). Let the run end first.")
    checkpoint = link.resolve()
    if faults := verify_checkpoint(checkpoint):
        raise InputError(f"{checkpoint} is not whole ({faults[0]}), so nothing can be said of it. Train it again.")
    return Trained(run_dir.resolve(), model["base"], model.get("revision"), checkpoint)


def place_of(run_dir: Path, name: str) -> Path:
    """Where the evaluations and the result of a gate of this name lie."""
    return run_dir / FOLDER / name


def judge_run(run: Trained, gate_file: Path, evaluate: Evaluate) -> GateResult:
    """Ask what is missing, judge, leave ``gate.json`` and an event. Raises InputError for a gate that is none,
    StoppedError."""
    given = load_gate(gate_file)
    _require_own_folders(given, gate_file)
    place = place_of(run.run_dir, given.name)
    resolved, result_file = place / GATE_FILE, place / RESULT_FILE
    place.mkdir(parents=True, exist_ok=True)
    text = json.dumps(of_run(given, run).model_dump(mode="json", exclude_none=True), indent=1).encode() + b"\n"
    if resolved.is_file() and resolved.read_bytes() == text and (known := _known(result_file, run)) is not None:
        return known
    result_file.unlink(missing_ok=True)  # an old verdict must not stand for this one, whatever happens
    write_atomic(resolved, text)
    for bench in of_run(given, run).benches:
        _ask(run, bench, resolved, evaluate)
    result = run_gate(resolved)
    write_gate(result_file, result)
    EventLog(RunPaths(run.run_dir).events, "supervisor").append(
        "gate",
        f"{result.name}: {result.verdict.value}; {'; '.join(result.reasons)}",
        gate=result.name,
        verdict=result.verdict.value,
        result=str(result_file.relative_to(run.run_dir)),
        sha256=gate_digest(result),
        checkpoint=run.checkpoint.name,
    )
    return result


def _require_own_folders(gate: GateSections, file: Path) -> None:
    stems = Counter(Path(bench.bench).stem for bench in gate.benches)
    if (shared := stems.most_common(1)[0])[1] > 1:
        raise InputError(
            f"{file}: {shared[1]} benches have files of the name {shared[0]}, and a run keeps their evaluations by "
            "these names. Put all checks of one bench under it, and give different benches different file names."
        )


def of_run(gate: GateSections, run: Trained) -> GateSections:
    """The gate with the run's own evaluations and checkpoint as the candidate, whatever it names for these."""
    place = place_of(run.run_dir, gate.name)
    benches = [
        bench.model_copy(
            update={"candidate": str(_folder(place, bench, "candidate", run)), "adapter": str(run.checkpoint)}
        )
        for bench in gate.benches
    ]
    return gate.model_copy(update={"benches": benches})


def _folder(place: Path, bench: BenchSection, role: str, run: Trained) -> Path:
    """One for each checkpoint: another one's samples are not this one's."""
    stem = Path(bench.bench).stem
    return place / stem / (role if role == "base" else f"{role}-{run.checkpoint.name}")


def _known(path: Path, run: Trained) -> GateResult | None:
    """The result of an earlier call, when it says something, and of this very checkpoint and these benches."""
    try:
        found = read_gate(path)
        if found.verdict is GateVerdict.UNJUDGED or judged_adapters(found) != {adapter_digest(run.checkpoint)}:
            return None
        gate = load_gate(path.with_name(GATE_FILE))
        asked = [digest_of_bench(Path(bench.bench), Path(bench.candidate)) for bench in gate.benches]
    except InputError:
        return None
    return found if asked == [each.sha256 for each in found.inputs if each.role == "bench"] else None


def judged_adapters(result: GateResult) -> set[str | None]:
    """Digests of the adapters that a gate has judged; one, as a rule."""
    return {each.model.adapter for each in result.inputs if each.role == "candidate" and each.model is not None}


def _ask(run: Trained, bench: BenchSection, gate: Path, evaluate: Evaluate) -> None:
    """The candidate, and the base unless its scores are known. What fails is missing, and the gate says so."""
    base = gate.parent / Path(bench.bench).stem / "base"
    model = ["--model", run.base]
    if run.revision is not None:
        model.append(f"--set=sampler.revision={json.dumps(run.revision)}")
    template = ["--template-of", str(run.checkpoint)]
    if bench.sequential is not None and bench.base == CACHED:  # the first look needs it
        _run(evaluate, [bench.bench, *model, *template, "--out", str(base)])
    until = [] if bench.sequential is None else ["--until", str(gate)]
    _run(evaluate, [bench.bench, *model, "--adapter", str(run.checkpoint), "--out", bench.candidate, *until])
    if bench.base == CACHED and (Path(bench.candidate) / SCORES_NAME).is_file():
        try:
            cached_baseline(read_scores(Path(bench.candidate)))
        except InputError:
            _run(evaluate, [bench.bench, *model, *template, "--out", str(base)])


def _run(evaluate: Evaluate, arguments: Sequence[str]) -> None:
    if evaluate(arguments) == EVALUATION_STOPPED:
        raise StoppedError


def spawn(command: Sequence[str]) -> Evaluate:
    """``mens-sup eval run`` by the supervisor's command line ``command``."""
    return lambda arguments: run_forwarding([*command, "eval", "run", *arguments])


def plain(result: GateResult) -> dict[str, object]:
    found: dict[str, object] = {**msgspec.to_builtins(result), "sha256": gate_digest(result)}
    return found
