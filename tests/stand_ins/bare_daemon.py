"""The daemon without its control server, so that it starts at once: ``python bare_daemon.py STATE_DIR``."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from supervisor.daemon.launcher import SessionLauncher
from supervisor.daemon.loop import Daemon
from supervisor.daemon.paths import DaemonPaths

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    paths = DaemonPaths(Path(sys.argv[1]))
    Daemon(paths, paths.runs, SessionLauncher(), restarting=lambda: False).run()
