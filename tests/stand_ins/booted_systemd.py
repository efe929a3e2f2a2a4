"""A real systemd as process 1 of its own namespaces, on a machine whose own process 1 may be anything.

It needs root, debootstrap and a Debian mirror; the root that debootstrap makes is kept for the next time. The machine's
interpreter and this project are bound into it at their own paths; what else it writes lies over the root, in ``place``.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from scripted_runs import wait_for

PROJECT = Path(__file__).parents[2]
ROOT = Path(os.environ.get("MENS_SUP_TEST_ROOT", "/var/tmp/mens-supervisor-test-root"))
"""The Debian root; made when it is missing."""
PACKAGES = "systemd,systemd-sysv,dbus,make,procps,bubblewrap"
MIRROR = "http://deb.debian.org/debian"
_NEEDS = ("debootstrap", "unshare", "nsenter", "setsid")
_HIERARCHIES = ("systemd", "memory", "pids")
_CGROUPS = Path("/sys/fs/cgroup")

_BOOT = r"""
set -e
mount --make-rprivate /
mkdir -p "$PLACE/over" "$PLACE/work" "$PLACE/root"
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$PLACE/over,workdir=$PLACE/work" "$PLACE/root"
R="$PLACE/root"
mount -t proc proc "$R/proc"
mount -t sysfs -o ro sys "$R/sys"
mount -t tmpfs tmpfs "$R/run"
mount -t tmpfs tmpfs "$R/tmp"
mount -t tmpfs -o mode=755 dev "$R/dev"
for d in null zero full random urandom tty; do touch "$R/dev/$d"; mount --bind "/dev/$d" "$R/dev/$d"; done
mkdir -p "$R/dev/shm" "$R/dev/pts"
mount -t tmpfs tmpfs "$R/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$R/dev/pts"
ln -sf pts/ptmx "$R/dev/ptmx"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  mount -t cgroup2 cg "$R/sys/fs/cgroup"
else
  mount -t tmpfs cg "$R/sys/fs/cgroup"
  mkdir "$R/sys/fs/cgroup/systemd" "$R/sys/fs/cgroup/memory" "$R/sys/fs/cgroup/pids"
  mount -t cgroup -o none,name=systemd systemd "$R/sys/fs/cgroup/systemd"
  mount -t cgroup -o memory memory "$R/sys/fs/cgroup/memory"
  mount -t cgroup -o pids pids "$R/sys/fs/cgroup/pids"
fi
for bind in "$@"; do
  mkdir -p "$R$bind"
  above=$(dirname "$bind")
  while [ "$above" != / ]; do chmod o+x "$R$above"; above=$(dirname "$above"); done
done
for bind in "$@"; do mount --rbind "$bind" "$R$bind"; done
exec env -i container=mens PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  chroot "$R" /lib/systemd/systemd --log-target=journal
"""


def missing() -> str:
    """Why there can be no such namespace here; empty when there can."""
    if os.geteuid() != 0:
        return "this needs root"
    if absent := [name for name in _NEEDS if shutil.which(name) is None and not (name == _NEEDS[0] and ROOT.is_dir())]:
        return f"not installed: {', '.join(absent)}"
    tried = subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "namespaces are not allowed here"


def debian_root() -> Path:
    """Made by debootstrap on first use; takes one or two minutes."""
    if not (ROOT / "lib/systemd/systemd").exists():
        mirrors = [
            line
            for file in (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*"))
            if file.is_file()
            for line in re.findall(r"https?://\S*/debian/?(?=\s|$)", file.read_text())
        ]
        staged = ROOT.with_name(f"{ROOT.name}.new")
        shutil.rmtree(staged, ignore_errors=True)
        command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(staged)]
        subprocess.run([*command, (mirrors or [MIRROR])[0]], check=True, capture_output=True)
        staged.rename(ROOT)
    return ROOT


class BootedSystemd:
    """``place``: what is written lies there, so that :meth:`boot` after :meth:`power_off` finds it again."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._outer: subprocess.Popen[bytes] | None = None
        self._leader = 0
        self._groups: list[Path] = []

    @property
    def log(self) -> Path:
        return self.place / "console.log"

    def boot(self) -> None:
        """Returns when systemd is up."""
        self._groups = self._make_groups()
        binds = [str(PROJECT), sys.base_prefix, *_further_prefixes()]
        enter = 'for file in $GROUPS_TO_ENTER; do echo $$ > "$file"; done; exec "$@"'
        unshare = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child"]
        with open(self.log, "ab") as log:
            self._outer = subprocess.Popen(
                ["sh", "-c", enter, "enter", *unshare, "bash", "-c", _BOOT, "boot", *dict.fromkeys(binds)],
                env={
                    **os.environ,
                    "PLACE": str(self.place),
                    "LOWER": str(debian_root()),
                    "GROUPS_TO_ENTER": " ".join(str(group / "cgroup.procs") for group in self._groups),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._leader = wait_for(self._systemd, 300)
        wait_for(lambda: self.run("systemctl", "is-system-running").stdout.strip() in ("running", "degraded"), 600)

    def run(self, *command: str, check: bool = False) -> subprocess.CompletedProcess[str]:
        """A command inside, as root."""
        done = subprocess.run([*self._entered(), *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done

    def start(self, *command: str) -> subprocess.Popen[str]:
        """A command inside that goes on; its standard output can be read."""
        return subprocess.Popen([*self._entered(), *command], stdout=subprocess.PIPE, text=True)

    def inside(self, path: str | Path) -> Path:
        """A file inside, as this process can open it."""
        return Path(f"/proc/{self._leader}/root{path}")

    def power_off(self) -> None:
        """As by the button: everything is ended in its order."""
        self.run("systemctl", "poweroff")
        assert self._outer is not None
        self._outer.wait(900)
        self._clear_groups()

    def cut_power(self) -> None:
        """Everything inside dies at once."""
        if self._outer is None:
            return
        if self._outer.poll() is None:
            os.kill(self._leader or self._outer.pid, signal.SIGKILL)
        self._outer.wait(60)
        self._clear_groups()

    def _entered(self) -> list[str]:
        entered = ["nsenter", "-t", str(self._leader), "-m", "-u", "-i", "-p", "-r", "-w"]
        return [*entered, "env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]

    def _systemd(self) -> int:
        """The pid of process 1 as seen from outside; 0 while it is not there."""
        assert self._outer is not None
        assert self._outer.poll() is None, self.log.read_text()[-3000:]
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()
        for child in children:
            if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                return int(child)
        return 0

    def _make_groups(self) -> list[Path]:
        """Control groups of its own, so that nothing of it stays in the machine's."""
        above = [_CGROUPS] if (_CGROUPS / "cgroup.controllers").exists() else [_CGROUPS / each for each in _HIERARCHIES]
        name = f"mens-sup-test-{os.urandom(4).hex()}"
        groups = [folder / name for folder in above]
        for group in groups:
            group.mkdir(exist_ok=True)
        return groups

    def _clear_groups(self) -> None:
        for group in self._groups:
            for folder, _, _ in os.walk(group, topdown=False):
                wait_for(lambda place=Path(folder): not (place / "cgroup.procs").read_text().strip(), 60)
                Path(folder).rmdir()
        self._outer, self._leader = None, 0


def _further_prefixes() -> Sequence[str]:
    """Where the interpreter really lies, when that is elsewhere."""
    real = Path(os.path.realpath(sys.executable)).parents[1]
    return [] if str(real) in ("/usr", sys.base_prefix) or real.is_relative_to(PROJECT) else [str(real)]
