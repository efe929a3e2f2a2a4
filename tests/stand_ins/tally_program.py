"""A program that keeps its own state: every line in tally.txt is a step that it never does again."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from ruamel.yaml import YAML

from supervisor.protocol.attempt import EXIT_CODES, SPEC_VARIABLE, ExitKind, ExitReport, read_spec, write_exit_report
from supervisor.protocol.events import EventLog
from supervisor.protocol.heartbeat import HeartbeatWriter, Phase
from supervisor.protocol.lock import FileLock
from supervisor.protocol.paths import RunPaths


def main() -> int:
    spec = read_spec(Path(os.environ[SPEC_VARIABLE]))
    config = YAML(typ="safe").load(Path(spec.effective_config).read_text())
    paths = RunPaths(Path(spec.run_dir))
    attempt = paths.attempt(spec.attempt)
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    with FileLock(paths.trainer_lock), open(paths.root / "tally.txt", "a+b", buffering=0) as tally:
        tally.seek(0)
        done = len(tally.read().splitlines())
        events = EventLog(paths.events, "trainer", spec.attempt)
        beat = HeartbeatWriter(attempt.heartbeat)
        planned = config["lines"]
        while done < (config["stops_at"] or planned) and not asked:
            beat.beat(Phase.TRAINING, done, planned)
            _perhaps_die(config, paths.root, done)
            time.sleep(config["line_seconds"])
            tally.write(f"{spec.attempt}\n".encode())
            done += 1
            events.append("progress", f"{done} lines", step=done)
        beat.beat(Phase.FINISHED, done, planned)
        kind = ExitKind.INTERRUPTED if asked else ExitKind.COMPLETED
        report = ExitReport(kind, f"{done} lines", done, "finished", planned={"steps": planned}, done={"steps": done})
        write_exit_report(attempt.exit_report, report)
        return EXIT_CODES[kind]


def _perhaps_die(config: dict[str, object], root: Path, done: int) -> None:
    deaths = config["dies_after"]
    assert isinstance(deaths, list)
    mark = root / f"died-{done}"
    if done == config["always_dies_at"]:
        os.kill(os.getpid(), signal.SIGSEGV)
    if done in deaths and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
