import os
import signal
import time
from pathlib import Path

import pytest
from real_runs import QUICK, events, log_of, same_adapter, start, state

from supervisor.protocol.heartbeat import Phase, read_heartbeat
from supervisor.protocol.paths import RunPaths

PATIENCE_SECONDS = 240.0


# proves SUP-12, TRN-12: what a standby goes on with becomes the adapter of the undisturbed run, bit for bit
@pytest.mark.slow
def test_a_standby_takes_the_real_training_over(tmp_path: Path, undisturbed: Path) -> None:
    place = tmp_path / "run"
    process = start(place, QUICK)
    try:
        heartbeat = RunPaths(place).attempt(1).heartbeat
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (beat := read_heartbeat(heartbeat)) is None or beat.phase is not Phase.TRAINING or beat.step < 5:
            assert process.poll() is None and time.monotonic() < deadline, log_of(place).read_text()
            time.sleep(0.001)
        os.kill(beat.pid, signal.SIGSTOP)  # twelve steps take less time than the imports of a standby
        while not events(place, "standby_ready"):
            assert process.poll() is None and time.monotonic() < deadline, log_of(place).read_text()
            time.sleep(0.05)
        os.kill(beat.pid, signal.SIGKILL)
        assert process.wait() == 0, log_of(place).read_text()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    (taken,) = events(place, "standby_took_over")
    assert taken.attempt == 2
    assert [failure.kind for failure in state(place).failures] == ["killed"]
    assert events(place, "attempt_started")[1].step in (beat.step - 1, beat.step, beat.step + 1)
    assert events(place, "relaunch")[0].data["wait_seconds"] == 0
    assert same_adapter(place, undisturbed)
