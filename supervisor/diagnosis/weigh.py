"""Weigh everything that a log, an ending and a kernel log say, and name the likeliest cause. Pure.

Every sign becomes a candidate: a kind with a score of 0..1, the product of how much the sign tells and of
how it stands there (what ended the program > an error line > any line > a warning), reduced when training
went on afterwards. The best score wins; among equals the earliest, because the cause comes first.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from supervisor.diagnosis.ended import CRASH_SIGNALS, STOP_SIGNALS, Ending, read_ending
from supervisor.diagnosis.gpu_memory import refine, struck_while_loading
from supervisor.diagnosis.kernel_log import KernelSign, read_kernel_log
from supervisor.diagnosis.kinds import FailureKind
from supervisor.diagnosis.loglines import Level, Line, read_lines
from supervisor.diagnosis.matching import SignsOfLog
from supervisor.diagnosis.ordinary import is_fallback, ordinary_kind, placed_kind
from supervisor.diagnosis.progress import Progress, read_progress
from supervisor.diagnosis.raised import Raised, find_raised
from supervisor.diagnosis.signs import WEAK
from supervisor.diagnosis.signs_software import SOFTWARE, WRAPPERS

ENOUGH = 0.25
"""The least score that names a cause; below it the cause is unknown."""
_STANDING = {Level.QUIET: 0.22, Level.PLAIN: 0.6, Level.ERROR: 0.85}
_STANDING_OF_SOFTWARE = {Level.QUIET: 0.15, Level.PLAIN: 0.3, Level.ERROR: 0.6}
"""Missing packages and bad settings end a program by an exception; as mere lines they are mostly remarks."""
_SOFTWARE = frozenset(SOFTWARE)
_SURVIVED = 0.2
_EXHAUSTED = frozenset(
    {
        FailureKind.DISK_FULL,
        FailureKind.SHM_FULL,
        FailureKind.FILESYSTEM_ERROR,
        FailureKind.TOO_MANY_FILES,
        FailureKind.HOST_OOM,
        FailureKind.CUDA_OOM,
    }
)
_JUST_BEFORE, _WARNED = 12, 0.7
"""A mere warning about something used up, so few lines before the last exception, explains that one."""
_GRACED = frozenset({FailureKind.TIME_LIMIT, FailureKind.PREEMPTED, FailureKind.INTERRUPTED})
_GRACE = 80
"""Lines that a program may still print, steps among them, between the notice to end and the end."""
_SIGKILLED = 0.5
_HITS = 3000
_PLACED = 0.9
_ENGINE_DIED = re.compile(
    r"encountered a fatal error|Scheduler hit an exception|EngineDeadError|Background loop has errored"
)
_TELLING = 0.65
_UNANSWERED = re.compile(r"refused|Connection error|APIConnectionError|ConnectError|Disconnected|reset by peer")
_ENGINE_FRAME = re.compile(r"[/\\](?:vllm|sglang|lmdeploy|tensorrt_llm)[/\\]")
_REMOTE_FILE = re.compile(r"^FileNotFoundError: .*\b(?:hf|s3|gs|https?|az|abfss?)://")
_RANKS_TALK = re.compile(r"[/\\]torch[/\\]distributed[/\\]")
_TASK_FAILED = re.compile(
    r"srun: error: .*\btasks? .*: (?:Exited with exit code|Killed|Segmentation|Aborted|Bus error|Out Of Memory)"
    r"|srun: Terminating (?:Step|job step)"
)
_STEP_CANCELLED = re.compile(r"\*\*\* STEP .* CANCELLED AT \S+ \*\*\*")
"""How Slurm ends the other tasks after one has failed."""
_FRAME = re.compile(r"^\s+|^(?:File |Cell In\[|-+>|frame #|#\d+ 0x|\[?/\S+\.py(?!:\d+: \w+Warning))|^\d+ frames$")
_BOILERPLATE = re.compile(
    r"Compile with `?TORCH_USE_CUDA_DSA|For debugging consider passing|CUDA kernel errors might"
    r"|If reserved but unallocated|Search for `|max_split_size_mb"
    r"|To enable traceback see|Set the environment variable HYDRA_FULL_ERROR|NCCL_DEBUG=INFO for details\)?$"
    r"|TOKENIZERS_PARALLELISM|Failed to load CPU \w+ from kernels-community"
)
_SHARED_MEMORY = re.compile(
    r"SemLock|multiprocessing/(?:synchronize|shared_memory|heap)\.py|reductions\.py|_share_(?:fd"
    r"|filename)|_new_using_(?:fd|filename)"
)
_KERNEL = re.compile(r"NVRM: |Killed process \d+|oom-kill:constraint|EXT4-fs error|I/O error, dev|\]: segfault at")
"""Lines of the kernel's own that stand among the program's."""
_NOT_AT_LOAD = re.compile(r"cache blocks|KV cache|executable batch size|mem-fraction", re.IGNORECASE)
_MESSAGE = re.compile(
    r"^\s*(?:what\(\):|size mismatch for |\w+ kernel: |Cuda failure"
    r"|\"message\": \"|(?:Normal|Warning) +[A-Z]\w+ |(?:[Rr]eason|[Mm]essage|[Ss]tate|[Ss]tatus|Last State) *: )"
)
"""Indented, and no code all the same: messages, and what `kubectl describe` prints."""


@dataclass(frozen=True)
class Candidate:
    """A kind that something speaks for. ``index``: the line, -1 outside the log. ``lines``: shown as evidence."""

    kind: FailureKind
    score: float
    index: int
    cause: str
    lines: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class Weighed:
    """The best candidate (None: nothing tells enough), the others' kinds, and what else was read."""

    best: Candidate | None
    others: tuple[Candidate, ...]
    ending: Ending
    progress: Progress
    last_lines: tuple[str, ...]


def weigh(
    log: str, code: int | None, number: int | None, kernel: Sequence[KernelSign] | None, *, first_hand: bool
) -> Weighed:
    """Read the log and name the likeliest cause.

    ``code``/``number``: exit code and signal, None when not known. ``kernel``: None when the kernel's log was not read.
    ``first_hand``: the ending was seen by us, so a SIGKILL without any further sign stays just that.
    """
    lines = read_lines(log)
    progress = read_progress(lines)
    raised = find_raised(lines)
    ending = read_ending(lines, code, number)
    if ending.signal is not None or ending.code not in (None, 0):
        progress = replace(progress, finished=-1)  # a word of success does not outweigh a failed ending
    signs = SignsOfLog(lines)
    candidates = [*_from_raised(lines, raised, progress, signs), *_from_lines(lines, raised, progress, signs)]
    candidates = [_about_gpu(candidate, lines, raised, progress) for candidate in candidates]
    candidates = [_first_to_fail(_about_bus(candidate, lines), ending) for candidate in candidates]
    failed = next((index for index, line in enumerate(lines) if _TASK_FAILED.search(line.shown)), len(lines))
    candidates = [_cleared_up(candidate, failed) for candidate in candidates]
    if any(entry.kind is FailureKind.ENGINE_DEATH for entry in candidates):
        candidates = [_not_answering(candidate) for candidate in candidates]
    if any(entry.kind is FailureKind.DRIVER_MISMATCH and entry.score >= _TELLING for entry in candidates):
        candidates = [_for_want_of_driver(candidate) for candidate in candidates]
    if any(_ENGINE_DIED.search(line.text) for line in lines):
        candidates = [_engines_own(candidate, raised) for candidate in candidates]
    if len(progress.not_finite) >= 2 or (progress.not_finite and not progress.survived(progress.not_finite[0])):
        candidates.append(_not_finite(lines, progress))
    if first_hand and number == signal.SIGKILL:
        # Nothing that a program prints ends it by SIGKILL; what it printed is no more than a hint.
        candidates = [replace(candidate, score=candidate.score * _SIGKILLED) for candidate in candidates]
    kernel_words = "\n".join(line.text for line in lines if _KERNEL.search(line.text))
    kernel_signs = [*(kernel or ()), *read_kernel_log(kernel_words)]
    candidates += [Candidate(entry.kind, entry.weight, -1, entry.line, (entry.line,)) for entry in kernel_signs]
    candidates += _from_ending(ending, lines, kernel_signs, seen=first_hand or kernel is not None)
    ranked = sorted(_best_of_each(candidates), key=lambda entry: (-round(entry.score, 2), entry.index))
    best = ranked[0] if ranked and ranked[0].score >= ENOUGH else None
    others = tuple(entry for entry in ranked if entry is not best and entry.score >= 0.15)
    return Weighed(best, others, ending, progress, tuple(line.shown[:500] for line in lines[-12:]))


def _best_of_each(candidates: Iterable[Candidate]) -> list[Candidate]:
    best: dict[FailureKind, Candidate] = {}
    for entry in candidates:
        known = best.get(entry.kind)
        if known is None or (-round(entry.score, 2), entry.index) < (-round(known.score, 2), known.index):
            best[entry.kind] = entry
    return list(best.values())


def _from_raised(
    lines: Sequence[Line], raised: Sequence[Raised], progress: Progress, signs: SignsOfLog
) -> Iterator[Candidate]:
    for position, error in enumerate(raised):
        standing = (0.15 if error.loose else 1.0) * (_SURVIVED if progress.survived(error.index) else 1.0)
        if is_fallback(error):
            standing *= 0.6
        shown = tuple(line.shown[:500] for line in lines[error.index : error.end][:4])
        cause = lines[error.index].text[:500]
        full = f"{error.type}: {error.message}"
        matched = False
        placed = placed_kind(error)
        if progress.begun(error.index) and _REMOTE_FILE.search(f"{error.type}: {error.message}"):
            placed = FailureKind.NETWORK  # what could be read until now has not gone
        for entry in () if placed else signs.within(full):
            matched = True
            kind = entry.kind
            if kind is FailureKind.DISK_FULL and _SHARED_MEMORY.search(error.context[-1500:]):
                kind = FailureKind.SHM_FULL
            if kind is FailureKind.NETWORK and _RANKS_TALK.search(error.context[-600:]):
                kind = FailureKind.NCCL_ERROR
            yield Candidate(kind, entry.weight * standing, error.index, cause, shown, error.source)
        if not matched and not WRAPPERS.search(cause):
            ordinary = placed or ordinary_kind(error)
            if ordinary is not None:
                weight = (0.65 if error.traced else 0.5) if ordinary is FailureKind.PROGRAM_ERROR else 0.75
                weight = _PLACED if placed else weight
                if ordinary is FailureKind.WORKER_KILLED:
                    weight = WEAK
                if ordinary is FailureKind.PROGRAM_ERROR and error.handled and position + 1 < len(raised):
                    weight -= 0.05  # the handler's own error is the one that ended the program
                yield Candidate(ordinary, weight * standing, error.index, cause, shown, error.source)


def _from_lines(
    lines: Sequence[Line], raised: Sequence[Raised], progress: Progress, signs: SignsOfLog
) -> Iterator[Candidate]:
    covered = {index for error in raised for index in range(error.index, error.end)}
    last = max((error.index for error in raised if error.traced and not error.loose), default=-1)
    hits = 0
    for index, line in enumerate(lines):
        if index in covered or hits >= _HITS:
            continue
        text = line.text
        if (
            index + 1 < len(lines)
            and index + 1 not in covered
            and len(line.shown) >= 70
            and lines[index + 1].source == line.source
        ):
            text = f"{text}{lines[index + 1].text[:80]}" if not text.endswith(".") else text
        if (_FRAME.match(line.text) and not _MESSAGE.match(line.text)) or _BOILERPLATE.search(line.text):
            continue
        matching = signs.within(text)
        hits += bool(matching)
        for entry in matching:
            ranks = _STANDING_OF_SOFTWARE if entry in _SOFTWARE else _STANDING
            standing = max(ranks[line.level], entry.least)
            if entry.kind in _EXHAUSTED and last - _JUST_BEFORE <= index < last:
                standing = max(standing, _WARNED)
            graced = entry.kind in _GRACED and len(lines) - index <= _GRACE
            survived = progress.survived(index) and not graced
            yield Candidate(
                entry.kind,
                entry.weight * standing * (_SURVIVED if survived else 1.0),
                index,
                line.text.strip()[:500],
                (line.shown[:500],),
                line.source,
            )


def _not_finite(lines: Sequence[Line], progress: Progress) -> Candidate:
    first, last = progress.not_finite[0], progress.not_finite[-1]
    shown = tuple(dict.fromkeys((lines[first].shown[:500], lines[last].shown[:500])))
    return Candidate(FailureKind.NAN_LOSS, 0.7, first, lines[first].text.strip()[:500], shown)


def _about_gpu(candidate: Candidate, lines: Sequence[Line], raised: Sequence[Raised], progress: Progress) -> Candidate:
    """Out of GPU memory: whose memory, and when."""
    if candidate.kind is not FailureKind.CUDA_OOM:
        return candidate
    error = next((entry for entry in raised if entry.index == candidate.index), None)
    following = " ".join(line.text for line in lines[candidate.index : candidate.index + 4])
    message = error.message if error else following
    if _NOT_AT_LOAD.search(candidate.cause):
        return candidate
    context = error.context if error else ""
    loading = progress.loads(candidate.index) and not (error and error.traced and not struck_while_loading(context))
    kind = refine(message, context, steps_before=progress.begun(candidate.index), loading=loading)
    return replace(candidate, kind=kind)


def _about_bus(candidate: Candidate, lines: Sequence[Line]) -> Candidate:
    """A bus error while data go through shared memory: it is full, and the page that was promised isn't there."""
    if candidate.kind is not FailureKind.NATIVE_CRASH or "us error" not in candidate.cause:
        return candidate
    following = "\n".join(line.text for line in lines[candidate.index : candidate.index + 25])
    return replace(candidate, kind=FailureKind.SHM_FULL) if _SHARED_MEMORY.search(following) else candidate


def _not_answering(candidate: Candidate) -> Candidate:
    """Where an engine has died, the connection that was refused is the one to the engine."""
    unanswered = candidate.kind is FailureKind.NETWORK and _UNANSWERED.search(candidate.cause)
    return replace(candidate, kind=FailureKind.ENGINE_DEATH) if unanswered else candidate


def _for_want_of_driver(candidate: Candidate) -> Candidate:
    """That there is no GPU is what follows from a driver that does not fit."""
    return replace(candidate, score=candidate.score * 0.6) if candidate.kind is FailureKind.NO_GPU else candidate


def _engines_own(candidate: Candidate, raised: Sequence[Raised]) -> Candidate:
    """An untelling error in the code of an inference engine that died of it is the engine's, not the program's."""
    if candidate.kind is not FailureKind.PROGRAM_ERROR:
        return candidate
    error = next((entry for entry in raised if entry.index == candidate.index), None)
    own = error is not None and _ENGINE_FRAME.search(error.context[-700:])
    return replace(candidate, kind=FailureKind.ENGINE_DEATH) if own else candidate


def _cleared_up(candidate: Candidate, failed: int) -> Candidate:
    """The end of a step whose task failed before is nobody's wish."""
    if candidate.kind is not FailureKind.INTERRUPTED or candidate.index < failed:
        return candidate
    return replace(candidate, score=candidate.score * (0.5 if _STEP_CANCELLED.search(candidate.cause) else 1.0))


def _first_to_fail(candidate: Candidate, ending: Ending) -> Candidate:
    """A launcher names the rank that failed first; the errors of the others come after it."""
    if (
        ending.rank
        and candidate.source.replace(" ", "").startswith("rank")
        and candidate.source.replace(" ", "") != ending.rank
    ):
        return replace(candidate, score=candidate.score * 0.95)
    return candidate


def _from_ending(
    ending: Ending, lines: Sequence[Line], kernel: Sequence[KernelSign], *, seen: bool
) -> Iterator[Candidate]:
    shown = (lines[ending.index].shown[:500],) if ending.index >= 0 else ()
    if ending.signal is not None:
        name = signal_name(ending.signal)
        cause = lines[ending.index].text.strip()[:500] if ending.index >= 0 else f"The program was ended by {name}."

        place = ending.index if ending.index >= 0 else len(lines)
        for kind, score in _kinds_of_signal(ending.signal, ending, kernel, seen=seen):
            yield Candidate(kind, score, place, cause, shown)
    elif ending.code == 124:
        yield Candidate(FailureKind.TIME_LIMIT, 0.62, len(lines), "Exit code 124: `timeout` ended the program.")
    elif ending.code == 126:
        yield Candidate(
            FailureKind.PERMISSION_DENIED, WEAK, len(lines), "Exit code 126: the program may not be executed."
        )
    elif ending.code == 127:
        yield Candidate(FailureKind.DEPENDENCY_ERROR, WEAK, len(lines), "Exit code 127: the program was not found.")


def _kinds_of_signal(
    number: int, ending: Ending, kernel: Sequence[KernelSign], *, seen: bool
) -> Iterator[tuple[FailureKind, float]]:
    if number in STOP_SIGNALS:
        yield FailureKind.INTERRUPTED, 0.4 if ending.told else 0.62
    elif number in CRASH_SIGNALS:
        yield FailureKind.NATIVE_CRASH, 0.35 if number == signal.SIGABRT else 0.62
        if number == signal.SIGBUS:
            # Ranks under a launcher speak to each other through /dev/shm, and a full one ends them this way.
            yield FailureKind.SHM_FULL, 0.64 if ending.told else 0.4
    elif number == signal.SIGKILL:
        if ending.asked >= 0 and not any(entry.kind is FailureKind.HOST_OOM for entry in kernel):
            yield FailureKind.INTERRUPTED, 0.7  # it was asked to stop, did not, and was killed
        weight = 0.58 if ending.told else 0.65
        yield FailureKind.KILLED, weight if seen else 0.3
        yield FailureKind.HOST_OOM, 0.3 if seen else weight


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
