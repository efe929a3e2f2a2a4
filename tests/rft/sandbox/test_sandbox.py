"""Commands in a sandbox of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from plain_user import as_plain_user

from rft.sandbox import bubblewrap
from rft.sandbox.probe import SandboxUnusableError, probe
from rft.sandbox.run import WORK, CannotStartError, Limits, Sandbox, SandboxError
from rft.verifiers.verdict import Isolation

ROOT = Path(__file__).parents[3]
PYTHON = bubblewrap.own_interpreter().program
QUICK = Limits(cpu_seconds=1, wall_seconds=20.0, tmp_bytes=4 << 20, files=50, processes=16, memory_bytes=256 << 20)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox()
    made.open()
    yield made
    made.close()


def shell(sandbox: Sandbox, script: str, limits: Limits = QUICK, **others: object) -> list[str]:
    ran = sandbox.run(["sh", "-c", script], {}, limits, **others)  # type: ignore[arg-type]
    return (ran.stdout + ran.stderr).decode().splitlines()


# proves RFT-3
def test_a_command_gets_its_files_and_no_more(sandbox: Sandbox) -> None:
    ran = sandbox.run(["sh", "-c", "cat a.txt; ./b/run; pwd"],
                      {"a.txt": b"one\n", "b/run": b"#!/bin/sh\necho two\n"}, QUICK)  # fmt: skip
    assert (ran.exit_code, ran.signal, ran.stdout) == (0, None, f"one\ntwo\n{WORK}\n".encode())
    assert not ran.timed_out and ran.killed_for is None


# proves RFT-3
def test_how_a_command_ended_is_told(sandbox: Sandbox) -> None:
    assert sandbox.run(["sh", "-c", "echo no >&2; exit 3"], {}, QUICK).exit_code == 3
    assert sandbox.run(["sh", "-c", "kill -SEGV $$"], {}, QUICK).signal == 11
    with pytest.raises(CannotStartError, match="No such file"):
        sandbox.run(["no-such-program"], {}, QUICK)
    with pytest.raises(SandboxError, match="no path inside"):
        sandbox.run(["true"], {"../x": b""}, QUICK)


# proves RFT-3
def test_each_limit_ends_what_exceeds_it(sandbox: Sandbox) -> None:
    spun = sandbox.run(["sh", "-c", "while :; do :; done"], {}, QUICK)
    assert (spun.killed_for, spun.timed_out) == ("cpu", True)
    slept = sandbox.run(["sh", "-c", "trap '' TERM; sleep 1000"], {}, Limits(wall_seconds=0.5))
    assert (slept.killed_for, slept.timed_out) == ("wall", True)
    said = sandbox.run(["yes"], {}, Limits(output_bytes=1000))
    assert said.killed_for == "output" and len(said.stdout) == 1000
    took = sandbox.run([PYTHON, "-c", "a = bytearray(1 << 30)"], {}, QUICK)
    assert took.killed_for == "memory" or b"MemoryError" in took.stderr
    assert "No space left" in "".join(shell(sandbox, "head -c 10M /dev/zero > a; head -c 10M /dev/zero > b; true"))
    assert "No space left" in "".join(shell(sandbox, "for n in $(seq 100); do : > $n || exit 1; done"))
    forked = shell(sandbox, "for n in $(seq 100); do sleep 100 & done; true")
    assert any("fork" in line.lower() or "resource" in line.lower() for line in forked)


# proves RFT-3
def test_nothing_of_the_host_is_seen(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED", "planted-value")
    look = "env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'; ls -A / ~ /home /root /work"
    seen = "\n".join(shell(sandbox, look))
    assert "planted-value" not in seen and "pytest" not in seen
    assert set(shell(sandbox, "env | cut -d= -f1")) == {"HOME", "LANG", "PATH", "PWD", "TMPDIR"}
    assert shell(sandbox, "cat /proc/net/dev | grep -c :") == ["1"]
    assert "0" not in shell(sandbox, "id -u; id -g; id -G")
    assert shell(sandbox, "ls /proc | grep -c '^[0-9]'") != ["1"]
    assert int(shell(sandbox, "ls -d /proc/[0-9]* | wc -l")[0]) <= 5
    for place in ("/", "/usr", "/etc", "/dev", "/run", "/run/mens/rft"):
        assert "Read-only" in shell(sandbox, f"touch {place}/x")[0] or "denied" in shell(sandbox, f"touch {place}/x")[0]
    assert shell(sandbox, "ls -l /proc/self/fd | wc -l") == ["5"]


# proves RFT-3
def test_root_stays_outside(sandbox: Sandbox) -> None:
    assert shell(sandbox, "grep -E '^(CapEff|CapPrm|CapBnd|Seccomp):' /proc/self/status | cut -f2") == [
        "0" * 16, "0" * 16, "0" * 16, "2"
    ]  # fmt: skip
    for command in ("unshare -U true", "mount -t tmpfs none /tmp", "chroot / true", "setpriv --reuid=0 id"):
        ran = sandbox.run(["sh", "-c", command], {}, QUICK)
        assert ran.exit_code != 0, command


# proves RFT-3
def test_nothing_survives_a_command(sandbox: Sandbox) -> None:
    mark = f"777{os.getpid()}"
    script = f"(setsid sleep {mark} &) ; sleep {mark} & kill -9 1; kill -9 -1; echo on"
    ran = sandbox.run(["sh", "-c", script], {}, QUICK)
    assert b"on" in ran.stdout
    assert not any(mark in command for command in commands())
    sandbox.run(["sh", "-c", "echo left > /tmp/left; echo left > /dev/shm/left"], {}, QUICK)
    assert shell(sandbox, "ls -A /tmp /dev/shm | grep left; true") == []


# proves RFT-3
def test_toolchains_are_there_to_read(sandbox: Sandbox, tmp_path: Path) -> None:
    tool = tmp_path / "kit" / "bin" / "tool"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\necho made\n")
    tool.chmod(0o755)
    ran = sandbox.run(["sh", "-c", f"tool; touch {tmp_path}/kit/x"], {}, QUICK, toolchains=[tmp_path / "kit"],
                      environment={"KIT": "1"})  # fmt: skip
    assert ran.stdout == b"made\n" and b"Read-only" in ran.stderr
    with pytest.raises(CannotStartError):
        sandbox.run(["tool"], {}, QUICK)


# proves RFT-3
@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests already ran as a plain user")
def test_a_plain_user_isolates_as_well() -> None:
    script = (
        "import json, os\n"
        "from rft.sandbox.probe import probe\n"
        "from rft.sandbox.run import Limits, Sandbox\n"
        "made = Sandbox()\n"
        "ran = made.run(['sh', '-c', 'id -u; env; cat /proc/1/environ; touch /x'], {}, Limits())\n"
        "print(json.dumps([os.getuid(), probe().as_root, ran.stdout.decode(), ran.stderr.decode()]))\n"
    )
    ran = subprocess.run(
        as_plain_user([sys.executable, "-c", script]),
        env={"PATH": os.environ["PATH"], "PLANTED": "planted-value", "PYTHONPATH": str(ROOT)},
        cwd="/", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    uid, as_root, said, complained = json.loads(ran.stdout)
    assert uid != 0 and not as_root
    assert said.startswith("1000\n") and "planted-value" not in said
    assert "/proc/1/environ: Permission denied" in complained and "Read-only" in complained


# proves RFT-3
def test_without_isolation_it_is_said_and_bounded() -> None:
    made = Sandbox(Isolation.NONE)
    made.open()
    script = "cat a; env | cut -d= -f1 | sort | tr '\\n' ' '; (setsid sleep 7778 &)"
    ran = made.run(["sh", "-c", script], {"a": b"one\n"}, QUICK)
    assert made.isolation is Isolation.NONE
    assert ran.stdout.decode().splitlines() == ["one", "HOME LANG PATH PWD TMPDIR "]
    assert not any("sleep 7778" in command for command in commands())
    assert made.run(["sleep", "100"], {}, Limits(wall_seconds=0.3)).killed_for == "wall"
    made.close()


# proves RFT-3
def test_without_bubblewrap_it_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    probe.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnusableError, match=r"apt-get install bubblewrap.*isolation: none"):
        Sandbox().open()
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    with pytest.raises(SandboxUnusableError, match=r"No permissions to create new namespace.*isolation: none"):
        Sandbox().open()
    probe.cache_clear()


def commands() -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found
