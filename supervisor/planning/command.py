"""``mens-sup plan CONFIG``: what a run will need, before it starts."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from supervisor.problems import InputError
from supervisor.subcommands import Subcommand

EXIT_FITS, EXIT_DOES_NOT_FIT, EXIT_UNKNOWN = 0, 1, 2


def plan(options: argparse.Namespace) -> int:
    """Print the plan; the exit code says whether it fits."""
    from supervisor.config import load_config
    from supervisor.planning.forecaster import NoForecastError
    from supervisor.planning.plan import make_plan
    from supervisor.planning.text import plain, render

    config = load_config(options.config, options.sets)
    pace = None
    if options.probe:
        from supervisor.planning.probe import probe

        pace = probe(options.config, options.sets, config, options.runs)
    try:
        found = make_plan(config, options.gpu_gib, options.runs)
    except NoForecastError as error:
        raise InputError(f"{options.config}: there is no plan: {error}.") from None
    if pace is not None and found.data.planned_steps:
        from supervisor.pace import remember_pace

        # The probe itself has left its few steps there; later runs shall expect those of the plan.
        remember_pace(config.kind, config.document, pace, found.data.planned_steps)
    sys.stdout.write((json.dumps(plain(found), indent=2) if options.as_json else render(found)) + "\n")
    if found.fit.fits is None:
        return EXIT_UNKNOWN
    return EXIT_FITS if found.fit.fits else EXIT_DOES_NOT_FIT


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say what a run will need before it starts: memory by parts, longest row, steps, tokens, time and disk, and "
        "which relief would make it fit. Needs no weights and no GPU. Exit code 0: it fits; 1: it does not; 2: that is "
        "not known, or bad input."
    )
    parser.add_argument("config", metavar="CONFIG", type=Path, help="YAML file")
    parser.add_argument(
        "--set",
        dest="sets",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override a key, for example train.max_length=1024; may be repeated",
    )
    parser.add_argument("--json", dest="as_json", action="store_true", help="JSON on standard output")
    parser.add_argument(
        "--gpu-gib", metavar="GIB", type=_gib, help="memory of the card, instead of that of the one in this machine"
    )
    parser.add_argument(
        "--runs", metavar="DIR", type=Path, default=Path("runs"), help="where past runs lie, for the time (runs)"
    )
    parser.add_argument("--probe", action="store_true", help="train a few steps first, to know the time")
    parser.set_defaults(command=plan)


def _gib(text: str) -> float:
    try:
        size = float(text)
    except ValueError:
        size = 0.0
    if not 0 < size < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of GiB above 0")
    return size


PLAN = Subcommand("say what a run will need: memory, steps, time, disk, and whether it fits", _add_arguments)
