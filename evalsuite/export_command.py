"""``mens-sup export``: hand on what a run has trained, if its gates say so. Light; imports when it runs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from supervisor.subcommands import Subcommand


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Write a run's best checkpoint, verified, with a model card of what is recorded of it. Exit code 0: written;\n"
        "2: refused, because a gate of the run did not pass, could not be judged or judged another checkpoint."
    )
    parser.epilog = "example:\n  mens-sup export runs/NAME --out release-1"
    parser.add_argument("run_dir", metavar="RUN", type=Path, help="the run's folder")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="a new folder")
    parser.add_argument(
        "--without-gate",
        metavar="REASON",
        type=_reason,
        help="although not every gate passed; the card shows the reason",
    )
    parser.add_argument(
        "--json", dest="as_json", action="store_true", help="what was written as JSON on standard output"
    )
    parser.set_defaults(command=export_command)


def export_command(options: argparse.Namespace) -> int:
    from evalsuite.export import export

    record = export(options.run_dir, options.out, options.without_gate)
    if options.as_json:
        sys.stdout.write(json.dumps(record, indent=2) + "\n")
        return 0
    gates = ", ".join(f"{name} {found['verdict'] or 'not judged'}" for name, found in record["gates"].items())
    sys.stdout.write(f"{options.out}: {record['checkpoint']} on {record['base']}; gates: {gates or 'none'}\n")
    return 0


def _reason(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("a reason has words; it goes into the model card")
    return text


EXPORT = Subcommand("write a run's best checkpoint with a model card; refused when a gate did not pass", _add_arguments)
