"""Process 1 of a sandbox that runs one command: makes the sandbox's /tmp, starts the command without privileges, reaps,
and reports how it ended. When this process ends, the kernel kills whatever the command has left behind.

Arguments: a descriptor with a line of JSON and the files' contents, and one that the report is written to.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

from rft.sandbox.inside import confine
from rft.sandbox.inside.confine import Bounds, SetupError

_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    confine.perform(confine.with_parent())
    confine.hide_from_others()
    report = os.fdopen(int(sys.argv[2]), "w")
    os.set_inheritable(report.fileno(), False)
    with os.fdopen(int(sys.argv[1]), "rb") as given:
        spec = json.loads(given.readline())
        files = {name: given.read(size) for name, size in spec["files"]}
    bounds = Bounds(**spec["bounds"])
    try:
        ending = _run(spec, files, bounds)
    except SetupError as error:
        ending = {"setup": str(error)}
    json.dump(ending, report)
    report.close()


def _run(spec: dict[str, Any], files: dict[str, bytes], bounds: Bounds) -> dict[str, Any]:
    """Raises SetupError."""
    folder: str = spec["folder"]
    if bounds.bare:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    else:
        confine.bar_capabilities()
        confine.perform([*confine.private_mounts(), *confine.fresh_tmp(bounds, bounds.user, spec["readable"])])
        confine.put_folders([folder, confine.HOME], bounds.user)
        with contextlib.suppress(OSError):  # only a preference, and not allowed everywhere
            Path("/proc/self/oom_score_adj").write_text("500")
    confine.put_files(files, folder, bounds.user)
    read, write = os.pipe()  # closes when the command has taken over, or tells why it could not
    child = os.fork()
    if child == 0:
        os.close(read)
        _become(spec, bounds, write)
    os.close(write)
    with os.fdopen(read) as problems:
        problem = problems.read()
    if problem:
        os.waitpid(child, 0)
        ending: dict[str, Any] = json.loads(problem)
        return ending
    while True:
        pid, status, usage = os.wait4(-1, 0)
        if pid == child:
            break
    if bounds.bare:
        confine.end_descendants()
    return {"code": os.waitstatus_to_exitcode(status), "cpu": usage.ru_utime + usage.ru_stime}


def _become(spec: dict[str, Any], bounds: Bounds, problems: int) -> None:
    """Turn into the command. Never returns."""
    try:
        try:
            if bounds.bare:
                os.setsid()
            os.chdir(spec["folder"])
            confine.perform(confine.surrender(bounds, bounds.user, grace=1))
            confine.default_signals()
            os.closerange(3, problems)
            os.closerange(problems + 1, os.sysconf("SC_OPEN_MAX"))
            if not bounds.bare:
                confine.perform(confine.filtered(bounds))
        except (SetupError, OSError, ValueError) as error:
            os.write(problems, json.dumps({"setup": str(error)}).encode())
            os._exit(1)
        try:
            os.execvpe(spec["argv"][0], spec["argv"], spec["environment"])
        except OSError as error:
            os.write(problems, json.dumps({"start": error.strerror or str(error)}).encode())
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
