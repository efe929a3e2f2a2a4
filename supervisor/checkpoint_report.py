"""What checkpoints a run has: ``mens-sup checkpoints list`` and ``verify``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from supervisor.checkpoints import CheckpointInfo, checkpoint_folders, inspect_checkpoint, linked_checkpoint
from supervisor.problems import InputError
from supervisor.protocol.manifest import MANIFEST_NAME, Fault, read_manifest, verify_checkpoint
from supervisor.protocol.paths import RunPaths, checkpoint_step
from supervisor.sensors.disk import human_bytes, tree_bytes
from supervisor.view.text import clean


@dataclass(frozen=True)
class Entry:
    """One checkpoint. ``verified`` False means that only its manifest was looked at."""

    info: CheckpointInfo
    name: str
    lineage: int
    quarantined: bool
    best: bool
    final: bool
    verified: bool

    @property
    def faults(self) -> tuple[Fault, ...]:
        return self.info.faults

    @property
    def verdict(self) -> str:
        if self.quarantined:
            return "quarantined"
        if self.faults:
            return "bad"
        return "good" if self.verified else "not verified"

    def plain(self) -> dict[str, Any]:
        manifest = self.info.manifest
        return {
            "name": self.name,
            "path": str(self.info.path),
            "lineage": self.lineage,
            "step": self.info.step,
            "verdict": self.verdict,
            "bytes": self.info.size,
            "eval_loss": self.info.eval_loss,
            "tokens_seen": manifest.tokens_seen if manifest else None,
            "created": manifest.created if manifest else None,
            "best": self.best,
            "final": self.final,
            "faults": [{"file": fault.file, "problem": fault.problem} for fault in self.faults],
        }


def list_report(run_dir: Path) -> list[Entry]:
    """All checkpoints by their manifests, files unread. Raises InputError when there is no run."""
    return _entries(run_dir, verified=False)


def verify_report(run_dir: Path) -> list[Entry]:
    """All checkpoints, every file read: seconds per gigabyte. Raises InputError when there is no run."""
    return _entries(run_dir, verified=True)


def render_report(entries: list[Entry]) -> str:
    """A table, each checkpoint's faults below it."""
    if not entries:
        return "no checkpoints"
    lines = [f"{'checkpoint':<34} {'verdict':<13} {'size':>10} {'eval loss':>10}"]
    for entry in entries:
        loss = "" if entry.info.eval_loss is None else f"{entry.info.eval_loss:.4f}"
        marks = "".join(f"  {mark}" for mark in ("best", "final") if getattr(entry, mark))
        lines.append(
            f"{clean(entry.name):<34} {entry.verdict:<13} {human_bytes(entry.info.size):>10} {loss:>10}{marks}".rstrip()
        )
        lines.extend(f"    {clean(str(fault))}" for fault in entry.faults)
    return "\n".join(lines)


def _entries(run_dir: Path, *, verified: bool) -> list[Entry]:
    paths = RunPaths(run_dir)
    if not run_dir.is_dir():
        raise InputError(f"{run_dir}: there is no such folder. Name a run's folder, usually one under runs/.")
    if not paths.run_yaml.is_file() and not paths.checkpoints().is_dir():
        raise InputError(f"{run_dir} holds no run (no run.yaml). Name a run's folder, usually one under runs/.")
    best, final = linked_checkpoint(paths.best), linked_checkpoint(paths.final)
    found = []
    for lineage in _lineages(paths):
        folder = paths.checkpoints(lineage)
        in_use = [(path, False) for path in checkpoint_folders(folder)]
        moved = paths.quarantine(lineage)
        aside = sorted(path for path in moved.iterdir() if path.is_dir()) if moved.is_dir() else []
        for path, quarantined in [*in_use, *((path, True) for path in aside)]:
            found.append(
                Entry(
                    info=_look(path, verified=verified, quarantined=quarantined),
                    name=path.relative_to(run_dir).as_posix(),
                    lineage=lineage,
                    quarantined=quarantined,
                    best=_same(path, best),
                    final=_same(path, final),
                    verified=verified,
                )
            )
    return found


def _lineages(paths: RunPaths) -> list[int]:
    numbers = [entry.name.removeprefix("checkpoints-") for entry in paths.root.glob("checkpoints-*")]
    return sorted({1, *(int(number) for number in numbers if number.isdigit())})


def _look(path: Path, *, verified: bool, quarantined: bool) -> CheckpointInfo:
    if verified and not quarantined:
        return inspect_checkpoint(path)
    # A second checkpoint of the same step is called step-00000020.2 in quarantine.
    step = checkpoint_step(path.name.partition(".")[0])
    manifest, faults = None, []
    try:
        manifest = read_manifest(path)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError) as error:
        faults = [Fault(MANIFEST_NAME, f"unreadable ({error})")]
    if verified:
        faults = verify_checkpoint(path)
    return CheckpointInfo(path, -1 if step is None else step, tree_bytes(path), manifest, tuple(faults))


def _same(path: Path, linked: Path | None) -> bool:
    return linked is not None and path.resolve() == linked.resolve()
