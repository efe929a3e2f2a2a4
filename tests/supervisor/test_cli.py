"""`mens-sup` as it is typed: exit codes, output, and no traceback whatever is asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from scripted_runs import alive, document, events, start_supervisor, state, wait_for

from supervisor.cli import main

STAND_INS = Path(__file__).parents[1] / "stand_ins"


def mens_sup(*arguments: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own; whatever happens, there is no traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "supervisor.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(STAND_INS), **environment},
        check=False,
    )
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    return done


def write_config(folder: Path, *faults: dict[str, object], **sections: dict[str, object]) -> Path:
    path = folder / "job.yaml"
    with open(path, "w") as file:
        YAML(typ="safe").dump(document(*faults, **sections), file)
    return path


# proves law 1 and SUP-19: the command line and `status` are light
def test_import_is_light() -> None:
    heavy = "'torch', 'numpy', 'transformers', 'trainer', 'pydantic', 'ruamel.yaml', 'rich', 'msgspec', 'psutil'"
    program = f"import sys, supervisor.cli; print([name for name in ({heavy}) if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_status_imports_nothing_heavy(tmp_path: Path) -> None:
    heavy = "'torch', 'numpy', 'transformers', 'trainer', 'pydantic', 'ruamel.yaml', 'rich'"
    program = (
        f"import sys, supervisor.cli as cli; code = cli.main(['status', {str(tmp_path)!r}, '--json']); "
        f"print(code, [name for name in ({heavy}) if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "2 []\n"


# proves TRN-9: every problem with file, line, key and suggestion; exit code 2
def test_validate(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    good = mens_sup("validate", path, cwd=tmp_path)
    assert (good.returncode, good.stdout, good.stderr) == (0, f"{path}: good, kind scripted, run name job\n", "")
    path.write_text("kind: scripted\ntrain:\n  max_step: 5\n  learning_rate: big\n")
    bad = mens_sup("validate", "job.yaml", "--set", "limits.max_attempts=none", cwd=tmp_path)
    assert bad.returncode == 2 and bad.stdout == ""
    assert bad.stderr.splitlines() == [
        "--set limits.max_attempts=none: limits.max_attempts must be a whole number, not the text 'none'.",
        "job.yaml:3: train.max_step is not a known key. Did you mean train.max_steps?",
        "job.yaml:4: train.learning_rate must be a number, not the text 'big'.",
    ]


def test_schema(tmp_path: Path) -> None:
    done = mens_sup("schema", "--kind", "scripted", cwd=tmp_path)
    assert done.returncode == 0
    assert "ladder" in json.loads(done.stdout)["$defs"]["ReliefSettings"]["properties"]


# proves SUP-2: bad input is a paragraph and exit code 2
@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "usage:"),
        (["fly"], "invalid choice: 'fly'"),
        (["run"], "Name a configuration"),
        (["run", "no.yaml"], "no.yaml: there is no such file"),
        (["run", "."], "this is a folder"),
        (["run", "job.yaml", "--max-attempts", "0"], "'0' is not a whole number of at least 1"),
        (["run", "--run-dir", "nowhere"], "nowhere holds no run"),
        (["run", "job.yaml", "--run-dir", "job.yaml"], "is a file, not a run directory"),
        (["run", "job.yaml", "--set", "trian.x=1"], "trian is not a known key. Did you mean train?"),
        (["status"], "There are no runs under runs/ here"),
        (["status", "nowhere"], "nowhere: there is no such folder"),
        (["status", "."], "holds no run"),
        (["checkpoints"], "usage:"),
        (["checkpoints", "verify", "nowhere"], "nowhere: there is no such folder"),
        (["checkpoints", "list", "job.yaml"], "job.yaml: there is no such folder"),
        (["validate"], "usage:"),
        (["schema", "--kind", "sfx"], "kind 'sfx' is not installed"),
    ],
)
def test_bad_input(
    tmp_path: Path,
    arguments: list[str],
    part: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_config(tmp_path)
    monkeypatch.chdir(tmp_path)
    try:
        code: object = main(arguments)
    except SystemExit as leaving:  # argparse's own way out
        code = leaving.code
    assert code == 2
    assert part in capsys.readouterr().err
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["job.yaml"]


# proves SUP-1 and SUP-19: a crash is recovered from, and the plain lines tell it
def test_run_to_the_end_in_a_folder_of_its_own(tmp_path: Path) -> None:
    path = write_config(tmp_path, {"at": 5, "do": "kill9", "attempt": 1})
    done = mens_sup("run", path, "--max-attempts", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert run_dir.name.startswith("job-")
    lines = done.stdout.splitlines()
    assert any("attempt 2 starts from the checkpoint of step 3" in line for line in lines)
    assert lines[-1].startswith(f"{Path('runs') / run_dir.name}: completed.")
    status = json.loads(mens_sup("status", "--json", cwd=tmp_path).stdout)
    assert (status["outcome"], status["attempt"], status["max_attempts"], status["step"]) == ("completed", 2, 3, 12)
    again = mens_sup("run", path, "--run-dir", run_dir, cwd=tmp_path)
    assert again.returncode == 0 and "completed" in again.stdout
    assert len(events(run_dir, "attempt_started")) == 2
    verified = mens_sup("checkpoints", "verify", run_dir, cwd=tmp_path)
    assert verified.returncode == 0 and " final" in verified.stdout
    newest = run_dir / "final" / "adapter.bin"
    newest.write_bytes(b"x" + newest.read_bytes()[1:])
    verified = mens_sup("checkpoints", "verify", run_dir, "--json", cwd=tmp_path)
    assert verified.returncode == 1
    assert json.loads(verified.stdout)[-1]["faults"][0]["file"] == "adapter.bin"
    assert mens_sup("checkpoints", "list", run_dir, cwd=tmp_path).returncode == 0


# proves SUP-2: giving up is exit code 1 and a paragraph on standard error
def test_giving_up(tmp_path: Path) -> None:
    path = write_config(tmp_path, {"at": 2, "do": "fail", "kind": "program_error", "message": "a bug in row \x1b[31m7"})
    done = mens_sup("run", path, "--run-dir", "r", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("r: gave up. ")
    assert "a bug in row 7" in done.stderr and "\x1b" not in done.stdout + done.stderr
    assert json.loads(mens_sup("status", "r", "--json", cwd=tmp_path).stdout)["last_failure"]["kind"] == "program_error"


# proves SUP-9: stopped on request is exit code 3; the same folder goes on without naming the configuration
def test_stop_and_go_on(tmp_path: Path) -> None:
    path = write_config(tmp_path, train={"max_steps": 400, "step_seconds": 0.02})
    run_dir = tmp_path / "r"
    process = start_supervisor(path, run_dir)
    wait_for(lambda: run_dir.is_dir() and events(run_dir, "checkpoint"))
    live = json.loads(mens_sup("status", run_dir, "--json", cwd=tmp_path).stdout)
    assert live["outcome"] == "running" and live["supervisor_alive"] is True and live["step"] >= 3
    trainer = state(run_dir).trainer_pid
    assert alive(trainer)
    second = mens_sup("run", path, "--run-dir", run_dir, cwd=tmp_path)
    assert second.returncode == 2 and "is being supervised by process" in second.stderr
    process.terminate()
    assert process.wait(60) == 3
    assert not alive(trainer)
    other = mens_sup("run", path, "--run-dir", run_dir, "--set", "train.learning_rate=1", cwd=tmp_path)
    assert other.returncode == 2 and "--accept-change train.learning_rate" in other.stderr
    done = mens_sup(
        "run", "--run-dir", run_dir, "--set", "train.step_seconds=0", "--accept-change", "train.step_seconds",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert state(run_dir).step == 400


# proves SUP-19: who reads the output does not decide over the run
def test_a_closed_pipe_does_not_stop_the_run(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "supervisor.cli", "run", str(path), "--run-dir", str(tmp_path / "r")],
        stdout=writer, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(STAND_INS)}, check=False,
    )  # fmt: skip
    os.close(writer)
    assert state(tmp_path / "r").outcome == "completed"
    assert done.returncode == 0
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_a_closed_pipe_ends_other_commands_quietly(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "supervisor.cli", "schema", "--kind", "scripted"]
    environment = {**os.environ, "PYTHONPATH": str(STAND_INS)}
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_ascii_output_and_unreadable_files(tmp_path: Path) -> None:
    folder = tmp_path / "größe"
    folder.mkdir()
    done = mens_sup("status", folder, cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 2 and "holds no run" in done.stderr


def test_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("supervisor.config.load_config", interrupted)
    assert main(["validate", "x.yaml"]) == 130


# proves TRN-13 (the supervisor's half): what was accepted before stays accepted, --set comes on top of it
def test_set_without_a_configuration_goes_by_the_effective_one(tmp_path: Path) -> None:
    faults = [{"at": 5, "do": "fail", "kind": "data_error", "attempt": attempt} for attempt in (1, 2)]
    path = write_config(tmp_path, *faults)
    assert mens_sup("run", path, "--run-dir", "r", cwd=tmp_path).returncode == 1
    rate = ("--set", "train.learning_rate=1", "--accept-change", "train.learning_rate")
    assert mens_sup("run", "--run-dir", "r", *rate, cwd=tmp_path).returncode == 1
    done = mens_sup("run", "--run-dir", "r", "--set", "limits.max_attempts=7", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    effective = YAML(typ="safe").load((tmp_path / "r" / "attempts" / "0003" / "effective.yaml").read_text())
    assert (effective["train"]["learning_rate"], effective["limits"]["max_attempts"]) == (1, 7)


# proves SUP-15: what is completed stays completed, also when what it was made from is gone
def test_a_completed_run_needs_nothing_any_more(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    assert mens_sup("run", path, "--run-dir", "r", cwd=tmp_path).returncode == 0
    gone = ("--set", "launch.python=/nowhere/python")
    assert mens_sup("validate", path, *gone, cwd=tmp_path).returncode == 2
    for arguments in ((path, *gone), gone, ()):
        done = mens_sup("run", *arguments, "--run-dir", "r", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "") and "completed" in done.stdout
    other = mens_sup("run", path, "--run-dir", "r", "--set", "train.max_steps=24", cwd=tmp_path)
    assert other.returncode == 2
    assert "completed already" in other.stderr and "new --run-dir" in other.stderr


# proves SUP-2: a folder that this user may not search is a paragraph and exit code 2
def test_a_folder_that_may_not_be_searched(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    program = """
import os, sys, pathlib
import supervisor.view.screen
from scripted_runs import config, run
from supervisor.cli import main
from supervisor.supervise import RunRefused
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
loaded = config()
print(main(["run", "--run-dir", sys.argv[1]]), main(["run", "x.yaml", "--run-dir", sys.argv[1]]))
try: run(loaded, pathlib.Path(sys.argv[1]))
except RunRefused as error: print(error)
"""
    closed.chmod(0o700 if os.geteuid() == 0 else 0o000)
    done = subprocess.run(
        [sys.executable, "-c", program, str(closed / "deeper" / "r")],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(STAND_INS)}, check=False,
    )  # fmt: skip
    closed.chmod(0o700)
    assert "Traceback" not in done.stderr, done.stderr
    codes, _, refusal = done.stdout.partition("\n")
    assert codes == "2 2"
    for text in (*done.stderr.splitlines(), refusal):
        assert "Permission denied" in text and "Choose a --run-dir that you may read and write" in text
