"""``mens-sup eval``: the command line. Light: what is heavy is imported, or started as a process, when it runs."""

from __future__ import annotations

import argparse
import importlib
from importlib.util import find_spec

from supervisor.subcommands import Subcommand

ACTIONS = (
    "evalsuite.run_command",
    "evalsuite.score_command",
    "evalsuite.compare_command",
    "evalsuite.gate_command",
    "evalsuite.after_command",
    "evalsuite.power_command",
    "evalsuite.trace_diff_command",
)
"""Modules with actions, light ones: ``add_actions(actions)``, in the order of ``--help``."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    for name in ACTIONS:
        if find_spec(name) is not None:
            importlib.import_module(name).add_actions(actions)


EXAMPLES = {
    "run": """
mens-sup eval run configs/benches/quick.yaml --out evals/base
mens-sup eval run configs/benches/quick.yaml --adapter runs/NAME/best --out evals/tuned
""",
}
EVAL = Subcommand(
    "evaluate a model: run benches, compare, judge by a gate, find where two paths part", _add_arguments, EXAMPLES
)
