"""A rank without torch, for tests of the launcher: does what $RANK_SCRIPT says for its rank, a word and its argument.

``report KIND MESSAGE``, ``exit CODE``, ``kill SIGNAL``, ``sleep SECONDS``, ``say TEXT``, ``on-term`` (on SIGTERM report
interrupted and end with its code), ``await RANK`` (until that rank has written its report).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from supervisor.protocol.attempt import EXIT_CODES, SPEC_VARIABLE, ExitKind, ExitReport, read_spec, write_exit_report
from supervisor.protocol.paths import RunPaths
from trainer.launcher import end_with_launcher, own_place

end_with_launcher()
spec = read_spec(Path(os.environ[SPEC_VARIABLE]))
files = RunPaths(Path(spec.run_dir)).attempt(spec.attempt)
place = own_place()
assert place is not None
(files.root / f"pid-{place.rank}").write_text(str(os.getpid()))


def report(kind: str, message: str) -> ExitKind:
    told = ExitKind(kind)
    assert place is not None
    write_exit_report(files.rank_report(place.rank), ExitReport(told, message, step=3, phase="training"))
    return told


def interrupted(*_: object) -> NoReturn:
    os._exit(EXIT_CODES[report("interrupted", "stopped on request at optimiser step 3 of 9")])


for action, *arguments in json.loads(os.environ["RANK_SCRIPT"])[place.rank]:
    if action == "report":
        report(*arguments)
    elif action == "exit":
        sys.exit(int(arguments[0]))
    elif action == "kill":
        os.kill(os.getpid(), getattr(signal, arguments[0]))
    elif action == "sleep":
        time.sleep(float(arguments[0]))
    elif action == "say":
        print(arguments[0], file=sys.stderr, flush=True)
    elif action == "on-term":
        signal.signal(signal.SIGTERM, interrupted)
    elif action == "await":
        while not files.rank_report(int(arguments[0])).exists():
            time.sleep(0.01)
