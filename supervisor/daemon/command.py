"""``mens-sup daemon``: the queue's own process. Light until it runs."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.subcommands import Subcommand

if TYPE_CHECKING:
    from supervisor.daemon.control.server import ControlServer
    from supervisor.daemon.service import DaemonService


def daemon(options: argparse.Namespace) -> int:
    """Serve until asked to stop."""
    import faulthandler
    import logging

    from supervisor.daemon.dead_man import DeadMan
    from supervisor.daemon.launcher import find_launcher
    from supervisor.daemon.loop import Daemon, End, become_anew
    from supervisor.daemon.paths import DaemonPaths, default_state_folder
    from supervisor.daemon.systemd import restarting

    faulthandler.enable()  # when the watchdog ends it by SIGABRT, the journal shows where every thread stood
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    os.umask(0o027)  # what the runs hold is for the daemon's user, and for its group to read
    paths = DaemonPaths((options.state_dir or default_state_folder()).absolute())
    runs = (options.runs or paths.runs).absolute()
    launcher = find_launcher(os.environ)

    def control(service: DaemonService) -> ControlServer:
        return _control(service, options)

    dead_man = DeadMan(options.ping_file)
    made = Daemon(paths, runs, launcher, restarting=lambda: restarting(os.environ), dead_man=dead_man)
    if made.run(control) is End.RELOAD:
        become_anew()
    return 0


def _control(service: DaemonService, options: argparse.Namespace) -> ControlServer:
    from importlib.metadata import version

    from supervisor.daemon.control.address import socket_to_serve
    from supervisor.daemon.control.server import ControlServer, ControlSettings
    from supervisor.daemon.control.tcp import parse_address

    settings = ControlSettings(
        socket=options.socket or socket_to_serve(),
        group=options.group,
        http=None if options.http is None else parse_address(options.http),
        token_file=options.token_file,
    )
    return ControlServer(service, settings, version("mens-supervisor"))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Keep a queue of runs and jobs and work through it, one at a time per GPU. Usually systemd starts it: see "
        "`make install-systemd`. SIGTERM or Ctrl-C lets everything save a checkpoint and stops; a second Ctrl-C leaves "
        "the runs running for the next daemon, as SIGHUP does, which becomes that next daemon itself."
    )
    parser.add_argument(
        "--state-dir", metavar="DIR", type=Path, help="where the queue lies (~/.local/state/mens-supervisor)"
    )
    parser.add_argument("--runs", metavar="DIR", type=Path, help="where new runs are made (STATE_DIR/runs)")
    parser.add_argument("--socket", metavar="PATH", type=Path, help="Unix socket that it is asked on")
    parser.add_argument("--group", metavar="NAME", help="group whose members may ask it, besides its own user and root")
    parser.add_argument("--http", metavar="[HOST:]PORT", help="serve pages and metrics by TCP too, for looking only")
    parser.add_argument(
        "--token-file", metavar="FILE", type=Path, help="with --http: who looks has to know the token in it"
    )
    parser.add_argument(
        "--ping-file", metavar="FILE", type=Path,
        help="call the address in it, of a dead man's switch, every five minutes from the main loop",
    )  # fmt: skip
    parser.set_defaults(command=daemon)


DAEMON = Subcommand("run the queue: jobs one after the other on each GPU, through restarts and reboots", _add_arguments)
