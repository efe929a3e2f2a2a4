"""How the program ended, as far as exit code, signal or the words of launchers and shells tell. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.diagnosis.loglines import Line

CRASH_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGSYS})
STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

_ROOT_CODE = re.compile(r"exitcode\s*: (-?\d+) \(pid")
_TOLD = re.compile(
    r"failed \(exitcode: (?P<elastic>-?\d+)\)|exits with return code = (?P<deepspeed>-?\d+)"
    r"|died with <Signals\.(?P<name>SIG[A-Z]+)"
    r"|terminated with signal (?P<spawn>SIG[A-Z]+)|Signal (?P<received>\d+) \(SIG[A-Z]+\) received"
    r"|returned non-zero exit status (?P<status>\d+)"
    r""
    r"|(?:exit(?:ed|s|ing)?|terminated|finished|failed|died)\b.{0,40}\b(?:exit ?code|return ?code"
    r"|exit status|status|code)[:= ]+(?P<code>-?\d+)\b"
    r"|process to finish\.{3} \(failed (?P<tracker>-?\d+)\)"
    r"|code=(?:killed|dumped), status=(?P<systemd>\d+)/[A-Z]"
    r"|worker died \((?P<worker>-?\d+)\)|Exit [Cc]ode:? +(?P<plain>-?\d+)\b|exit code (?P<words>-?\d+)\b"
    r""
    r"|\b(?:was sent|terminated by|killed by) (?P<sent>SIG(?:KILL|SEGV|BUS|ABRT))\b"
    r"|\b(?:[Bb]y|BY|[Oo]n|[Rr]eceived) (?:OS )?(?:signal|SIGNAL):? ?'?(?P<by>\d{1,2}\b|SIG[A-Z]+|hangup)"
    r"|signal termination: (?P<lsf>Killed|Terminated|Aborted|Segmentation fault|Bus error)"
    r"|^(?:.*: line \d+: +\d+ |.{0,300}[\]\\|/%] ?)?(?P<shell>Killed|Segmentation fault|Aborted|Bus error|Terminated"
    r"|Illegal instruction|Floating point exception)(?: *\(core dumped\))?(?:\s{2,}.*| +(?:python"
    r"|torchrun|accelerate|deepspeed|nohup|\\|\"\$)\S*.*)?$"
    r"|(?:task|tasks) [\d,\-]+: (?P<srun>Killed|Segmentation fault|Aborted|Bus error|Terminated|Out Of Memory)"
    r"|^(?:zsh: |\[\d+\] *[-+]? +(?:\d+ +)?)(?P<zsh>[Kk]illed|[Ss]egmentation fault|[Aa]bort(?:ed)?|[Bb]us error"
    r"|[Tt]erminated)\b",
)
_FORCED = re.compile(
    r"forcefully exiting via|forcefully terminat|did not (?:stop|exit|terminate|react|respond).{0,40}(?:SIGKILL"
    r"|kill)|Unable to shutdown process",
    re.IGNORECASE,
)
_ASKED = re.compile(
    r"(?:received|caught|got|handling) (?:a |the )?(?:signal |Signals\.)?(?:SIGTERM|SIGINT|15\b)|death signal"
    r"|Sending SIGTERM (?:to|and)|sent SIGTERM|docker stop|Stopping container"
    r"|SIGTERM received|graceful(?:ly)? (?:shut|stop)|stop request",
    re.IGNORECASE,
)
_SHELL = {
    "killed": signal.SIGKILL,
    "segmentation fault": signal.SIGSEGV,
    "aborted": signal.SIGABRT,
    "abort": signal.SIGABRT,
    "bus error": signal.SIGBUS,
    "terminated": signal.SIGTERM,
    "illegal instruction": signal.SIGILL,
    "floating point exception": signal.SIGFPE,
    "out of memory": signal.SIGKILL,
}

_HANGUP = {"hangup": "SIGHUP"}
_ENDING = CRASH_SIGNALS | {signal.SIGKILL, signal.SIGHUP, signal.SIGINT}
"""What "by signal" may name; SIGTERM is how launchers clear up."""


@dataclass(frozen=True)
class Ending:
    """``signal``: that ended the program or, if ``told``, the rank that failed first. ``code``: of the program.

    ``index``: the line that tells, -1 when it was given. ``asked``: the line with an earlier request to stop, or -1.
    ``rank``: the rank that a launcher names as the first to fail.
    """

    signal: int | None
    code: int | None
    told: bool = False
    index: int = -1
    asked: int = -1
    rank: str = ""


def read_ending(lines: Sequence[Line], code: int | None, number: int | None) -> Ending:
    """The ending from what was given and, where that only says that a child failed, from the text."""
    if number is None and code is not None:
        number = signal_of_code(code)
    asked = next(
        (index for index, line in enumerate(lines) if _ASKED.search(line.text) and not _FORCED.search(line.text)), -1
    )
    rank = _first_rank(lines)
    if number is not None or code in (0, 124, 126, 127):  # the last three: timeout, not allowed, not found
        return Ending(number, code, asked=asked, rank=rank)
    told, index = _told(lines)
    return Ending(told, code, told=told is not None, index=index, asked=asked, rank=rank)


def signal_of_code(code: int) -> int | None:
    """The signal that an exit code stands for: 137, 247 (-9 as a byte), -9 and what the shell makes of others."""
    if code < 0:
        return -code if -code <= 64 else _WINDOWS.get(code + 2**32)
    if 129 <= code <= 128 + 64 and code - 128 in _NAMED:
        return code - 128
    if code in _WINDOWS:
        return _WINDOWS[code]
    return 256 - code if 256 - code in _AS_BYTE else None


_AS_BYTE = frozenset({signal.SIGABRT, signal.SIGBUS, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM})
_WINDOWS = {
    0xC0000005: signal.SIGSEGV,
    0xC0000374: signal.SIGABRT,
    0xC0000409: signal.SIGABRT,
    0xC000013A: signal.SIGINT,
}
"""Access violation, broken heap, stack buffer overrun, Ctrl-C."""
_NAMED = frozenset(int(entry) for entry in signal.Signals)


def _told(lines: Sequence[Line]) -> tuple[int | None, int]:
    roots = [(index, found) for index, line in enumerate(lines) if (found := _ROOT_CODE.search(line.text))]
    if roots:
        index, found = roots[-1]  # torchrun prints the root cause after the other failures
        number = signal_of_code(int(found[1]))
        return number, index if number else -1
    for index, line in enumerate(lines):
        if _FORCED.search(line.text) or "DataLoader worker" in line.text:
            continue
        found = _TOLD.search(line.text)
        if not found and index + 1 < len(lines) and len(line.text) >= 60:
            found = _TOLD.search(f"{line.text[-60:]} {lines[index + 1].text[:60]}")  # wrapped at the width
        if not found:
            continue
        words = {key: value for key, value in found.groupdict().items() if value}
        number = _number(words)
        if number == signal.SIGTERM and not words.keys() & {"shell", "srun", "zsh", "lsf"}:
            continue  # that is how launchers and engines clear up after the one that failed
        if number is not None:
            return number, index
    return None, -1


def _number(words: dict[str, str]) -> int | None:
    for key, word in words.items():
        if key == "by":
            number = int(word) if word.isdecimal() else getattr(signal, _HANGUP.get(word, word), None)
            return int(number) if number in _ENDING else None
        if key in ("name", "spawn", "sent"):
            named: signal.Signals | None = getattr(signal, word, None)
            return int(named) if named is not None else None
        if key in ("shell", "srun", "zsh", "lsf"):
            return _SHELL.get(word.lower())
        if key in ("received", "systemd"):
            return int(word) if int(word) <= 64 else None
        if len(word) <= 11:
            return signal_of_code(int(word))
    return None


def _first_rank(lines: Sequence[Line]) -> str:
    named = ""
    for line in lines:
        if "rank" in line.text and (
            found := re.search(r"^\s*rank\s+: (\d+) \(local_rank|failed \(exitcode: .*local_rank: (\d+)", line.text)
        ):
            named = found[1] or named or found[2]
    return f"rank{named}" if named else ""
