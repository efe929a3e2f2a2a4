"""Memory, control groups, mounts and the kernel's log: the real ones of this machine, recorded ones for the others."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from scripted_runs import wait_for

from supervisor.sensors.cgroup import (
    Hierarchy,
    MemoryCgroup,
    find_cgroup,
    group_folder,
    parse_groups,
    parse_hierarchies,
    read_cgroup,
)
from supervisor.sensors.host import process_tree, read_host
from supervisor.sensors.kernel_log import KernelLog, kernel_event
from supervisor.sensors.mounts import read_mounts, touched_folders
from supervisor.sensors.snapshot import CgroupReading, Unknown

MIB = 1 << 20


# proves SUP-5: RAM and swap by psutil, and the memory of the trainer with its children
def test_host_memory() -> None:
    hog = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    trainer = subprocess.Popen([sys.executable, "-c", hog], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    child = int(trainer.stdout.readline())
    try:
        host = read_host(trainer.pid)
        assert host.ram_total == psutil.virtual_memory().total
        assert isinstance(host.ram_available, int) and 0 < host.ram_available <= psutil.virtual_memory().total
        assert host.swap_total == psutil.swap_memory().total
        assert isinstance(host.trainer, tuple)
        assert [process.pid for process in host.trainer] == [trainer.pid, child]
        assert host.trainer[1].name == "sleep"
        assert all(process.rss_bytes > 0 for process in host.trainer)
    finally:
        os.kill(child, signal.SIGKILL)
        trainer.wait()
        trainer.stdout.close()
    assert process_tree(trainer.pid) == Unknown(f"process {trainer.pid} has ended")
    assert read_host(None).trainer == Unknown("no trainer is running")


GROUPS_HYBRID = "9:name=systemd:/x\n4:cpu,memory:/docker/abc\n0::/\n"
GROUPS_V2 = "0::/user.slice/user-1000.slice/run-r12.scope\n"
MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/uni\\040fied rw,relatime shared:9 - cgroup2 cgroup2 rw
garbled line
"""


def test_parsing_groups_and_hierarchies() -> None:
    assert parse_groups(GROUPS_HYBRID) == {1: "/docker/abc", 2: "/"}
    assert parse_groups(GROUPS_V2) == {2: "/user.slice/user-1000.slice/run-r12.scope"}
    assert parse_groups("5:devices:/a:b\n") == {}
    assert parse_hierarchies(MOUNTS) == (
        Hierarchy(1, "/sys/fs/cgroup/memory", "/docker/abc"),
        Hierarchy(2, "/sys/fs/cgroup/uni fied", "/"),
    )


@pytest.mark.parametrize(
    ("path", "root", "folder"),
    [
        ("/a/b", "/", "/top/a/b"),
        ("/docker/abc", "/docker/abc", "/top"),
        ("/docker/abc/inner", "/docker/abc", "/top/inner"),
        ("/", "/docker/abc", "/top"),
        ("/../other", "/", "/top"),
    ],
)
def test_where_a_group_lies(path: str, root: str, folder: str) -> None:
    assert group_folder(path, Hierarchy(2, "/top", root)) == Path(folder)


def tree(top: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


# proves SUP-5: version 2, nested: the tightest limit of all ancestors counts, "max" is no limit
def test_version_2_nested(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "slice/memory.max": f"{512 * MIB}\n",
            "slice/memory.current": f"{400 * MIB}\n",
            "slice/memory.stat": f"anon 5\ninactive_file {100 * MIB}\nactive_file 7\n",
            "slice/run/memory.max": f"{700 * MIB}\n",
            "slice/run/inner/memory.max": "max\n",
            "slice/run/inner/memory.current": "1000\n",
            "slice/run/inner/memory.events": "low 0\nhigh 0\nmax 9\noom 2\noom_kill 3\noom_group_kill 0\n",
        },
    )
    found = read_cgroup(MemoryCgroup(2, tmp_path, tmp_path / "slice" / "run" / "inner"))
    assert found == CgroupReading(
        version=2,
        path=str(tmp_path / "slice" / "run" / "inner"),
        limit_bytes=512 * MIB,
        limited_by=str(tmp_path / "slice"),
        used_bytes=300 * MIB,
        oom_kills=3,
    )


def test_version_1_without_a_limit(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "memory.limit_in_bytes": "9223372036854771712\n",
            "memory.usage_in_bytes": "5000\n",
            "memory.stat": "cache 1\ntotal_inactive_file 2000\n",
            "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
        },
    )
    found = read_cgroup(MemoryCgroup(1, tmp_path, tmp_path))
    assert (found.limit_bytes, found.limited_by, found.used_bytes, found.oom_kills) == (None, None, 3000, 0)


# proves SUP-5: a group that is gone, an old kernel without the counter, nonsense: unknown, not 0 and not "no limit"
def test_what_cannot_be_read_of_a_group_is_unknown(tmp_path: Path) -> None:
    gone = read_cgroup(MemoryCgroup(2, tmp_path, tmp_path / "gone"))
    for value in (gone.limit_bytes, gone.used_bytes, gone.oom_kills):
        assert isinstance(value, Unknown)
        assert "No such file" in value.reason
    tree(tmp_path, {"old/memory.oom_control": "oom_kill_disable 0\n", "old/memory.usage_in_bytes": "many\n"})
    old = read_cgroup(MemoryCgroup(1, tmp_path, tmp_path / "old"))
    assert isinstance(old.oom_kills, Unknown) and "has no oom_kill" in old.oom_kills.reason
    assert isinstance(old.used_bytes, Unknown) and "holds no number" in old.used_bytes.reason
    assert isinstance(find_cgroup(1 << 22), Unknown)


@pytest.fixture
def limited_group() -> Iterator[MemoryCgroup]:
    """A real group, limited to 64 MiB, with one inside it; the processes are to go into the inner one."""
    own = find_cgroup(os.getpid())
    if isinstance(own, Unknown):
        pytest.skip(own.reason)
    outer = own.top / f"mens-test-{os.getpid()}"
    inner = outer / "inner"
    try:
        outer.mkdir()
        if own.version == 2:
            (outer / "cgroup.subtree_control").write_text("+memory")
        (outer / ("memory.max" if own.version == 2 else "memory.limit_in_bytes")).write_text(str(64 * MIB))
        inner.mkdir()
    except OSError as error:
        if outer.exists():
            outer.rmdir()
        pytest.skip(f"no memory control group can be made here: {error.strerror}")
    yield MemoryCgroup(own.version, own.top, inner)
    wait_for(lambda: not (inner / "cgroup.procs").read_text())
    inner.rmdir()
    outer.rmdir()


# proves SUP-5: a real OOM kill in a real group is counted, and read in the kernel's log with its victim
def test_a_real_oom_kill(limited_group: MemoryCgroup) -> None:
    log = KernelLog()
    log.restart()
    before = read_cgroup(limited_group)
    assert (before.limit_bytes, before.oom_kills) == (64 * MIB, 0)
    assert before.limited_by == str(limited_group.folder.parent)
    hog = textwrap.dedent(
        f"""
        import os
        with open({str(limited_group.folder / "cgroup.procs")!r}, "w") as file:
            file.write(str(os.getpid()))
        held = []
        while True:
            held.append(bytearray(os.urandom(1 << 20)))
        """
    )
    victim = subprocess.Popen([sys.executable, "-c", hog])
    where = wait_for(lambda: isinstance(found := find_cgroup(victim.pid), MemoryCgroup) and found)
    assert victim.wait() == -signal.SIGKILL
    assert isinstance(where, MemoryCgroup)
    after = read_cgroup(limited_group)
    assert after.oom_kills == 1
    events = log.read()
    if isinstance(events, Unknown):
        pytest.skip(events.reason)
    assert victim.pid in [event.pid for event in events if event.what == "oom_kill"]
    log.restart()
    again = log.read()
    assert isinstance(again, tuple)
    assert victim.pid not in [event.pid for event in again]
    log.close()


# proves SUP-5: reading the kernel's log never waits, and before the start or after the end it is unknown
def test_the_kernel_log_does_not_block() -> None:
    log = KernelLog()
    assert isinstance(log.read(), Unknown)
    log.restart()
    began = time.monotonic()
    first = log.read()
    assert time.monotonic() - began < 2
    if isinstance(first, Unknown):
        pytest.skip(first.reason)
    log.close()
    assert isinstance(log.read(), Unknown)


def test_an_unreadable_kernel_log_is_unknown(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "kmsg")
    log.restart()
    assert log.read() == Unknown("the kernel log cannot be read: No such file or directory")


LINES = [
    (
        "6,1234,98765432,-;Memory cgroup out of memory: Killed process 4242 (python) total-vm:1kB, anon-rss:2kB",
        ("oom_kill", 98.765432, 4242, None),
    ),
    (
        "[12345.678901] Out of memory: Killed process 77 (python3.11) total-vm:12kB",
        ("oom_kill", 12345.678901, 77, None),
    ),
    ("[    5.1] Out of memory: Kill process 78 (python) score 900 or sacrifice child", ("oom_kill", 5.1, 78, None)),
    (
        "Mar 03 04:05:06 box kernel: NVRM: Xid (PCI:0000:01:00): 31, pid=811, name=python, Ch 00000008",
        ("xid", None, 811, 31),
    ),
    ("[9.0] NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.", ("xid", 9.0, None, 79)),
    ("[9.0] NVRM: Xid (PCI:0000:0b:00): 13, pid='<unknown>', name=<unknown>, ESR", ("xid", 9.0, None, 13)),
    ("[Tue Mar  3 04:05:06 2026] blk_update_request: I/O error, dev sda, sector 1", ("io_error", None, None, None)),
    ("<3>[7.5] EXT4-fs (nvme0n1p2): Remounting filesystem read-only", ("io_error", 7.5, None, None)),
    ("[7.5] nvme nvme0: I/O 12 QID 3 timeout, aborting", ("io_error", 7.5, None, None)),
    ("[3463.15] python[11659]: segfault at 0 ip 00007fd9 sp 00007ffec error 4", ("crash", 3463.15, 11659, None)),
    ("[3.5] traps: python[12] trap invalid opcode ip:7f sp:7f error:0 in x.so", ("crash", 3.5, 12, None)),
    ("[1.0] INFO: task pt_main_thread:5151 blocked for more than 122 seconds.", ("hung_task", 1.0, 5151, None)),
]


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_kernel_lines(line: str, expected: tuple[str, float | None, int | None, int | None]) -> None:
    event = kernel_event(line)
    assert event is not None
    assert (event.what, event.seconds, event.pid, event.code) == expected
    assert event.text and event.text in line and not event.text.startswith("[")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[1.0] python invoked oom-killer: gfp_mask=0xcc0, order=0, oom_score_adj=0",  # the asker, not the victim
        "[1.0] EXT4-fs (sda1): mounted filesystem with ordered data mode",
        "[1.0] usb 1-1: new high-speed USB device number 5",
        "[1.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.14",
        "[1.0] Tasks state (memory values in pages):",
    ],
)
def test_kernel_lines_of_no_matter(line: str) -> None:
    assert kernel_event(line) is None


# proves SUP-5: every mount that the run touches, each once, also where a cache is still to be made
def test_mounts_are_read_once_each(tmp_path: Path) -> None:
    folders = touched_folders(tmp_path, {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path), "HF_HOME": "/hf"})
    assert folders["Hugging Face cache"] == Path("/hf/hub")
    assert folders["model cache"] == tmp_path / "home" / ".cache" / "mens-supervisor"
    mounts = read_mounts({**folders, "nowhere": Path("/proc/1/fdinfo/x/y")})
    by_use = {use: mount for mount in mounts for use in mount.uses}
    assert by_use["run directory"] is by_use["model cache"] is by_use["temporary files"]
    shared = by_use["shared memory"]
    figures = os.statvfs("/dev/shm")
    assert (shared.mount, shared.total_bytes) == ("/dev/shm", figures.f_blocks * figures.f_frsize)
    assert len({mount.mount for mount in mounts}) == len(mounts)


TMPFS = """
import sys
from pathlib import Path
from supervisor.sensors.mounts import read_mounts
from supervisor.sensors.snapshot import Unknown
place = Path(sys.argv[1])
(before,) = read_mounts({"run directory": place / "run", "temporary files": place})
assert before.mount == str(place), before
assert before.uses == ("run directory", "temporary files")
assert before.total_bytes == 8 << 20, before
assert before.free_inodes == 98, before
(place / "file").write_bytes(bytes(8 << 20))
for number in range(97):
    (place / f"empty-{number}").touch()
(after,) = read_mounts({"run directory": place})
assert (after.free_bytes, after.free_inodes) == (0, 0), after
"""


# proves SUP-5: bytes and inodes of a real small tmpfs, in a mount namespace of its own
def test_a_real_tmpfs_that_fills_up(tmp_path: Path) -> None:
    script = tmp_path / "look.py"
    script.write_text(TMPFS)
    place = tmp_path / "disk"
    place.mkdir()
    mount = f"mount -t tmpfs -o size=8m,nr_inodes=99 tmpfs {place}"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, check=False).returncode != 0:
        pytest.skip("a tmpfs cannot be mounted in a private namespace here")
    look = f"{mount} && {sys.executable} {script} {place}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", look], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not list(place.iterdir())


def test_a_file_system_without_inode_numbers_says_so() -> None:
    mounts = read_mounts({"x": Path("/proc")})
    assert isinstance(mounts[0].free_inodes, Unknown)
