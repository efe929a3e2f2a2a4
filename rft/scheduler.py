"""Which samples to ask for next, and what to judge: what is owed, from the store and the job alone.

Only tasks with a sample on its way or at a judge are in memory. A task that waits for its source's pilot is put aside
as a number and read again from the store afterwards.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rft.budget import MAX_TRIES, PILOT_TASKS, Need, Prior, Why, is_settled, need, pilot_tally
from rft.config import BudgetSection
from rft.samplers.sampler import Completion, Refused, Request
from rft.seeds import sample_seed
from rft.store import REFUSED, Arrived, Judged, State, Store
from rft.tasks.task import Task
from rft.verifiers.verdict import Outcome

NUMBERS_READ = 1000
_UNTOUCHED, _OPEN, _ASIDE, _DONE, _UNJUDGED = range(5)

Render = Callable[[Task], tuple[int, ...]]
"""The ids of a task's prompt; () where the server renders it."""


@dataclass(frozen=True)
class ToJudge:
    """A stored sample without a verdict. ``tries``: how often the judge failed on it."""

    task: int
    index: int
    tries: int


@dataclass
class _Open:
    task: Task
    samples: dict[int, State]
    need: Need
    prompt_ids: tuple[int, ...] | None = None
    asked: set[int] = field(default_factory=set)
    judging: set[int] = field(default_factory=set)

    @property
    def owed(self) -> list[int]:
        return [index for index in range(self.need.samples) if index not in self.samples and index not in self.asked]


@dataclass
class _Pilot:
    missing: set[int]
    counts: Counter[tuple[int, int]] = field(default_factory=Counter)
    prior: Prior | None = None
    waiting: list[int] = field(default_factory=list)


class Scheduler:
    """One thread uses it."""

    def __init__(self, store: Store, budget: BudgetSection, most: int, job_seed: int, render: Render) -> None:
        self._store, self._budget, self._most, self._seed, self._render = store, budget, most, job_seed, render
        sources = store.task_counts()
        self.tasks = sum(sources.values())
        self._pilots = {
            source: _Pilot(set(store.first_tasks(source, PILOT_TASKS)) if budget.adaptive else set())
            for source in sources
        }
        self._first = deque(sorted(number for pilot in self._pilots.values() for number in pilot.missing))
        self._again: deque[int] = deque()
        self._unjudged: deque[int] = deque()
        self._numbers: deque[int] = deque()
        self._read_up_to = 0
        self._place = bytearray(store.last_task() + 1)
        self._open: dict[int, _Open] = {}
        self._number_of: dict[str, int] = {}
        self._ready: deque[int] = deque()
        self._to_judge: deque[ToJudge] = deque()
        self._given_up: set[tuple[int, int]] = set()
        self.closed_for: Counter[Why] = Counter()
        self.wanted = 0
        """Samples of the tasks that are done."""
        self.settled = 0
        """Samples of the job's tasks about which nothing more will be learnt."""
        self.accepted = 0
        self.distinct = 0
        """Accepted answers that differ within their task."""
        self.in_flight = 0
        self.at_judge = 0
        self._resume()

    # -- what is known -------------------------------------------------------------------------------------------------

    @property
    def done_tasks(self) -> int:
        return sum(self.closed_for.values())

    @property
    def complete(self) -> bool:
        return self.done_tasks == self.tasks

    @property
    def bound(self) -> int:
        """Samples that there will be at most."""
        return self.wanted + (self.tasks - self.done_tasks) * self._most

    @property
    def expected(self) -> float:
        """Samples that there will be if the other tasks take as many as those that are done took.

        Until a pilot is complete only the quick ones are done, and the bound is all that is known.
        """
        if not self.done_tasks or any(pilot.missing for pilot in self._pilots.values()):
            return float(self.bound)
        return self.wanted * self.tasks / self.done_tasks

    @property
    def idle(self) -> bool:
        """Nothing is on its way, at a judge, or stored without a verdict."""
        return not self.in_flight and not self.at_judge and not self._to_judge and not self._unjudged

    def task(self, number: int) -> Task:
        """A task that has a sample on its way or at a judge."""
        return self._open[number].task

    # -- what to do ----------------------------------------------------------------------------------------------------

    def requests(self, most: int) -> list[Request]:
        """Up to ``most`` samples to ask for now."""
        found: list[Request] = []
        while len(found) < most:
            if not self._ready and not self._open_next():
                break
            if self._ready:
                open_task = self._open.get(self._ready[0])
                if open_task is not None and open_task.owed:
                    found += self._ask(open_task, most - len(found))
                if open_task is None or not open_task.owed:
                    self._ready.popleft()
        self.in_flight += len(found)
        return found

    def to_judge(self, most: int) -> list[ToJudge]:
        """Stored samples that want a verdict, each said once; what an earlier attempt left is added up to about
        ``most`` that are at the judges, whether or not anything is asked for."""
        while self._unjudged and self.at_judge + len(self._to_judge) < most:
            self._open_task(self._unjudged.popleft())
        found = list(self._to_judge)
        self._to_judge.clear()
        self.at_judge += len(found)
        return found

    def claim(self, got: Completion | Refused) -> Arrived | None:
        """What came from the sampler with the number of its task; None when it was not asked for, or came before.

        Raises ValueError when it was drawn with another seed than asked for.
        """
        number = self._number_of.get(got.task_id)
        if number is None or got.index not in self._open[number].asked:
            return None
        if got.seed != sample_seed(self._seed, got.task_id, got.index):
            raise ValueError(f"sample {got.index} of {got.task_id} was drawn with seed {got.seed}, not with its own")
        return Arrived(number, got)

    def arrived(self, stored: Sequence[Arrived]) -> None:
        """Samples that are in the store now."""
        for each in stored:
            open_task, index = self._open[each.task], each.got.index
            self.in_flight -= 1
            open_task.asked.discard(index)
            if isinstance(each.got, Completion):
                open_task.samples[index] = State(index, None, None, 0)
                self._send_to_judge(each.task, open_task, open_task.samples[index])
            else:
                open_task.samples[index] = State(index, REFUSED, None, 0)
                self.settled += 1
            self._look(each.task, open_task)

    def judged(self, stored: Sequence[Judged]) -> None:
        """Verdicts that are in the store now."""
        for each in stored:
            open_task, outcome = self._open[each.task], each.verdict.outcome
            self.at_judge -= 1
            open_task.judging.discard(each.index)
            tries = each.tries
            if outcome is Outcome.ERROR:
                tries = MAX_TRIES
                self._given_up.add((each.task, each.index))
            if outcome is Outcome.ACCEPTED:
                keys = {state.key for state in open_task.samples.values() if state.outcome == Outcome.ACCEPTED}
                self.accepted += 1
                self.distinct += each.key not in keys
            self.settled += 1
            open_task.samples[each.index] = State(each.index, outcome.value, each.key, tries)
            self._look(each.task, open_task)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _ask(self, open_task: _Open, most: int) -> list[Request]:
        indices = open_task.owed[:most]
        if indices and open_task.prompt_ids is None:
            open_task.prompt_ids = self._render(open_task.task)
        open_task.asked.update(indices)
        task = open_task.task
        return [
            Request(
                task.id, index, sample_seed(self._seed, task.id, index), open_task.prompt_ids or (), task.messages,
                task.tools,
            )
            for index in indices
        ]  # fmt: skip

    def _open_next(self) -> bool:
        """Take the next task into memory; False when there is none now."""
        number = self._next_number()
        if number is None:
            return False
        self._open_task(number)
        return True

    def _open_task(self, number: int) -> None:
        task = self._store.task(number)
        samples = self._states(number)
        found = _need(self._budget, self._most, samples, self._pilots[task.source].prior)
        if found.done:
            self._close(number, found, samples)
        elif found.why is Why.PILOT:
            self._put_aside(number, task.source)
        else:
            open_task = self._open[number] = _Open(task, samples, found)
            self._number_of[task.id] = number
            self._place[number] = _OPEN
            for state in samples.values():
                if not is_settled(state):
                    self._send_to_judge(number, open_task, state)
            if open_task.owed:
                self._ready.append(number)

    def _next_number(self) -> int | None:
        while self._again or self._first:
            number = self._again.popleft() if self._again else self._first.popleft()
            if self._place[number] == _UNTOUCHED:
                return number
        while True:
            if not self._numbers:
                self._numbers.extend(self._store.tasks_after(self._read_up_to, NUMBERS_READ))
                if not self._numbers:
                    return None
                self._read_up_to = self._numbers[-1]
            number = self._numbers.popleft()
            if self._place[number] == _UNTOUCHED:
                return number

    def _states(self, number: int) -> dict[int, State]:
        return {
            state.index: State(state.index, state.outcome, state.key, MAX_TRIES)
            if (number, state.index) in self._given_up
            else state
            for state in self._store.states(number)
        }

    def _send_to_judge(self, number: int, open_task: _Open, state: State) -> None:
        open_task.judging.add(state.index)
        self._to_judge.append(ToJudge(number, state.index, state.tries))

    def _look(self, number: int, open_task: _Open) -> None:
        """After news: the next round, or the end of the task."""
        source = open_task.task.source
        pilot = self._pilots[source]
        if number in pilot.missing:
            self._count_pilot(source, number, open_task.samples)
            self._finish_pilot(pilot)
        found = _need(self._budget, self._most, open_task.samples, pilot.prior)
        if open_task.asked or open_task.judging:
            return
        if found.done or found.why is Why.PILOT:
            del self._open[number]
            del self._number_of[open_task.task.id]
            if found.done:
                self._close(number, found, open_task.samples)
            else:
                self._put_aside(number, source)
        elif found.samples > open_task.need.samples:
            open_task.need = found
            self._ready.append(number)

    def _put_aside(self, number: int, source: str) -> None:
        self._place[number] = _ASIDE
        self._pilots[source].waiting.append(number)

    def _close(self, number: int, found: Need, samples: Mapping[int, State]) -> None:
        self._place[number] = _DONE
        self.closed_for[found.why] += 1
        self.wanted += len(samples)

    def _count_pilot(self, source: str, number: int, samples: Mapping[int, State]) -> None:
        pilot = self._pilots[source]
        counted = pilot_tally(self._budget, self._most, samples)
        if counted is not None:
            pilot.missing.discard(number)
            pilot.counts[counted] += 1

    def _finish_pilot(self, pilot: _Pilot) -> None:
        if pilot.missing or pilot.prior is not None:
            return
        pilot.prior = Prior(pilot.counts)
        for number in pilot.waiting:
            self._place[number] = _UNTOUCHED
        self._again.extend(pilot.waiting)
        pilot.waiting.clear()

    def _resume(self) -> None:
        """What the store says is done: the pilots first, then one pass over the narrow table."""
        for source, pilot in self._pilots.items():
            for number in sorted(pilot.missing):
                self._count_pilot(source, number, {state.index: state for state in self._store.states(number)})
            self._finish_pilot(pilot)
        for number, source, states in self._store.each_states():
            samples = {state.index: state for state in states}
            self.settled += sum(map(is_settled, states))
            accepted = [state.key for state in states if state.outcome == Outcome.ACCEPTED]
            self.accepted += len(accepted)
            self.distinct += len(set(accepted))
            found = _need(self._budget, self._most, samples, self._pilots[source].prior)
            if found.done:
                self._close(number, found, samples)
            elif found.why is Why.PILOT:
                self._put_aside(number, source)
            elif not all(map(is_settled, states)):
                self._place[number] = _UNJUDGED
                self._unjudged.append(number)


def _need(budget: BudgetSection, most: int, samples: Mapping[int, State], prior: Prior | None) -> Need:
    """:func:`rft.budget.need`, and no task is done before everything stored of it is judged."""
    found = need(budget, most, samples, prior)
    if found.why is not Why.ROUND and not all(map(is_settled, samples.values())):
        return Need(found.samples, Why.ROUND)
    return found
