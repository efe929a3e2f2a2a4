"""Several processes of one training on this machine: started, watched and ended together. Free of torch.

The process that the supervisor started trains nothing itself then. It holds the run's lock, starts one process for
each rank, hands a request to stop on to them, and ends as the training did: with one exit report, or by the signal that
ended the rank that failed first.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import msgspec

from supervisor.protocol.attempt import (
    EXIT_CODES,
    LAUNCHER_VARIABLE,
    AttemptSpec,
    ExitKind,
    ExitReport,
    read_exit_report,
    write_exit_report,
)
from supervisor.protocol.events import EventLog
from supervisor.protocol.heartbeat import Phase
from supervisor.protocol.paths import AttemptPaths, RunPaths

STORE_VARIABLE = "MENS_STORE"
"""In rank 0's environment: a listening socket, at which the ranks find each other."""
GRACE_SECONDS = 5.0
"""After a rank has failed: for the others to notice by themselves, say so, and finish the snapshot that they write."""
TOGETHER_SECONDS = 60.0
"""Between the first and the last rank that end as they should: they part after the last save."""
STACKS_SECONDS = 0.5
"""For the ranks to write their stacks on SIGABRT: they are killed when this process ends."""
TAIL_BYTES = 64 << 10
_PR_SET_PDEATHSIG = 1
_PEER_LOST = re.compile(
    r"gloo/transport|Connection (?:closed|reset) by peer|Broken pipe|Application timeout caused pair closure"
    r"|ncclRemoteError|remote process exited|DistBackendError|DistNetworkError|DistStoreError"
    r"|NCCL communicator was aborted"
)
"""What a rank says when it has lost another one: a consequence, not the cause."""
_NOTHING_SAVED = (Phase.STARTING.name.lower(), Phase.LOADING.name.lower())


@dataclass(frozen=True)
class Place:
    """Which rank a process is."""

    rank: int
    size: int


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended. ``status``: an exit code, or the negative number of a signal.

    ``killed``: by us, when the others had ended.
    """

    rank: int
    pid: int
    status: int
    report: ExitReport | None
    killed: bool = False

    @property
    def well(self) -> bool:
        """Did it end as it should, with everything saved?"""
        if self.report is None:
            return False
        if self.report.kind is ExitKind.INTERRUPTED:
            return self.report.phase not in _NOTHING_SAVED
        return self.report.kind is ExitKind.COMPLETED

    @property
    def how(self) -> str:
        if self.killed:
            return "did not end and was killed"
        if self.report is not None and self.well and self.status < 0:
            return f"was done, but ended by {_signal_name(-self.status)} on its way out"
        if self.report is not None:
            return f"ended with {self.report.kind.value}: {self.report.message}"
        if self.status < 0:
            return f"was ended by {_signal_name(-self.status)}"
        return f"ended with exit code {self.status} and without a report"


def own_place() -> Place | None:
    """The rank that this process is, started by :func:`run_ranks`; None for a training of a single process."""
    if LAUNCHER_VARIABLE not in os.environ:
        return None
    return Place(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


def end_with_launcher() -> None:
    """In a rank: be killed when the launcher dies, so that no rank outlives the run's lock."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(os.environ[LAUNCHER_VARIABLE]):
        os.kill(os.getpid(), signal.SIGKILL)


def run_ranks(spec: AttemptSpec, command: Sequence[str] | None = None) -> int:
    """Train in ``spec.processes`` processes; returns the exit code. Main thread only.

    ``command`` is for tests; otherwise each rank is another process like this one. Does not return when a rank was
    ended by a signal: this process then ends by the same one. Raises OSError when a rank cannot be started or its
    log cannot be opened.
    """
    size = spec.processes
    files = RunPaths(Path(spec.run_dir)).attempt(spec.attempt)
    with _Ranks(files, size, command or [sys.executable, *sys.orig_argv[1:]]) as ranks:
        ends = ranks.until_all_ended()
    cause = first_cause(ends)
    report: ExitReport | None
    first = next(end for end in ends if end.rank == 0)
    if first.well and (cause is None or cause.killed):
        # Rank 0 has saved everything: a rank that is killed only because it did not end has cost nothing.
        report = first.report
        assert report is not None, "a rank without a report has not ended well"
        for end in ends:
            if end.killed or end.status < 0:
                _tell(spec, files, end)
    else:
        assert cause is not None, "rank 0 has not ended well"
        report = cause.report
        if not _in_all(ends, report):
            others = "the other rank was ended for it" if size == 2 else f"the other {size - 1} ranks were ended for it"
            _tell(spec, files, cause, "" if cause.killed else f"; {others}")
        if report is None:
            _end_like(cause.status)
            return cause.status
        if not _in_all(ends, report):
            report = msgspec.structs.replace(report, message=f"rank {cause.rank}: {report.message}")
    try:
        write_exit_report(files.exit_report, report)
    except OSError as error:
        # No room for the report: the exit code still says what it would have said.
        with contextlib.suppress(OSError):
            print(f"no exit report could be written: {error}", file=sys.stderr, flush=True)  # noqa: T201
    return EXIT_CODES[report.kind]


def first_cause(ends: Sequence[RankEnd]) -> RankEnd | None:
    """The rank whose end made the others end; ``ends`` in the order in which they were seen. None when all is well.

    Several may be seen at once, so what they say counts first: a rank that has lost another is not the cause, nor is
    one that was killed for it, unless all others have ended well.
    """
    if all(end.well for end in ends):
        return None

    def standing(end: RankEnd) -> int:
        if end.well:
            return 5
        if end.killed:
            return 4
        if end.report is None:
            return 0 if end.status < 0 else 1
        if end.report.kind is ExitKind.INTERRUPTED:
            return 2
        said = "\n".join((end.report.message, *end.report.evidence))
        return 3 if _PEER_LOST.search(said) else 0

    return min(ends, key=standing)


def _in_all(ends: Sequence[RankEnd], report: ExitReport | None) -> bool:
    """Does every rank say the same, or has it only been asked to stop? Then no one of them is to be named."""
    if report is None:
        return False
    same = all(end.report is not None and end.report.message == report.message for end in ends)
    return same or report.kind is ExitKind.INTERRUPTED


class _Ranks:
    """The processes of all ranks, and the signals that they are handed."""

    def __init__(self, files: AttemptPaths, size: int, command: Sequence[str]) -> None:
        self._files = files
        self._command = list(command)
        self._size = size
        self._living: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}  # by pidfd: rank and process
        self._stop = False
        self._handlers = {
            number: signal.signal(number, self._hand_on) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGABRT)
        }

    def __enter__(self) -> _Ranks:
        try:
            with socket.create_server(("127.0.0.1", 0), backlog=max(16, 4 * self._size)) as store:
                environment = _environment(self._size, store.getsockname()[1])
                for rank in range(self._size):
                    self._start(rank, environment, store)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for pidfd, (_, process) in self._living.items():
            process.kill()
            process.wait()
            os.close(pidfd)
        self._living = {}
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _start(self, rank: int, environment: Mapping[str, str], store: socket.socket) -> None:
        own = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        if rank == 0:
            own[STORE_VARIABLE] = str(store.fileno())
        with self._output(rank) as output:
            process = subprocess.Popen(
                self._command,
                env=own,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(store.fileno(),) if rank == 0 else (),
            )
        self._living[os.pidfd_open(process.pid)] = (rank, process)
        if self._stop:
            process.send_signal(signal.SIGTERM)

    @contextlib.contextmanager
    def _output(self, rank: int) -> Iterator[int | None]:
        """Rank 0 writes where this process does, each other one into a file of its own: no line tears another."""
        if rank == 0:
            yield None
            return
        log = os.open(self._files.rank_log(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            yield log
        finally:
            os.close(log)

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        self._stop = True
        handed = signal.SIGABRT if number == signal.SIGABRT else signal.SIGTERM
        for _, process in self._living.values():
            process.send_signal(handed)
        if number == signal.SIGABRT:
            time.sleep(STACKS_SECONDS)
            _end_like(-signal.SIGABRT)

    def until_all_ended(self) -> list[RankEnd]:
        """In the order of their ends. Once one has ended, the others have a limited time."""
        ends: list[RankEnd] = []
        deadline: float | None = None
        killed = False
        while self._living:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = select.select(list(self._living), [], [], left)[0]
            if not ready:
                killed, deadline = True, None
                for _, process in self._living.values():
                    process.kill()
            for pidfd in ready:
                rank, process = self._living.pop(pidfd)
                os.close(pidfd)
                report = read_exit_report(self._files.rank_report(rank))
                ends.append(RankEnd(rank, process.pid, process.wait(), report, killed=killed and report is None))
            if ends and not killed:
                failed = any(not end.well for end in ends)
                limit = time.monotonic() + (GRACE_SECONDS if failed else TOGETHER_SECONDS)
                deadline = limit if deadline is None else min(deadline, limit)
        return ends


def _environment(size: int, port: int) -> dict[str, str]:
    cores = max(1, len(os.sched_getaffinity(0)) // size)
    return {
        # Ranks of one machine meet on it, whatever its name resolves to.
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": str(cores),
        **os.environ,
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        LAUNCHER_VARIABLE: str(os.getpid()),
    }


def _tell(spec: AttemptSpec, files: AttemptPaths, cause: RankEnd, others: str = "") -> None:
    """Name the rank in the events and in stderr.log, with the end of its own log: diagnosis reads that one."""
    sentence = f"rank {cause.rank} (process {cause.pid}) {cause.how}{others}"
    with contextlib.suppress(OSError):  # a full disk may be why it ended
        EventLog(RunPaths(Path(spec.run_dir)).events, "trainer", spec.attempt).append(
            "rank_ended", sentence, rank=cause.rank, pid=cause.pid
        )
        if cause.rank:
            log = files.rank_log(cause.rank)
            print(f"--- the end of {log.name}:\n{_tail(log)}", file=sys.stderr)  # noqa: T201
        print(sentence, file=sys.stderr, flush=True)  # noqa: T201


def _tail(log: Path) -> str:
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            return file.read().decode(errors="replace").rstrip()
    except FileNotFoundError:
        return ""


def _end_like(status: int) -> None:
    """Die of the signal -``status``, without a core file; return when ``status`` is no signal."""
    if status >= 0:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if -status not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
