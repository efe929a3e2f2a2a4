"""``mens-sup rft status``: how a job stands, counted in its store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rft.budget import tally
from rft.pass_at_k import mean_pass_at_k
from rft.spend import Spent, cost
from rft.standing import NO_PASS_AT_K, Standing, open_to_read, standing
from rft.store import Store
from supervisor.problems import InputError
from supervisor.protocol.events import last_event
from supervisor.protocol.paths import RunPaths

OUTCOMES = ("accepted", "rejected", "timeout", "error", "refused", "unjudged")


def read_status(run_dir: Path, k: int | None = None) -> dict[str, Any]:
    """Plain values for people and programs. ``k``: pass@k as well, which an adaptive budget refuses by InputError."""
    with open_to_read(run_dir) as store:
        found = standing(run_dir, store)
        status = _status(run_dir, store, found)
        if k is not None:
            status["pass_at_k"] = {"k": k, "mean": _pass_at_k(store, found, k)}
    return status


def _status(run_dir: Path, store: Store, found: Standing) -> dict[str, Any]:
    scheduler, sections = found.scheduler, found.sections
    totals, distinct = store.totals(), store.distinct()
    hours = sum(store.seconds().values()) / 3600
    spent = Spent(totals.prompt_tokens, totals.completion_tokens, hours)
    progress = last_event(RunPaths(run_dir).events, "progress") if found.running else None
    counts, tasks = store.counts(), store.task_counts()
    return {
        "run_dir": str(run_dir),
        "state": "running" if found.running else "complete" if found.complete else "stopped",
        "stopped_early": found.capped,
        "tasks": scheduler.tasks,
        "tasks_done": scheduler.done_tasks,
        "done_because": {why.value: count for why, count in sorted(scheduler.closed_for.items())},
        "samples": totals.samples,
        "samples_at_most": scheduler.bound,
        "accepted": scheduler.accepted,
        "accepted_distinct": scheduler.distinct,
        "sources": {
            source: {
                "tasks": tasks[source],
                **{outcome: by_outcome.get(outcome, 0) for outcome in OUTCOMES},
                "accepted_distinct": distinct.get(source, (0, 0))[0],
                "tasks_solved": distinct.get(source, (0, 0))[1],
            }
            for source, by_outcome in counts.items()
        },
        "reasons": [dict(zip(("outcome", "reason", "count"), each, strict=True)) for each in store.reasons()],
        "prompt_tokens": totals.prompt_tokens,
        "completion_tokens": totals.completion_tokens,
        "hours": hours,
        "cost": cost(sections.spend, spent),
        "eta_seconds": progress.data.get("eta_seconds") if progress else None,
        "accepted_per_second": progress.data.get("accepted_per_second") if progress else None,
        "tokens_per_second": progress.data.get("tokens_per_second") if progress else None,
        "pass_at_k": {"refused": NO_PASS_AT_K} if sections.budget.adaptive else None,
    }


def _pass_at_k(store: Store, found: Standing, k: int) -> float:
    if found.sections.budget.adaptive:
        raise InputError(NO_PASS_AT_K)
    if not found.complete:
        raise InputError("pass@k is not computed: not every task has all of its samples yet. Let the job end first.")
    try:
        counts = (tally(store.states(number)) for number, _ in store.each_task())
        return mean_pass_at_k(((scored, accepted) for accepted, scored in counts), k)
    except ValueError:
        raise InputError(
            f"pass@{k} is not computed: a task has fewer than {k} judged samples (unscored ones do not count). "
            "Choose a smaller K."
        ) from None


def render_status(status: dict[str, Any]) -> str:
    lines = [
        f"{status['run_dir']}: {status['state']}"
        + (f" ({status['stopped_early']})" if status["stopped_early"] else "")
        + f", {status['tasks_done']} of {status['tasks']} tasks done, "
        f"{status['samples']} of at most {status['samples_at_most']} samples",
        f"accepted: {status['accepted']}, {status['accepted_distinct']} of them different within their task",
    ]
    if status["done_because"]:
        reasons = ", ".join(f"{_WHY[why]} {count}" for why, count in status["done_because"].items())
        lines.append(f"tasks done because: {reasons}")
    width = max(map(len, status["sources"]), default=0)
    for source, counts in status["sources"].items():
        outcomes = ", ".join(f"{counts[outcome]} {_SHOWN[outcome]}" for outcome in OUTCOMES if counts[outcome])
        solved = f"{counts['tasks_solved']} of {counts['tasks']} tasks solved"
        lines.append(f"  {source:<{width}}  {solved}; {outcomes or 'no sample yet'}")
    for each in status["reasons"][:5]:
        lines.append(f"  {each['count']} x {each['outcome']}: {each['reason']}")
    money = "" if status["cost"] is None else f", cost {status['cost']:.2f}"
    lines.append(
        f"spent: {status['prompt_tokens']} prompt and {status['completion_tokens']} sampled tokens, "
        f"{status['hours']:.2f} hours of sampling{money}"
    )
    if status["state"] == "running" and status["eta_seconds"] is not None:
        lines.append(
            f"{status['accepted_per_second']:.2f} accepted/s, {status['tokens_per_second']:.0f} tokens/s, "
            f"about {status['eta_seconds'] / 60:.0f} minutes to go"
        )
    found = status["pass_at_k"]
    if found and "mean" in found:
        lines.append(f"pass@{found['k']}: {found['mean']:.4f} over {status['tasks']} tasks")
    elif found:
        lines.append(found["refused"])
    return "\n".join(lines)


_WHY = {
    "enough": "enough accepted answers",
    "hopeless": "more samples would hardly help",
    "all": "all samples drawn",
    "refused": "the sampler refused them",
}
_SHOWN = {
    "accepted": "accepted",
    "rejected": "rejected",
    "timeout": "timed out",
    "error": "unscored (the judge failed)",
    "refused": "never drawn",
    "unjudged": "not judged yet",
}
