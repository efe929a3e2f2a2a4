"""Whether this machine can isolate: a sandbox is made, and a program in it tries to reach out."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rft.sandbox import bubblewrap

_PLANTED = "MENS_SANDBOX_PROBE"
_NONE_REMEDY = (
    "Or set judge.isolation: none to run completions unprotected, as you; every verdict and row then says so."
)
_ATTACKS = """
import json, os, socket
def can(act):
    try:
        act()
    except (OSError, PermissionError):
        return False
    return True
def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as line:
        line.settimeout(2)
        line.connect(address)
found = {
    "be root": os.getuid() == 0,
    "hold capabilities": "CapEff:\\t0000000000000000" not in open("/proc/self/status").read(),
    "reach the network": can(lambda: connect(socket.AF_INET, ("192.0.2.1", 80)))
    or len(os.listdir("/proc/sys/net/ipv4/conf")) > 3,
    "see the environment of a program outside": PLANTED in str(os.environ) or any(
        can(lambda: open(f"/proc/{pid}/environ").read()) and PLANTED in open(f"/proc/{pid}/environ").read()
        for pid in os.listdir("/proc") if pid.isdigit()),
    "see other processes": sum(name.isdigit() for name in os.listdir("/proc")) > 4,
    "read homes": any(can(lambda: os.listdir(home)) and os.listdir(home) for home in HOMES),
    "write outside its own folder": any(
        can(lambda: open(f"{place}/probe", "w")) for place in ("/", "/usr", "/etc", "/dev", "/run")),
    "make namespaces": can(lambda: UNSHARE()),
}
print(json.dumps([what for what, did in found.items() if did]))
"""


class SandboxUnusableError(Exception):
    """Nothing can be isolated here; one paragraph with the remedy."""


@dataclass(frozen=True)
class Isolated:
    """What isolates here. ``memory_of_all``: memory is bounded for a sandbox as a whole, not for each process."""

    bubblewrap: str
    as_root: bool
    memory_of_all: bool


@functools.cache
def probe() -> Isolated:
    """What isolates on this machine, tried once. Raises SandboxUnusableError."""
    from rft.sandbox.run import CannotStartError, Limits, Sandbox, SandboxError

    try:
        program = bubblewrap.find()
    except bubblewrap.NoBubblewrapError:
        raise SandboxUnusableError(
            "Completions cannot be isolated: bubblewrap (its program bwrap) is not installed. Install it (Debian and "
            f"Ubuntu: apt-get install bubblewrap, Fedora: dnf install bubblewrap). {_NONE_REMEDY}"
        ) from None
    script = (
        f"PLANTED = {_PLANTED!r}\nHOMES = {_homes()!r}\n"
        "import ctypes\n"
        "def UNSHARE():\n    if ctypes.CDLL(None).unshare(0x10000000):\n        raise OSError\n" + _ATTACKS
    )
    python = bubblewrap.own_interpreter()
    sandbox = Sandbox()
    waiting = [python.program, "-c", "import time; time.sleep(600)"]
    planted = subprocess.Popen(waiting, env={**os.environ, _PLANTED: _PLANTED})
    try:
        ran = sandbox.run([python.program, "-I", "-S", "probe.py"], {"probe.py": script.encode()}, Limits())
    except (SandboxError, CannotStartError) as error:
        raise SandboxUnusableError(
            f"Completions cannot be isolated: bubblewrap is here but makes no sandbox ({error}). Mostly this user may "
            "not make user namespaces: allow it (sysctl kernel.unprivileged_userns_clone=1, or an AppArmor profile for "
            f"bwrap), or run as root outside a container that forbids it. {_NONE_REMEDY}"
        ) from error
    finally:
        planted.kill()
        planted.wait()
        limited = sandbox.limits_memory
        sandbox.close()
    try:
        reached = json.loads(ran.stdout)
    except ValueError:
        words = ran.stderr.decode(errors="replace").strip().splitlines()
        raise SandboxUnusableError(
            f"Completions cannot be isolated: the probe of the sandbox ended with {ran.exit_code or ran.signal} "
            f"({words[-1] if words else 'without a word'}). {_NONE_REMEDY}"
        ) from None
    if reached:
        raise SandboxUnusableError(
            f"Completions cannot be isolated: inside bubblewrap ({program}) a program could {', '.join(reached)}. "
            f"Use a kernel and a bubblewrap without that gap. {_NONE_REMEDY}"
        )
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    return Isolated(version, bubblewrap.runs_as_root(), limited)


def _homes() -> list[str]:
    own = os.path.expanduser("~")  # noqa: PTH111  (which stays so where nobody knows it)
    return sorted({"/home", "/root", own} - {"~", *_with_interpreter()})


def _with_interpreter() -> list[str]:
    """Folders above the interpreter are there, with nothing else in them."""
    return [str(above) for folder in bubblewrap.own_interpreter().folders for above in Path(folder).parents]
