"""``mens-sup eval power``: how small a difference a bench can tell. Light; imports when it runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from evalsuite.compare_command import share

if TYPE_CHECKING:
    from evalsuite.planning import Plan

_DIGITS, _LEAST_EFFECT, _SUREST = 9, 1e-5, 0.999999
EXAMPLE = """example:
  mens-sup eval power evals/base --samples 8                  # by the noise that an evaluation shows
  mens-sup eval power evals/base --samples 8 --effect 0.02    # what a difference of two points needs
  mens-sup eval power BENCH.yaml --samples 8                  # nothing evaluated yet: the worst case"""


def add_actions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser(
        "power",
        help="the smallest difference that a bench can tell, and what a given one needs",
        description=(
            "Say how small a difference a bench can tell with so many samples of each task, and how many tasks or "
            "samples a given one needs. One-sided, paired by task, as a gate tests it."
        ),
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "bench", metavar="BENCH", type=Path, help="folder of an evaluation, or a bench's file if there is none yet"
    )
    parser.add_argument("--samples", metavar="N", type=at_least_one, help="samples per task (those of the evaluation)")
    parser.add_argument("--tasks", metavar="T", type=at_least_one, help="tasks, instead of the bench's own number")
    parser.add_argument("--effect", metavar="E", type=_effect, help="a difference, such as 0.02: say what it needs")
    parser.add_argument("--metric", metavar="M", default="accepted", help="metric of the bench (accepted)")
    parser.add_argument("--against", metavar="DIR", type=Path, help="evaluation of another model, to see differences")
    parser.add_argument("--accuracy", metavar="A", type=share, default=0.5, help="score to expect of BENCH.yaml (0.5)")
    parser.add_argument("--confidence", metavar="C", type=_chance, default=0.95, help="of a verdict (0.95)")
    parser.add_argument("--power", metavar="P", type=_chance, default=0.8, help="chance to find the difference (0.8)")
    parser.add_argument("--json", dest="as_json", action="store_true", help="JSON on standard output")
    parser.set_defaults(command=power_command)


def power_command(options: argparse.Namespace) -> int:
    import msgspec

    from evalsuite.compare import why_not
    from evalsuite.planning import guessed_spread, plan, spread_of
    from evalsuite.scores import read_scores
    from supervisor.problems import InputError

    samples = options.samples
    if options.bench.suffix in (".yaml", ".yml"):
        from evalsuite.gate_inputs import tasks_of_bench

        if options.against is not None:
            raise InputError("--against needs the folder of an evaluation as BENCH, of the same bench.")
        if samples is None:
            raise InputError("Say how many samples of each task there will be: --samples N.")
        tasks = options.tasks or sum(1 for _ in tasks_of_bench(options.bench))
        spread = guessed_spread(options.accuracy)
    else:
        reference = read_scores(options.bench)
        candidate = None if options.against is None else read_scores(options.against)
        if candidate is not None and (reasons := why_not(reference, candidate)):
            raise InputError(f"{options.bench} and {options.against} cannot be compared: {'; '.join(reasons)}.")
        if not reference.tasks:
            raise InputError(f"{options.bench}: no task has a score.")
        samples = samples or reference.sampling.samples_per_task
        tasks = options.tasks or reference.bench.tasks
        spread = spread_of(reference, options.metric, candidate)
    found = plan(spread, tasks, samples, options.confidence, options.power, options.effect)
    if options.as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    else:
        sys.stdout.write(plan_text(found) + "\n")
    return 0


def plan_text(found: Plan) -> str:
    """For people, a few lines."""
    lines = [
        f"{found.tasks} tasks, {found.samples} samples each; confidence {found.confidence:.0%}, power "
        f"{found.power:.0%}; judged by {found.known_from}",
        f"smallest difference that is found: {found.spread_out:.4f} when it is spread over the tasks, "
        f"{found.whole_tasks:.4f} when it turns tasks over wholly, {found.sequential:.4f} in a sequential gate",
    ]
    if found.effect is not None:
        samples = (
            "no number of samples of these tasks would do"
            if found.samples_spread_out is None
            else f"or {found.samples_spread_out} samples of each of these tasks"
        )
        lines.append(
            f"a difference of {found.effect:g} needs {found.tasks_spread_out} tasks when it is spread over them "
            f"({found.tasks_whole} when it turns tasks over wholly; at most {found.tasks_sequential} in a sequential "
            f"gate), {samples}"
        )
    return "\n".join(lines)


def at_least_one(text: str) -> int:
    if not text.isdecimal() or len(text) > _DIGITS or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number from 1 to {10**_DIGITS - 1:,}")
    return int(text)


def _effect(text: str) -> float:
    found = share(text)
    if found < _LEAST_EFFECT:
        raise argparse.ArgumentTypeError(f"{text!r} is less than {_LEAST_EFFECT:g}, and no bench finds that")
    return found


def _chance(text: str) -> float:
    found = share(text)
    if not 0.5 < found <= _SUREST:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0.5 and {_SUREST:g}; give one such as 0.95")
    return found
