"""``mens-sup eval gates``: the gates of a finished training. Light; imports when it runs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

EXAMPLE = """example:
  mens-sup eval gates runs/NAME configs/gates/quickstart.yaml"""
EXIT_STOPPED = 4
_WORST = (2, 1, 3, 0)
"""Exit codes of gates, the worst first: could not be judged, FAIL, INCONCLUSIVE, PASS."""


def add_actions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser(
        "gates",
        help="judge a finished training: evaluate its best checkpoint and its base, then the gates",
        description=(
            "Evaluate a run's best checkpoint and, where its scores are not known yet, its base on the benches of each "
            "gate, and judge; what a run with `gates` in its configuration does by itself at its end. Results go to "
            "RUN/eval/GATE. The same command goes on after a stop. Exit code as of `mens-sup eval gate`, the worst of "
            "all gates; 4 when it was stopped."
        ),
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run_dir", metavar="RUN", type=Path, help="the run's folder")
    parser.add_argument("gates", metavar="GATE", type=Path, nargs="+", help="gate files; see docs/gates.md")
    parser.add_argument("--json", dest="as_json", action="store_true", help="the results as JSON on standard output")
    parser.set_defaults(command=gates_command)


def gates_command(options: argparse.Namespace) -> int:
    from evalsuite.after_run import StoppedError, judge_run, plain, spawn, trained
    from evalsuite.gate_command import show_gate
    from rft.job_file import SUPERVISOR

    run = trained(options.run_dir)
    results = []
    try:
        for gate in options.gates:
            result = judge_run(run, gate, spawn(SUPERVISOR))
            results.append(result)
            if not options.as_json:
                show_gate(result)
                sys.stdout.flush()
    except StoppedError:
        sys.stderr.write("stopped; the same command goes on\n")
        return EXIT_STOPPED
    if options.as_json:
        sys.stdout.write(json.dumps([plain(result) for result in results], indent=2, default=str) + "\n")
    return min((result.verdict.exit_code for result in results), key=_WORST.index)
