"""Programs that know nothing of us, supervised. proves SUP-20."""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from scripted_runs import QUICK, alive, events, run, start_supervisor, state, wait_for

from supervisor.cli import main
from supervisor.command.kind import COMMAND
from supervisor.config import LoadedConfig, load_document
from supervisor.jobs import OwnCheckpoint
from supervisor.process.leftovers import processes_of
from supervisor.protocol.attempt import read_spec
from supervisor.protocol.lock import FileLock, lock_holder
from supervisor.protocol.paths import RunPaths
from supervisor.state import Outcome
from supervisor.supervise import RunRequest, supervise
from supervisor.supervise.taking_up import Unfinished
from supervisor.yaml_source import render_yaml

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.78 GiB "
    "of which 1.20 GiB is free. Including non-PyTorch memory, this process has 14.50 GiB memory in use."
)


def job(folder: Path, source: str, *arguments: Any, **sections: Any) -> dict[str, Any]:
    """A configuration that runs a Python script of this text, in ``folder``."""
    (folder / "train.py").write_text(source)
    limits = {**QUICK, **sections.pop("limits", {})}
    command = [sys.executable, "train.py", *arguments]
    return {"kind": "command", "command": command, "working_dir": str(folder), "limits": limits, **sections}


def loaded(folder: Path, source: str, *arguments: Any, **sections: Any) -> LoadedConfig:
    return load_document(job(folder, source, *arguments, **sections), COMMAND)


def test_out_of_memory_is_relieved_by_a_smaller_batch(tmp_path: Path) -> None:
    source = f"""
import sys
micro, accumulation = map(int, sys.argv[1:])
print("step 1 loss: 2.0")
if micro > 1:
    sys.exit("Traceback (most recent call last):\\n  File 'train.py', line 9, in <module>\\n{OOM}")
print(micro, accumulation, file=open("done", "w"))
"""
    values = {"micro_batch": 4, "gradient_accumulation": 2}
    config = loaded(tmp_path, source, "{micro_batch}", "{gradient_accumulation}", values=values)
    assert run(config, tmp_path / "r") is Outcome.COMPLETED
    found = state(tmp_path / "r")
    assert [failure.kind for failure in found.failures] == ["cuda_oom", "cuda_oom"]
    assert [entry.rung for entry in found.relief] == ["halve_micro_batch", "halve_micro_batch"]
    assert (tmp_path / "done").read_text() == "1 8\n"
    assert "its planned steps are not known here" in found.explanation  # SUP-15: said, not claimed


# a launcher that hides how its child ended, as axolotl's and accelerate's do
def test_a_launcher_that_hides_the_kill(tmp_path: Path) -> None:
    source = """
import os, signal, subprocess, sys
if len(sys.argv) > 1:
    print("step 7 loss: 1.0", flush=True)
    if not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(0)
command = [sys.executable, __file__, "child"]
ended = subprocess.run(command).returncode
if ended:
    raise subprocess.CalledProcessError(ended, command)
"""
    assert run(loaded(tmp_path, source), tmp_path / "r") is Outcome.COMPLETED
    (failure,) = state(tmp_path / "r").failures
    assert failure.kind == "killed"


# both streams stand in one log in the order in which they were written, and evidence comes from it
def test_an_error_on_standard_output(tmp_path: Path) -> None:
    source = "print('OSError: [Errno 28] No space left on device', flush=True); import sys; sys.exit(1)"
    assert run(loaded(tmp_path, source), tmp_path / "r", max_attempts=1) is Outcome.GAVE_UP
    assert [failure.kind for failure in state(tmp_path / "r").failures] == ["disk_full"]


# exit codes of its own mean nothing of ours (71 would be cuda_oom)
def test_exit_codes_are_the_programs_own(tmp_path: Path) -> None:
    assert run(loaded(tmp_path, "import sys; sys.exit(71)"), tmp_path / "r", max_attempts=1) is Outcome.GAVE_UP
    assert [failure.kind for failure in state(tmp_path / "r").failures] == ["unknown"]


# proves SUP-15: the log of a program that ends with 0 shows that it did not get to its end
def test_exit_code_0_too_early(tmp_path: Path) -> None:
    source = "print(' 40%|####      | 40/100 [00:10<00:15,  4.00it/s]')"
    assert run(loaded(tmp_path, source), tmp_path / "r", max_attempts=1) is Outcome.GAVE_UP
    (failure,) = state(tmp_path / "r").failures
    assert (failure.kind, failure.step) == ("completed_early", 40)


CHECKPOINTS = """
import json, os, struct, sys
resume = sys.argv[2] if len(sys.argv) > 2 else ""
step = int(resume.rpartition("-")[2] or 0)
print("resumed from", step, flush=True)
open("starts", "a").write(f"{step}\\n")
def save(step, size=16):
    folder = f"out/checkpoint-{step}"
    os.makedirs(folder)
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    with open(f"{folder}/model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + b"x" * size)
    json.dump({"global_step": step}, open(f"{folder}/trainer_state.json", "w"))
"""


def test_the_newest_whole_checkpoint_is_resumed_from(tmp_path: Path) -> None:
    source = f"""{CHECKPOINTS}
import signal
if step == 0:
    save(5); save(10); save(15, size=7)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    config = loaded(tmp_path, source, ["--resume", "{resume_from}"], checkpoints={"dir": "out"})
    assert run(config, tmp_path / "r") is Outcome.COMPLETED
    assert (tmp_path / "starts").read_text() == "0\n10\n"
    assert (tmp_path / "out" / "quarantine" / "checkpoint-15").is_dir()
    (event,) = events(tmp_path / "r", "checkpoint_quarantined")
    assert "model.safetensors" in event.message
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["checkpoint-10", "checkpoint-5", "quarantine"]
    assert state(tmp_path / "r").last_checkpoint == str(tmp_path / "out" / "checkpoint-10")
    assert events(tmp_path / "r", "attempt_started")[-1].step == 10
    paths = RunPaths(tmp_path / "r").attempt(2)
    assert Unfinished(paths, read_spec(paths.spec), None, None).resumed_step == 10  # also after a takeover


def test_killed_in_the_very_first_save_starts_again(tmp_path: Path) -> None:
    source = f"""{CHECKPOINTS}
import signal
if not os.path.exists("out"):
    save(5, size=7)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    config = loaded(tmp_path, source, ["--resume", "{resume_from}"], checkpoints={"dir": "out"})
    assert run(config, tmp_path / "r") is Outcome.COMPLETED
    assert (tmp_path / "starts").read_text() == "0\n0\n"


# proves SUP-14 for any trainer: no silent restart from zero once there was something good
def test_nothing_trustworthy_left(tmp_path: Path) -> None:
    source = f"""{CHECKPOINTS}
import signal
if step == 0:
    save(5)
else:
    os.truncate("out/checkpoint-5/model.safetensors", 9)
os.kill(os.getpid(), signal.SIGKILL)
"""
    config = loaded(tmp_path, source, ["--resume", "{resume_from}"], checkpoints={"dir": "out"})
    assert run(config, tmp_path / "r") is Outcome.GAVE_UP
    assert (tmp_path / "starts").read_text() == "0\n5\n"
    found = state(tmp_path / "r")
    assert "never starts from zero again by itself" in found.explanation
    assert str(tmp_path / "out" / "quarantine") in found.explanation


# wherever they lie: what is half saved, or too many, while the program runs is none of our business
def test_its_checkpoints_are_left_alone_while_it_runs(tmp_path: Path) -> None:
    source = """
import os, time
for step in range(1, 7):
    os.makedirs(f"r/checkpoints/step-{step:08d}")
time.sleep(1.5)
print(len(os.listdir("r/checkpoints")), file=open("left", "w"))
"""
    assert run(loaded(tmp_path, source, checkpoint={"keep": 1}), tmp_path / "r") is Outcome.COMPLETED
    assert (tmp_path / "left").read_text() == "6\n"


# a daemon that has left its group and hides its origin still holds the lock that it inherited
def test_something_unknown_holds_the_lock(tmp_path: Path) -> None:
    source = """
import subprocess, sys
daemon = subprocess.Popen(["sleep", "60"], env={}, close_fds=False, start_new_session=True)
print(daemon.pid, file=open("daemon", "w"))
sys.exit(1)
"""
    try:
        assert run(loaded(tmp_path, source), tmp_path / "r", max_attempts=3) is Outcome.GAVE_UP
        found = state(tmp_path / "r")
        assert found.attempt == 2
        assert "trainer.lock is still held by a process that is no trainer" in found.explanation
    finally:
        os.kill(int((tmp_path / "daemon").read_text()), signal.SIGKILL)


def test_a_program_that_nobody_would_know_of_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(lock: FileLock, pid: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FileLock, "hand_over", full)
    place = tmp_path / "r"
    assert run(loaded(tmp_path, "import time; time.sleep(60)"), place) is Outcome.GAVE_UP
    assert processes_of(RunPaths(place).attempt(1).spec) == []


def test_another_model_has_a_place_of_its_own(tmp_path: Path) -> None:
    source = f"""
import os, sys
print(sys.argv[1], sys.argv[2], file=open("starts", "a"))
if sys.argv[2] == "big":
    sys.exit("Traceback (most recent call last):\\n  File 'train.py', line 9, in <module>\\n{OOM}")
"""
    config = loaded(tmp_path, source, "{output_dir}", "{model}", values={"model": "big"}, fallback={"model": ["small"]})
    assert run(config, tmp_path / "r") is Outcome.COMPLETED
    output = tmp_path / "r" / "output"
    assert (tmp_path / "starts").read_text() == f"{output} big\n{output}-2 small\n"
    assert state(tmp_path / "r").lineage == 2


# proves SUP-9 for any trainer: the launcher dies of the request at once, its child may still save
def test_a_stop_waits_for_the_child_of_a_launcher(tmp_path: Path) -> None:
    source = """
import os, signal, subprocess, sys, time
if len(sys.argv) == 1:
    sys.exit(subprocess.run([sys.executable, __file__, "child"]).returncode)
def save(*_):
    time.sleep(1.0)
    open("saved", "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, save)
open("ready", "w").close()
time.sleep(120)
"""
    file = tmp_path / "job.yaml"
    file.write_text(render_yaml(job(tmp_path, source)))
    process = start_supervisor(file, tmp_path / "r")
    wait_for((tmp_path / "ready").exists)
    process.terminate()
    assert process.wait(60) == 3
    assert (tmp_path / "saved").exists()
    assert state(tmp_path / "r").outcome is Outcome.STOPPED


# proves SUP-9, SUP-10 for any trainer: one that cannot be adopted may save as well, behind its launcher
def test_a_stray_child_of_a_launcher_may_save(tmp_path: Path) -> None:
    source = """
import os, signal, subprocess, sys, time
if os.path.exists("saved"):
    sys.exit(0)
if len(sys.argv) == 1:
    sys.exit(subprocess.run([sys.executable, __file__, "child"]).returncode)
def save(*_):
    time.sleep(1.0)
    open("saved", "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, save)
open("ready", "w").close()
time.sleep(120)
"""
    file = tmp_path / "job.yaml"
    file.write_text(render_yaml(job(tmp_path, source)))
    process = start_supervisor(file, tmp_path / "r")
    wait_for((tmp_path / "ready").exists)
    process.kill()
    process.wait()
    changed = ("--set", "checkpoint.save_steps=7", "--accept-change", "checkpoint.save_steps")
    assert start_supervisor(file, tmp_path / "r", *changed).wait(60) == 0
    assert len(events(tmp_path / "r", "stray_trainer_ended")) == 1
    assert (tmp_path / "saved").exists()


# proves SUP-15: exit code 0 on request is no completion
def test_stopped_with_exit_code_0_is_not_completed(tmp_path: Path) -> None:
    source = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
open("ready", "w").close()
time.sleep(120)
"""
    file = tmp_path / "job.yaml"
    file.write_text(render_yaml(job(tmp_path, source)))
    process = start_supervisor(file, tmp_path / "r")
    wait_for((tmp_path / "ready").exists)
    process.terminate()
    assert process.wait(60) == 3
    assert state(tmp_path / "r").outcome is Outcome.STOPPED


def test_a_program_deaf_to_the_request_is_killed(tmp_path: Path) -> None:
    source = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGABRT, signal.SIG_IGN)
if len(sys.argv) == 1:
    child = subprocess.Popen([sys.executable, __file__, "child"], start_new_session=True)
    open("pid", "w").write(str(child.pid))
    os.rename("pid", "ready")
time.sleep(120)
"""
    file = tmp_path / "job.yaml"
    file.write_text(render_yaml(job(tmp_path, source, limits={"stop_grace_seconds": 0.5})))
    process = start_supervisor(file, tmp_path / "r")
    wait_for((tmp_path / "ready").exists)
    process.terminate()
    assert process.wait(60) == 3
    assert not alive(int((tmp_path / "ready").read_text()))


# proves SUP-10 for any trainer: it holds the lock without knowing, so no second one is started beside it
def test_the_program_holds_the_lock(tmp_path: Path) -> None:
    source = "import os, time\nopen('ready', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.05)"
    file = tmp_path / "job.yaml"
    file.write_text(render_yaml(job(tmp_path, source)))
    process = start_supervisor(file, tmp_path / "r")
    wait_for((tmp_path / "ready").exists)
    wait_for(lambda: state(tmp_path / "r").trainer_pid)
    assert lock_holder(RunPaths(tmp_path / "r").trainer_lock) == state(tmp_path / "r").trainer_pid
    process.send_signal(signal.SIGKILL)
    process.wait()
    again = start_supervisor(file, tmp_path / "r")
    wait_for(lambda: events(tmp_path / "r", "adopted"))
    (tmp_path / "go").touch()
    # Its exit code went to nobody and its log tells nothing: that it completed is not known, so it runs once more.
    assert again.wait(60) == 0
    found = state(tmp_path / "r")
    assert [failure.kind for failure in found.failures] == ["unknown"]
    assert found.attempt == 2
    assert lock_holder(RunPaths(tmp_path / "r").trainer_lock) is None


def test_adopted_and_its_log_says_that_it_finished(tmp_path: Path) -> None:
    source = """import os, time
open('ready', 'w').close()
while not os.path.exists('go'): time.sleep(0.05)
print("{'train_runtime': 12.3, 'train_loss': 1.5, 'epoch': 1.0}")
"""
    file = tmp_path / "job.yaml"
    file.write_text(render_yaml(job(tmp_path, source)))
    process = start_supervisor(file, tmp_path / "r")
    wait_for((tmp_path / "ready").exists)
    process.send_signal(signal.SIGKILL)
    process.wait()
    again = start_supervisor(file, tmp_path / "r")
    wait_for(lambda: events(tmp_path / "r", "adopted"))
    (tmp_path / "go").touch()
    assert again.wait(60) == 0
    assert state(tmp_path / "r").attempt == 1


# proves SUP-10 for any trainer: its checkpoints come and go while it lives, which is no reason to leave it
def test_adopted_without_a_look_at_its_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """import os, time
open('ready', 'w').close()
while not os.path.exists('go'): time.sleep(0.05)
print("{'train_runtime': 12.3, 'train_loss': 1.5, 'epoch': 1.0}")
"""
    file = tmp_path / "job.yaml"
    file.write_text(render_yaml(job(tmp_path, source, checkpoints={"dir": "out"})))
    process = start_supervisor(file, tmp_path / "r")
    wait_for((tmp_path / "ready").exists)
    process.kill()
    process.wait()

    def rotated(*_: Any) -> list[OwnCheckpoint]:
        if lock_holder(RunPaths(tmp_path / "r").trainer_lock) is not None:
            raise FileNotFoundError(2, "No such file or directory", "out/checkpoint-5")
        return []

    monkeypatch.setattr("supervisor.command.kind.find_checkpoints", rotated)
    try:
        assert supervise(RunRequest(None, tmp_path / "r"), (tmp_path / "go").touch) is Outcome.COMPLETED
    finally:
        (tmp_path / "go").touch()
    assert state(tmp_path / "r").attempt == 1


# proves the exit codes of the command line for any trainer
def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ["--no-live", *[option for key, value in QUICK.items() for option in ("--set", f"limits.{key}={value}")]]
    assert main(["run", *quick, "--", "sh", "-c", "echo hello"]) == 0
    (made,) = (tmp_path / "runs").iterdir()
    assert made.name.startswith("sh-")
    assert (made / "attempts" / "0001" / "stderr.log").read_text() == "hello\n"
    assert "not known here" in capsys.readouterr().out
    assert main(["run", *quick, "--run-dir", "bad", "--max-attempts", "2", "--", "sh", "-c", "exit 9"]) == 1
    assert state(tmp_path / "bad").max_attempts == 2
    capsys.readouterr()
    assert main(["run", *quick, "--run-dir", "none", "--", "no-such-program", "x"]) == 2
    assert "command line: command.0: no-such-program is no program that can be run" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    assert main(["run", *quick, "--"]) == 2
    assert main(["run", *quick, "job.yaml", "--", "true"]) == 2
    # The same directory with another command is another run.
    assert main(["run", *quick, "--run-dir", "bad", "--", "sh", "-c", "exit 0"]) == 2
    assert "--accept-change command" in capsys.readouterr().err
    assert main(["run", *quick, "--run-dir", "bad", "--accept-change", "command", "--", "sh", "-c", "exit 0"]) == 0
