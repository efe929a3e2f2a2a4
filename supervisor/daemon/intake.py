"""Looking through a configuration before it is queued, in a process of its own.

So the daemon stays small and a kind of job that fails to import, or hangs, does it no harm. What it looks through is
kept, paths absolute: what runs later is what was submitted, whatever happens to the file meanwhile.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from supervisor.daemon.service import NotPossibleError
from supervisor.problems import InputError

TIMEOUT_SECONDS = 60.0
_BAD_INPUT = 2


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration that can be queued. ``arguments``: of `mens-sup run`, but for --set, which is in ``document``."""

    name: str
    kind: str
    device: str
    processes: int
    arguments: tuple[str, ...]
    document: str


def accept(config: Path, arguments: Sequence[str], *, preflight: bool) -> Accepted:
    """Read and check a configuration. ``preflight``: what it names has to be there already.

    Raises NotPossibleError with all that is wrong with it.
    """
    flag = [] if preflight else ["--no-preflight"]
    command = [sys.executable, "-P", "-m", "supervisor.daemon.intake", *flag, str(config), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NotPossibleError(f"{config} could not be looked through within {TIMEOUT_SECONDS:.0f} s.") from None
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode == _BAD_INPUT:
        raise NotPossibleError(said)
    if done.returncode:
        last = said.splitlines()[-1] if said else f"exit status {done.returncode}"
        raise NotPossibleError(f"{config} could not be looked through: {last}")
    return msgspec.json.decode(done.stdout, type=Accepted)


def main(arguments: Sequence[str] | None = None) -> int:
    from supervisor.config import load_config
    from supervisor.jobs import wanted_device
    from supervisor.yaml_source import render_yaml

    options = _parser().parse_args(arguments)
    try:
        loaded = load_config(options.config, options.sets, preflight=options.preflight)
    except (InputError, OSError) as error:
        sys.stderr.write(f"{_sentence(options.config, error)}\n")
        return _BAD_INPUT
    accepted = Accepted(
        name=loaded.own.name,
        kind=loaded.kind.name,
        device=wanted_device(loaded.kind, loaded.sections),
        processes=loaded.own.launch.processes,
        arguments=_run_arguments(options),
        document=render_yaml(loaded.document),
    )
    sys.stdout.buffer.write(msgspec.json.encode(accepted))
    return 0


def _sentence(config: Path, error: InputError | OSError) -> str:
    if isinstance(error, InputError) and os.access(config, os.R_OK):
        return str(error)
    if not os.access(config, os.R_OK):
        user = _user()
        return (
            f"{config} cannot be read by the daemon, which runs as {user}. Put it where {user} may read, such as "
            "/srv, or give it the right to: files in a home are often their owner's alone."
        )
    return str(error)


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"user {os.geteuid()}"


def _run_arguments(options: argparse.Namespace) -> tuple[str, ...]:
    found = []
    if options.max_attempts is not None:
        found.append(f"--max-attempts={options.max_attempts}")
    if options.authorize_hours is not None:
        found.append(f"--authorize-hours={options.authorize_hours}")
    found += [f"--accept-change={key}" for key in options.accept_change]
    if options.force_overfit:
        found.append("--force-overfit")
    return tuple(found)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        sys.stderr.write(
            f"{message}. A job of the queue takes these arguments of `mens-sup run`: --set KEY=VALUE, --max-attempts, "
            "--authorize-hours, --accept-change and --force-overfit.\n"
        )
        raise SystemExit(_BAD_INPUT)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("config", type=Path)
    parser.add_argument("--no-preflight", dest="preflight", action="store_false")
    parser.add_argument("--set", dest="sets", action="append", default=[])
    parser.add_argument("--max-attempts", type=int)
    parser.add_argument("--authorize-hours", type=float)
    parser.add_argument("--accept-change", action="append", default=[])
    parser.add_argument("--force-overfit", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
