"""The oracle: a command of the user's that judges one answer by its exit code. Verdicts are kept by content.

The command gets a bare environment, a folder of its own that is also its home, bounded processor time, file size and
wall time, and is ended with everything it started. It is not a sandbox: an oracle that *runs* answers trusts them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path

from trainer.data.build.mix import FILE_PLACEHOLDER, OracleSection

MAX_WRITTEN_BYTES = 1 << 26
LOOK_AHEAD = 64
_FENCED = re.compile(r"^[ \t]*```[^\n]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "RUSTUP_HOME", "CARGO_HOME", "GOROOT", "JAVA_HOME", "SYSTEMROOT")
"""Where tools are found; nothing that could hold a secret."""


class Verdict(StrEnum):
    """PASS: exit code 0. FAIL: another one. TIMEOUT: ended. NO_CODE: the answer has no code block to judge."""

    PASS = "pass"
    FAIL = "fail"
    TIMEOUT = "timeout"
    NO_CODE = "no_code"


class OracleUnusableError(Exception):
    """The command cannot be started at all; one sentence."""


def taken(answer: str, section: OracleSection) -> str | None:
    """What is judged of an answer; None when it has no code block."""
    if section.take == "code_block":
        found = _FENCED.search(answer)
        return None if found is None else section.prepend + found.group(1)
    return section.prepend + answer


class Oracle:
    """Verdicts on answers, from the cache or from the command. Use as a context manager.

    Raises OracleUnusableError when the program does not exist, sqlite3.Error or OSError for the cache.
    """

    def __init__(self, section: OracleSection, cache: Path) -> None:
        program = shutil.which(section.command[0])
        if program is None:
            raise OracleUnusableError(f"the oracle's program {section.command[0]} is not on this machine")
        self.section = section
        self.from_cache = self._unsaved = 0
        state = Path(program).resolve().stat()
        # Another compiler may judge otherwise.
        identity = [*section.command, section.suffix, str(state.st_size), str(state.st_mtime_ns)]
        self._identity = "\0".join(identity).encode()
        cache.mkdir(parents=True, exist_ok=True)
        self._store = sqlite3.connect(cache / "oracle.sqlite", timeout=60)
        self._store.execute("CREATE TABLE IF NOT EXISTS verdicts (key BLOB PRIMARY KEY, verdict TEXT) WITHOUT ROWID")
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1)

    def __enter__(self) -> Oracle:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._store.commit()
        self._store.close()

    def judge(self, answers: Iterable[str]) -> Iterator[Verdict]:
        """One verdict per answer, in order; some answers are judged at the same time."""
        waiting: deque[Verdict | tuple[bytes, Future[Verdict]]] = deque()
        running: dict[bytes, Future[Verdict]] = {}
        for answer in answers:
            waiting.append(self._ask(answer, running))
            if len(waiting) > LOOK_AHEAD:
                yield self._settle(waiting.popleft(), running)
        while waiting:
            yield self._settle(waiting.popleft(), running)

    def _ask(self, answer: str, running: dict[bytes, Future[Verdict]]) -> Verdict | tuple[bytes, Future[Verdict]]:
        text = taken(answer, self.section)
        if text is None:
            return Verdict.NO_CODE
        key = hashlib.sha256(self._identity + b"\0\0" + text.encode()).digest()
        if key not in running:
            known = self._store.execute("SELECT verdict FROM verdicts WHERE key = ?", (key,)).fetchone()
            if known:
                self.from_cache += 1
                return Verdict(known[0])
            running[key] = self._pool.submit(_run, self.section, text)
        return key, running[key]

    def _settle(
        self, entry: Verdict | tuple[bytes, Future[Verdict]], running: dict[bytes, Future[Verdict]]
    ) -> Verdict:
        if isinstance(entry, Verdict):
            return entry
        key, future = entry
        verdict = future.result()
        running.pop(key, None)
        if verdict is not Verdict.TIMEOUT:  # which may be the machine's fault
            self._store.execute("INSERT OR IGNORE INTO verdicts VALUES (?, ?)", (key, verdict.value))
            self._unsaved += 1
            if self._unsaved >= LOOK_AHEAD:  # so that a build that is interrupted has not asked in vain
                self._store.commit()
                self._unsaved = 0
        return verdict


def _run(section: OracleSection, text: str) -> Verdict:
    with tempfile.TemporaryDirectory(prefix="mens-oracle-") as folder:
        file = Path(folder, f"answer{section.suffix}")
        file.write_text(text, encoding="utf-8")
        arguments = [part.replace(FILE_PLACEHOLDER, str(file)) for part in section.command]
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        for name, place in (("RUSTUP_HOME", ".rustup"), ("CARGO_HOME", ".cargo")):
            # rustc is a proxy that finds its toolchain below the user's home, which it does not get.
            if name not in environment and (Path.home() / place).is_dir():
                environment[name] = str(Path.home() / place)
        environment |= {"HOME": folder, "TMPDIR": folder}
        try:
            process = subprocess.Popen(
                arguments,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise OracleUnusableError(f"the oracle {arguments[0]} cannot be started: {error.strerror}") from error
        _bound(process.pid, section.timeout_seconds)
        try:
            code = process.wait(section.timeout_seconds)
        except subprocess.TimeoutExpired:
            return Verdict.TIMEOUT
        finally:
            _end_group(process)
        return Verdict.PASS if code == 0 else Verdict.FAIL


def _bound(pid: int, seconds: float) -> None:
    """Limits of the command and all that it starts; a fork with limits set inside would not be safe among threads."""
    limits = (
        (resource.RLIMIT_CPU, int(seconds) + 1),
        (resource.RLIMIT_FSIZE, MAX_WRITTEN_BYTES),
        (resource.RLIMIT_CORE, 0),
    )
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        for limit, value in limits:
            resource.prlimit(pid, limit, (value, value))


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the command and what it left in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
