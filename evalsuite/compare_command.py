"""``mens-sup eval compare``: two evaluations side by side. Light; imports when it runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evalsuite.compare import Comparison

EXAMPLE = """example:
  mens-sup eval compare evals/base evals/candidate
  mens-sup eval compare evals/base evals/candidate --metric accepted --metric pass@4 --json"""


def add_actions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser(
        "compare",
        help="two evaluations of one bench: paired differences with their confidence intervals",
        description=(
            "Compare two evaluations of one bench, task by task: the second less the first, with confidence intervals "
            "by bootstrap over tasks (clusters stay together), and p-values corrected for the number of metrics. It "
            "describes and decides nothing; that is what `mens-sup eval gate` is for. Exit code 2 when the two cannot "
            "be compared, with the reason."
        ),
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("first", metavar="DIR_A", type=Path, help="folder of an evaluation")
    parser.add_argument("second", metavar="DIR_B", type=Path, help="folder of another one")
    parser.add_argument(
        "--metric", dest="metrics", metavar="M", action="append", default=[],
        help="a metric of the bench, or pass@K; may be repeated (all of the bench's)",
    )  # fmt: skip
    parser.add_argument("--confidence", metavar="C", type=share, default=0.95, help="of the intervals (0.95)")
    parser.add_argument("--json", dest="as_json", action="store_true", help="JSON on standard output")
    parser.set_defaults(command=compare_command)


def compare_command(options: argparse.Namespace) -> int:
    import msgspec

    from evalsuite.compare import compare, why_not
    from evalsuite.scores import read_scores
    from supervisor.problems import InputError

    first, second = read_scores(options.first), read_scores(options.second)
    if reasons := why_not(first, second):
        raise InputError(f"{options.first} and {options.second} cannot be compared: {'; '.join(reasons)}.")
    found = compare(first, second, options.metrics, options.confidence)
    if options.as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    else:
        sys.stdout.write(comparison_text(found) + "\n")
    return 0


def comparison_text(found: Comparison) -> str:
    """For people, a few lines."""
    lines = [f"{found.bench}: {found.tasks} tasks, {found.samples_per_task} samples each"]
    for each in found.metrics:
        units = "" if each.units == found.tasks else f", {each.units} clusters"
        lines += [
            f"{each.metric}: {each.first:.4f} -> {each.second:.4f}, difference {each.difference:+.4f} "
            f"({each.low:+.4f} to {each.high:+.4f} with {found.confidence:.0%}, {each.method}{units})",
            f"  {each.better} tasks better, {each.worse} worse, {each.same} the same; p {each.p_value:.2g}, for all "
            f"metrics together {each.p_corrected:.2g}; a difference below {each.detectable:.4f} is easily missed",
        ]
    return "\n".join(lines)


def share(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 < found < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0 and 1")
    return found
