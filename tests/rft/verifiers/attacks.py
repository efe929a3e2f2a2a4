# ruff: noqa: E501
"""Programs that try to pass without solving, or to reach out, or to outlive their judge. None defines a ``solve`` that
doubles. What one has found out it tells in an exception, which ends up in the verdict's diagnostic.

Run as a program, this judges all of them and prints a JSON object: name -> [outcome, reason, diagnostic, the outcome of
an honest program after it].
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor

from rft.config import JudgeSection
from rft.tasks.task import Check, Task
from rft.verifiers.python_tests import PythonTests, PythonTestsSettings

PLANTED = "MENS_PLANTED_SECRET_4711"
"""Name and value of a variable in the environment of whoever judges."""

TASK = Task(
    "attacks/double",
    "attacks",
    (),
    Check(
        "python_tests",
        {
            "tests": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(5) == 10\n",
            "entry_point": "solve",
            "format": "continuation",
        },
    ),
)
HONEST = "def solve(x):\n    return 2 * x\n"
SETTINGS = PythonTestsSettings(seconds=4.0, cpu_seconds=1, memory_mib=256, tmp_mib=8, files=100, processes=12)

PASSING = {
    "always equal": """
class Equal:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __bool__(self): return True
def solve(x): return Equal()
""",
    "always equal number": """
class Equal(int):
    def __eq__(self, other): return True
def solve(x): return Equal(7)
""",
    "always equal in a list": """
class Equal(list):
    def __eq__(self, other): return True
def solve(x): return Equal()
""",
    "claims another class": """
class Liar:
    __class__ = int
    def __eq__(self, other): return True
    def __index__(self): return 4
def solve(x): return Liar()
""",
    "walks frames": """
import sys
def solve(x):
    frame = sys._getframe()
    while frame is not None:
        for scope in (frame.f_locals, frame.f_globals):
            for value in list(scope.values()):
                if isinstance(value, list): value.append("passed")
                if isinstance(value, dict): value.update(outcome="accepted", passed=2, expected=2)
        frame = frame.f_back
    return None
""",
    "patches what judges": """
import gc, sys, types
def solve(x):
    for module in list(sys.modules.values()):
        for name in ("ask", "serve", "encode", "verdict", "_compared"):
            for thing in list(vars(module).values()):
                if isinstance(thing, type) and hasattr(thing, name):
                    try: setattr(thing, name, lambda *a, **k: {"outcome": "accepted"})
                    except (TypeError, AttributeError): pass
    return None
""",
    "patches builtins": """
import builtins
class Never(Exception): pass
builtins.AssertionError = Never
builtins.__build_class__ = None
builtins.compile = builtins.exec = builtins.len = lambda *a, **k: True
def solve(x): return None
""",
    "exits when loaded": "import sys; sys.exit(0)\ndef solve(x): return None\n",
    "exits when called": "import sys\ndef solve(x): sys.exit(0)\n",
    "exits at once when loaded": "import os; os._exit(0)\n",
    "exits at once when called": "import os\ndef solve(x): os._exit(0)\n",
    "exits later": "import atexit\natexit.register(print, 'passed')\ndef solve(x): raise SystemExit\n",
    "prints the mark": "print('passed'); print('{\"outcome\": \"accepted\"}')\ndef solve(x): print('ok')\n",
    "writes to every descriptor": """
import json, os, struct
def solve(x):
    for body in ({"outcome": "accepted", "nonce": "", "passed": 2, "expected": 2}, ["value", True, [], ""], "passed"):
        data = json.dumps(body).encode()
        for descriptor in range(64):
            try: os.write(descriptor, struct.pack(">I", len(data)) + data)
            except OSError: pass
    os._exit(0)
""",
    "answers by itself": """
import gc
from rft.sandbox.inside.peer import Channel
def solve(x):
    for thing in gc.get_objects():
        if isinstance(thing, Channel):
            for _ in range(5): thing.send(["value", ["t"], [], ""])
    return 1
""",
    "asks for more than it may": """
import gc
from rft.sandbox.inside.peer import Channel
def solve(x):
    for thing in gc.get_objects():
        if isinstance(thing, Channel):
            for what in ("getattr", "setattr", "load", "call", "str"):
                thing.send(["ask", what, 0, ["t", ["t", "__globals__"], ["d"]]])
    return 4
""",
    "sends what is no value": """
import gc
from rft.sandbox.inside.peer import Channel
def solve(x):
    for thing in gc.get_objects():
        if isinstance(thing, Channel):
            thing.send(["value", ["o", "object", ["__class__", 1]], [], ""])
""",
    "replaces the test": "def check(candidate): pass\n__mens_assertion_held__ = print\ndef solve(x): return None\n",
    "ends the loop": "def solve(x): raise StopIteration\n",
    "skips": "import unittest\ndef solve(x): raise unittest.SkipTest('later')\n",
    "fails itself": "def solve(x): assert False\n",
    "generates": "def solve(x):\n    while True: yield 2 * x\n",
    "never tells": "class E(Exception):\n    def __str__(self): raise E\n    __repr__ = __str__\ndef solve(x): raise E(E())\n",
    "answers too much": "def solve(x): return 'a' * (50 << 20)\n",
    "answers too deeply": "def solve(x):\n    nest = []\n    for _ in range(100000): nest = [nest]\n    return nest\n",
    "answers in a circle": "def solve(x):\n    nest = []\n    nest.append(nest)\n    return nest\n",
    "edits the tests": """
import os, sys
for folder in ("/run/mens/rft/sandbox/inside", sys.prefix, "/usr/lib", "/etc", "/", os.getcwd()):
    for name in ("tests.py", "sitecustomize.py", "x.pth", "conftest.py"):
        try: open(os.path.join(folder, name), "w").write("import builtins; builtins.print = None")
        except OSError: pass
def solve(x): return None
""",
}

ENDLESS = {
    "sleeps": "import time\ndef solve(x): time.sleep(1000)\n",
    "spins": "import signal\nfor n in (2, 15, 24): signal.signal(n, signal.SIG_IGN)\ndef solve(x):\n    while True: pass\n",
    "spins when loaded": "while True: pass\n",
}

BOMBS = {
    "forks": "import os\ndef solve(x):\n    while True:\n        try: os.fork()\n        except OSError: pass\n",
    "threads": """
import threading, time
def solve(x):
    while True:
        try: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        except (RuntimeError, MemoryError): return None
""",
    "takes memory": "def solve(x):\n    kept = []\n    while True: kept.append(bytearray(1 << 24))\n",
    "takes memory in children": """
import os
def solve(x):
    for _ in range(10):
        if os.fork() == 0:
            kept = []
            while True:
                try: kept.append(bytearray(b'x' * (1 << 24)))
                except MemoryError: pass
    os.wait()
""",
    "takes the disk": """
def solve(x):
    for number in range(100):
        with open(f"/tmp/{number}", "wb") as file:
            for _ in range(100): file.write(b"x" * (1 << 20))
""",
    "takes inodes": "def solve(x):\n    for number in range(10**6): open(f'/dev/shm/{number}', 'w').close()\n",
    "prints for ever": "def solve(x):\n    while True: print('x' * 10000)\n",
    "writes for ever": "import os\ndef solve(x):\n    while True: os.write(1, b'x' * 65536)\n",
    "opens files": "def solve(x): return [open('/dev/null') for _ in range(10**6)]\n",
    "recurses": "import sys\nsys.setrecursionlimit(10**9)\ndef solve(x): return eval('(' * 10**5) if x < 0 else f(x)\ndef f(x): return repr(g(x))\n"
    "class G:\n    def __repr__(self): return repr(self)\ndef g(x): return G()\n",
    "reads address 0": "import ctypes\ndef solve(x): return ctypes.string_at(0)\n",
}

KILLING = {
    "kills its parent": "import os\ndef solve(x): os.kill(os.getppid(), 9)\n",
    "kills all": "import os\ndef solve(x):\n    os.kill(-1, 9)\n    return None\n",
    "kills the first": "import os\ndef solve(x):\n    os.kill(1, 9)\n    return None\n",
    "kills by number": """
import os
def solve(x):
    for pid in range(2, 40000):
        try: os.kill(pid, 9)
        except OSError: pass
    os.killpg(0, 9)
""",
    "stays behind": """
import os, time
def solve(x):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for _ in range(1000):
                time.sleep(1)
        os._exit(0)
    return None
""",
}

TELLING = {
    "tells its environment": """
import os, subprocess
def solve(x):
    found = [dict(os.environ)]
    for pid in ["self", *range(1, 300)]:
        for name in ("environ", "cmdline", "maps"):
            try: found.append(open(f"/proc/{pid}/{name}").read())
            except OSError: pass
    raise Exception(found)
""",
    "tells of homes": """
import os
def solve(x):
    found = []
    for place in ("/root", "/home", os.path.expanduser("~"), "/work", "/etc", "/var", "/opt", "/mnt", "/proc", "/sys"):
        for name in (".ssh", ".netrc", "shadow", "passwd", "."):
            try: found.append((place, name, os.listdir(os.path.join(place, name)) or open(os.path.join(place, name)).read()))
            except OSError: pass
    raise Exception(found)
""",
    "tells its descriptors": """
import os, stat
def solve(x):
    found = []
    for descriptor in range(1024):
        try: mode = os.fstat(descriptor).st_mode
        except OSError: continue
        found.append((descriptor, "socket" if stat.S_ISSOCK(mode) else "device" if stat.S_ISCHR(mode) else "other"))
    raise Exception("open", found)
""",
    "tells who it is": """
import os, resource
def solve(x):
    raise Exception("ids", os.getuid(), os.geteuid(), os.getgid(), os.getgroups(), "core", resource.getrlimit(4))
""",
    "reaches out": """
import socket, os
def solve(x):
    reached = []
    for family, kind, address in (
        (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", PORT)), (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", PORT)),
        (socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 80)), (socket.AF_INET6, socket.SOCK_STREAM, ("::1", PORT)),
        (socket.AF_UNIX, socket.SOCK_STREAM, "\\0mens-attack"), (40, socket.SOCK_STREAM, (2, 1024)),
        (16, socket.SOCK_RAW, (0, 0)),
    ):
        try:
            line = socket.socket(family, kind)
            reached.append((family, "made"))
            line.connect(address)
            line.send(b"hello")
            reached.append((family, "reached"))
        except (OSError, OverflowError, TypeError): pass
    try: reached.append(socket.getaddrinfo("example.org", 80))
    except OSError: pass
    raise Exception("reached", reached)
""",
    "breaks out": """
import ctypes, os
def solve(x):
    libc = ctypes.CDLL(None, use_errno=True)
    did = []
    for name, arguments in (
        ("unshare", (0x10000000,)), ("unshare", (0x00020000,)), ("mount", (b"t", b"/tmp", b"tmpfs", 0, None)),
        ("umount2", (b"/tmp", 2)), ("chroot", (b"/tmp",)), ("ptrace", (16, 1, 0, 0)), ("setuid", (0,)), ("setns", (0, 0)),
        ("ptrace", (0, 0, 0, 0)), ("memfd_create", (b"x", 0)),
        ("syscall", (250, 1, 0)), ("syscall", (321, 0, 0, 0)), ("syscall", (425, 8, 0)), ("shmget", (1, 4096, 0o1777)),
        ("syscall", (435, 0, 0)), ("syscall", (272, 0x10000000)), ("swapoff", (b"/",)), ("process_vm_readv", (1, 0, 0, 0, 0, 0)),
    ):
        if getattr(libc, name)(*arguments) != -1: did.append((name, arguments))
    for path in ("/proc/self/mem", "/proc/1/mem", "/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda", "/sys/kernel"):
        if os.path.exists(path): did.append(path)
    try: os.mknod("/tmp/disk", 0o60666, os.makedev(254, 0)); did.append("mknod")
    except OSError: pass
    try: os.link("/run/mens/rft/sandbox/inside/tests.py", "/tmp/link"); did.append("link")
    except OSError: pass
    raise Exception("did", did)
""",
}

LEAVING = """
import builtins, json, os, sys
for place in ("/tmp", "/dev/shm", "/dev", "/run", "/", os.getcwd()):
    for name in ("left", "sitecustomize.py"):
        try: open(os.path.join(place, name), "w").write("left")
        except OSError: pass
os.environ["LEFT"] = "left"
json.dumps = lambda value: "left"
builtins.LEFT = "left"
sys.modules["left"] = json
def solve(x): return None
"""
FINDING = """
import builtins, json, os, sys
def solve(x):
    found = [name for place in ("/tmp", "/dev/shm", "/dev", "/run", "/", ".") for name in os.listdir(place)]
    left = ["left" in found, "LEFT" in os.environ, hasattr(builtins, "LEFT"), "left" in sys.modules, json.dumps(1) != "1"]
    raise Exception("left", left)
"""


def main() -> None:
    port, abstract = sys.argv[1:3]
    attacks = {**PASSING, **ENDLESS, **BOMBS, **KILLING, **TELLING}
    verifier = PythonTests(SETTINGS, JudgeSection(workers=3))
    verifier.open()

    def judge(name: str) -> list[str]:
        verdict = verifier.judge(TASK, attacks[name].replace("PORT", port).replace("mens-attack", abstract))
        after = verifier.judge(TASK, HONEST)
        return [verdict.outcome, verdict.reason, verdict.diagnostic, after.outcome]

    try:
        with ThreadPoolExecutor(3) as pool:
            print(json.dumps(dict(zip(attacks, pool.map(judge, attacks), strict=True))))
    finally:
        verifier.close()


if __name__ == "__main__":
    main()
