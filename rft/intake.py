"""The tasks of a job and its verifiers: taken into the store once, compared with it ever after, checked before a token
is spent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import islice

from rft.config import JudgeSection, RftSections
from rft.diversity import Distinct, answer_key
from rft.gold import State, check_gold
from rft.judging import JudgesBrokenError, verifier_of
from rft.store import Store
from rft.tasks.task import Task
from rft.verifiers.cache import CachedVerifier
from rft.verifiers.verdict import Outcome
from rft.verifiers.verifier import Verifier, VerifierUnusableError
from trainer.errors import ConfigurationError, DataProblemError

CHUNK = 500
CHECKED = "tasks_checked"
DISTINCT = "distinct"

BuildVerifier = Callable[[str, Mapping[str, object], JudgeSection], Verifier]
Beat = Callable[[], None]


def take_in(store: Store, tasks: Iterable[Task], beat: Beat) -> dict[str, str]:
    """Take the tasks of a fresh job into the store, or compare them with it; their part of the job's identity.

    The store keeps the tasks of the job that it has; :func:`take_in_again` replaces them. Until there is a sample, any
    other job may take its place. Call it inside a batch.
    """
    fresh = store.forget_job() or store.last_task() == 0
    digests = _Digests()
    waiting = digests.watch(tasks, beat)
    if fresh:
        while chunk := list(islice(waiting, CHUNK)):
            _add(store, chunk)
    else:
        for _ in waiting:
            pass
    if digests.count == 0:
        raise DataProblemError("tasks.sources give no task at all; there is nothing to sample.")
    return digests.identity


def take_in_again(store: Store, tasks: Iterable[Task], beat: Beat) -> None:
    """The job has other tasks now: those that are still there keep their samples. Call it inside a batch.

    Raises DataProblemError for a task that is another under the same id.
    """
    store.set_present(None, False)
    for task in _beating(tasks, beat):
        known = store.find_task(task.id)
        if known is None:
            _add(store, [task])
        elif known[1] != task.digest:
            raise DataProblemError(
                f"{_place(task)}task {task.id} is another one than before (prompt, tools or check), and has samples of "
                "the old one. Give it another id, or start in a new --run-dir."
            )
        else:
            store.set_present(known[0], True)


def build_verifiers(
    store: Store, sections: RftSections, build: BuildVerifier
) -> dict[tuple[str, str], Verifier]:
    """The verifiers of all tasks by (source, name of the verifier), not opened; equal ones are one.

    A source's own settings go to the verifier that it names; another one that a row asks for has its defaults.
    """
    configured = {source.name: source.verifier for source in sections.tasks.sources}
    built: dict[tuple[str, str], Verifier] = {}
    same: dict[str, Verifier] = {}
    for source, name in store.verifiers():
        section = configured.get(source)
        settings = section.settings if section is not None and section.name == name else {}
        key = f"{name} {sorted(settings.items())}"
        if key not in same:
            same[key] = build(name, settings, sections.judge)
        built[source, name] = same[key]
    return built


def open_verifiers(verifiers: Mapping[tuple[str, str], Verifier], stack: ExitStack) -> None:
    """Start them; the stack ends them. Raises ConfigurationError when one cannot work here."""
    for verifier in {id(each): each for each in verifiers.values()}.values():
        stack.callback(verifier.close)
        try:
            verifier.open()
        except VerifierUnusableError as error:
            raise ConfigurationError(str(error)) from None


def compare_by(store: Store, distinct: Distinct, beat: Beat) -> str | None:
    """See to it that all accepted answers are compared in this way; a sentence when they were in another. Call it
    inside a batch."""
    before = store.recall(DISTINCT)
    store.remember(DISTINCT, distinct)
    if before is None or before == distinct:
        return None
    count = 0
    for number, _, states in store.each_states():
        if any(state.outcome == Outcome.ACCEPTED for state in states):
            for index, text in store.accepted_texts(number):
                store.set_key(number, index, answer_key(text, distinct))
                count += 1
            beat()
    return f"corpus.distinct changed from {before} to {distinct}; {count} accepted answers are compared anew"


def news_of(verifiers: Iterable[Verifier]) -> list[str]:
    """What the caches of verdicts have to say since this was last asked, such as that one was damaged."""
    caches = {id(each): each for each in verifiers if isinstance(each, CachedVerifier)}
    return [note for cache in caches.values() for note in cache.news()]


def check_tasks(store: Store, verifiers: Mapping[tuple[str, str], Verifier], workers: int, beat: Beat) -> None:
    """Judge gold answers and empty ones. Raises DataProblemError when there are tasks that cannot be judged rightly."""
    report = check_gold((task for _, task in store.each_task()), verifier_of(verifiers), workers, beat)
    if report.counts[State.ERROR] and not report.counts[State.INVALID] and not report.counts[State.TIMEOUT]:
        raise JudgesBrokenError(report.refusal())
    if not report.good:
        raise DataProblemError(report.refusal() or "")


class _Digests:
    """Over ids and digests of all tasks, in order."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.count = 0

    def watch(self, tasks: Iterable[Task], beat: Beat) -> Iterator[Task]:
        for task in _beating(tasks, beat):
            self._digest.update(f"{task.id}\0{task.digest}\n".encode())
            self.count += 1
            yield task

    @property
    def identity(self) -> dict[str, str]:
        return {"tasks": f"{self.count} tasks, digest {self._digest.hexdigest()[:32]}"}


def _beating(tasks: Iterable[Task], beat: Beat) -> Iterator[Task]:
    for number, task in enumerate(tasks):
        if number % CHUNK == 0:
            beat()
        yield task


def _add(store: Store, tasks: list[Task]) -> None:
    for task in tasks:
        if store.find_task(task.id) is not None:
            raise DataProblemError(
                f"{_place(task)}task {task.id} stands twice; give every task an id of its own (SOURCE/KEY)."
            )
        store.add_tasks([task])


def _place(task: Task) -> str:
    return f"{task.file}:{task.line}: " if task.file else ""
