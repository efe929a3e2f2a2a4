"""``mens-sup eval compare``: two evaluations side by side. Light; imports when it runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

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
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="write a page: intervals, tasks that changed, samples side by side"
    )
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
    if options.html is not None:
        from evalsuite.report.write import write_comparison_page

        write_comparison_page(options.html, (options.first, options.second), first, second, found)
    if options.as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    else:
        from evalsuite.report.tables import comparison_table, show

        show(comparison_table(found))
    return 0


def share(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 < found < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0 and 1")
    return found
