"""``mens-sup data``: the command line of everything about rows. Light: what is heavy is imported when it runs."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import NoReturn

from supervisor.subcommands import Subcommand


def build_command(options: argparse.Namespace) -> int:
    """Build a corpus; 0 when it is ready, 2 (by InputError) when something is wrong with what went in."""
    from trainer.data.build.build import build
    from trainer.data.build.mix import load_mix

    # So that what the build has started ends with it and what it has written goes with it.
    signal.signal(signal.SIGTERM, _end)
    built = build(load_mix(options.mix), options.out, _say)
    if options.as_json:
        import msgspec

        _print(json.dumps(msgspec.to_builtins(built.manifest), indent=2))
    else:
        _print(f"{built.report}\n{options.out}: ready. Name {options.out}/corpus.jsonl as the path under data.sources.")
    return 0


def _end(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    what = "build a corpus from the sources of a mix"
    to_build = actions.add_parser("build", help=what, description=f"{what[0].upper()}{what[1:]}.", allow_abbrev=False)
    to_build.add_argument("mix", metavar="MIX", type=Path, help="YAML file that names sources, weights, thresholds")
    to_build.add_argument("--out", metavar="DIR", type=Path, required=True, help="new folder for the corpus")
    to_build.add_argument("--json", dest="as_json", action="store_true", help="the manifest as JSON on standard output")
    to_build.set_defaults(command=build_command)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


EXAMPLES = {"build": "mens-sup data build configs/mixes/example.yaml --out corpora/example"}
DATA = Subcommand("build the rows that are trained on", _add_arguments, EXAMPLES)
