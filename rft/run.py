"""One attempt of a job, top to bottom. No torch: the sampler and the judges are processes of their own.

The main thread plans, asks, stores and beats; the sampler samples and the judges judge meanwhile. Nothing is asked for
while the judges are behind, and what is in memory is what is on its way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rft.config import RftSections, SamplerSection, SamplingSection
from rft.identity import check_identity, model_identity, sampling_identity, verifiers_identity
from rft.intake import (
    CHECKED,
    BuildVerifier,
    build_verifiers,
    check_tasks,
    compare_by,
    news_of,
    open_verifiers,
    take_in,
    take_in_again,
)
from rft.judging import Judges, JudgesBrokenError, verifier_of
from rft.progress import Progress
from rft.samplers.sampler import (
    Completion,
    Sampler,
    SamplerIdentity,
    SamplerLostError,
    SamplerUnusableError,
    Sampling,
)
from rft.scheduler import Render, Scheduler
from rft.spend import Spent, cost, exceeded
from rft.store import Origin, Store
from rft.tasks.load import LoadReport
from rft.tasks.task import Task
from rft.verifiers.limits import judges_at_a_time
from rft.verifiers.verifier import Verifier
from supervisor.problems import InputError
from supervisor.protocol.attempt import AttemptSpec, ExitKind, ExitReport
from supervisor.protocol.heartbeat import Phase
from trainer.errors import ConfigurationError, DataProblemError, StopRequestedError, TrainerError, classify
from trainer.reporting import Reporter

WAIT_SECONDS = 0.1
"""How long a turn waits for news from the sampler, and so how late a verdict may be noticed."""
BACKLOG_PER_WORKER = 8
NOTE_SECONDS = 10.0
"""How often the time that was spent is stored when nothing else is."""
GRACE_SHARE = 0.4
"""Of the time to stop in, the part for samples that are on their way; the rest is for ending sampler and judges."""


@dataclass(frozen=True)
class Parts:
    """Where tasks, verifiers and samplers come from."""

    load_tasks: Callable[[RftSections, LoadReport], Iterable[Task]]
    build_verifier: BuildVerifier
    open_sampler: Callable[[SamplerSection, SamplingSection, Path, int, Callable[[str], None]], Sampler]
    render: Callable[[SamplerSection], Render]
    remember_speed: Callable[[SamplerSection, int, int, float], None]
    """``(sampler, tokens, samples, seconds)`` of an attempt."""
    enough: Callable[[Store, int], str | None] = lambda store, done_tasks: None
    """Why nothing more need be sampled, asked before the first sample and whenever tasks are done; None while more is
    needed."""


class SamplerGoneError(TrainerError):
    """The sampler was lost; ``kind`` says as well as can be told why."""

    def __init__(self, text: str, kind: ExitKind) -> None:
        super().__init__(text)
        self.kind = kind


class JudgeGoneError(TrainerError):
    kind = ExitKind.PROGRAM_ERROR


def run_attempt(
    sections: RftSections, spec: AttemptSpec, reporter: Reporter, grace_seconds: float, parts: Parts
) -> ExitReport:
    """Go on with the job until it is complete, capped, or asked to stop. Raises TrainerError for a known end."""
    reporter.enter(Phase.LOADING)
    run_dir = Path(spec.run_dir)
    with ExitStack() as stack:
        store = stack.enter_context(_open_store(run_dir))
        try:
            verifiers = _prepare(store, sections, spec, reporter, parts, stack)
            most, render = sections.sampling.samples_per_task, parts.render(sections.sampler)
            scheduler = Scheduler(store, sections.budget, most, sections.seed, render)
            reporter.beat(scheduler.settled, scheduler.bound)
            job = _Job(sections, spec, reporter, store, scheduler, grace_seconds, verifiers.values())
            if scheduler.complete:
                reporter.enter(Phase.FINISHED)
                return job.report()
            judges = Judges(judges_at_a_time(sections.judge), verifier_of(verifiers), sections.corpus.distinct)
            stack.callback(judges.close)
            with job.clock():
                report = job.run(_start(sections, spec, reporter, store, parts, stack), judges, parts.enough)
            parts.remember_speed(sections.sampler, *job.measured)
            return report
        except InputError as error:
            raise DataProblemError(str(error)) from None
        except SamplerUnusableError as error:
            raise ConfigurationError(str(error)) from None
        except SamplerLostError as error:
            raise SamplerGoneError(str(error), _lost_kind(sections, error)) from error
        except JudgesBrokenError as error:
            raise JudgeGoneError(str(error)) from None


def _open_store(run_dir: Path) -> Store:
    try:
        return Store.open(run_dir)
    except InputError as error:
        raise DataProblemError(str(error)) from None


def sampling_of(section: SamplingSection) -> Sampling:
    return Sampling(section.temperature, section.top_p, section.top_k, section.max_new_tokens, tuple(section.stop))


def _lost_kind(sections: RftSections, error: BaseException) -> ExitKind:
    if sections.sampler.type == "openai":
        return ExitKind.NETWORK
    return classify(error)


def _prepare(
    store: Store, sections: RftSections, spec: AttemptSpec, reporter: Reporter, parts: Parts, stack: ExitStack
) -> dict[tuple[str, str], Verifier]:
    """Tasks into the store or compared with it, verifiers open, everything checked that can be without a sampler."""
    sampling = sampling_of(sections.sampling)
    loaded = LoadReport()
    with store.batch():
        identity = take_in(store, parts.load_tasks(sections, loaded), reporter.beat)
        said = check_identity(store, {**identity, **sampling_identity(sampling, sections.seed)}, spec.accepted_changes)
        anew = compare_by(store, sections.corpus.distinct, reporter.beat)
        if "tasks" in said:
            take_in_again(store, parts.load_tasks(sections, LoadReport()), reporter.beat)
    verifiers = build_verifiers(store, sections, parts.build_verifier)
    open_verifiers(verifiers, stack)
    versions = {key: verifier.version for key, verifier in verifiers.items()}
    with store.batch():
        said |= check_identity(store, verifiers_identity(versions), spec.accepted_changes)
    for sentence in [*said.values(), *([anew] if anew else [])]:
        reporter.event("change_accepted", sentence)
    counts = store.task_counts()
    reporter.event(
        "corpus",
        f"{sum(counts.values())} tasks: {', '.join(f'{source} {count}' for source, count in counts.items())}",
        tasks=sum(counts.values()),
        sources=counts,
        left_out={"repeated": loaded.repeated.total(), "contain a bench item": len(loaded.leaked)},
    )
    for sentence in loaded.sentences():
        reporter.event("tasks", sentence)
    checked = f"{identity} {sorted(versions.items())}"
    if store.recall(CHECKED) != checked:
        check_tasks(store, verifiers, judges_at_a_time(sections.judge), reporter.beat)
        with store.batch():
            store.remember(CHECKED, checked)
    return verifiers


def _start(
    sections: RftSections, spec: AttemptSpec, reporter: Reporter, store: Store, parts: Parts, stack: ExitStack
) -> tuple[Sampler, int]:
    """The sampler, running, and the number of what it samples from."""
    sampler = parts.open_sampler(
        sections.sampler, sections.sampling, Path(spec.run_dir), spec.attempt, reporter.warn
    )
    stack.callback(sampler.close)
    began = time.monotonic()
    identity = sampler.start(reporter.beat)
    with store.batch():
        said = check_identity(store, model_identity(identity), spec.accepted_changes)
        origin = store.origin_number(Origin(identity, sampling_of(sections.sampling)))
    for sentence in said.values():
        reporter.event("change_accepted", sentence)
    reporter.event("sampler", _described(identity, time.monotonic() - began), origin=origin)
    return sampler, origin


def _described(found: SamplerIdentity, seconds: float) -> str:
    adapter = ""
    if found.adapter is not None:
        moved = found.adapter_effect
        effect = "" if moved is None else f", which moves log-probabilities by up to {moved:.3f}"
        adapter = f" with adapter {found.adapter}{effect}"
    place = f"on {found.device} ({found.dtype})"
    return f"{found.engine} samples from {found.model}{adapter} {place}, ready in {seconds:.1f} s"


class _Job:
    """What a running attempt holds together."""

    def __init__(
        self,
        sections: RftSections,
        spec: AttemptSpec,
        reporter: Reporter,
        store: Store,
        scheduler: Scheduler,
        grace: float,
        verifiers: Collection[Verifier],
    ) -> None:
        self._verifiers = verifiers
        self._sections, self._spec, self._reporter = sections, spec, reporter
        self._store, self._scheduler, self._grace = store, scheduler, grace
        totals, seconds = store.totals(), store.seconds()
        self._prompt_tokens, self._tokens = totals.prompt_tokens, totals.completion_tokens
        self._earlier = sum(seconds.values()) - seconds.get(spec.attempt, 0.0)
        self._before = seconds.get(spec.attempt, 0.0)
        self._began = self._sampling_since = self._noted = time.monotonic()
        self._unwanted = 0
        self._tokens_before, self._settled_before = self._tokens, scheduler.settled

    @property
    def measured(self) -> tuple[int, int, float]:
        """Tokens, samples and seconds of this attempt, without the first loading."""
        seconds = time.monotonic() - self._sampling_since
        return self._tokens - self._tokens_before, self._scheduler.settled - self._settled_before, seconds

    @contextmanager
    def clock(self) -> Iterator[None]:
        """The sampler is up from here on, loading included; its seconds are stored however that ends."""
        self._began = time.monotonic()
        try:
            yield
        except (TrainerError, SamplerLostError, SamplerUnusableError, JudgesBrokenError):
            self._note_seconds()
            raise
        self._note_seconds()

    def run(
        self, started: tuple[Sampler, int], judges: Judges, enough: Callable[[Store, int], str | None]
    ) -> ExitReport:
        sampler, origin = started
        reporter, scheduler = self._reporter, self._scheduler
        reporter.event(
            "plan",
            planned_steps=scheduler.bound,
            judged=scheduler.settled,
            tasks=scheduler.tasks,
            tasks_done=scheduler.done_tasks,
        )
        reporter.enter(Phase.TRAINING)
        self._sampling_since = time.monotonic()
        progress = Progress(reporter, scheduler, self._tokens)
        capped, deadline, looked = None, None, -1
        while not scheduler.complete:
            if capped is None:
                capped = exceeded(self._sections.spend, self._spent())
                if capped:
                    reporter.event("spend_cap", f"{capped}; what is on its way is still taken, then the job ends")
            if capped is None and scheduler.done_tasks > looked:
                looked = scheduler.done_tasks
                capped = enough(self._store, looked)
                if capped:
                    reporter.event("enough", f"{capped}; what is on its way is still taken, then the job ends")
            if reporter.stop_requested and deadline is None:
                deadline = time.monotonic() + GRACE_SHARE * self._grace
            asking = capped is None and deadline is None
            if not asking and scheduler.idle:
                break
            if deadline is not None and (time.monotonic() >= deadline or not self._to_come(sampler)):
                break
            self._turn(sampler, origin, judges, progress, asking)
        progress.say()
        if not scheduler.complete and deadline is not None:
            raise StopRequestedError(self._interrupted())
        reporter.enter(Phase.FINISHED)
        return self.report(capped)

    def _to_come(self, sampler: Sampler) -> bool:
        """Whether anything is worth waiting for when the job is asked to stop: a sampler that loads gives nothing."""
        return not sampler.loading or self._scheduler.at_judge > 0

    def _turn(self, sampler: Sampler, origin: int, judges: Judges, progress: Progress, asking: bool) -> None:
        scheduler = self._scheduler
        if asking and scheduler.at_judge < BACKLOG_PER_WORKER * judges.workers and (room := sampler.room()) > 0:
            if requests := scheduler.requests(room):
                sampler.submit(requests)
            elif scheduler.idle and not scheduler.complete:
                raise RuntimeError("nothing is on its way, nothing is owed, and the job is not complete")
        for item in scheduler.to_judge(BACKLOG_PER_WORKER * judges.workers):
            text = self._store.text(item.task, item.index)
            judges.give(item.task, scheduler.task(item.task), item.index, text, item.tries)
        got = sampler.wait(WAIT_SECONDS) if scheduler.in_flight else []
        self._tell_of_caches()
        judged = judges.take(0.0 if scheduler.in_flight or got else WAIT_SECONDS)
        claimed = [found for found in map(scheduler.claim, got) if found is not None]
        self._say_unwanted(len(got) - len(claimed))
        if sampler.loading:  # one that is silent otherwise must be seen to be
            progress.alive()
        if not claimed and not judged:
            if time.monotonic() - self._noted > NOTE_SECONDS:
                self._note_seconds()
            return
        with self._store.batch():
            stored = self._store.add(claimed, origin, self._spec.attempt)
            self._store.add_verdicts(judged)
            self._store.add_seconds(self._spec.attempt, self._seconds())
        self._noted = time.monotonic()
        completions = [each.got for each in stored if isinstance(each.got, Completion)]
        tokens = sum(each.completion_tokens for each in completions)
        self._tokens += tokens
        self._prompt_tokens += sum(each.prompt_tokens for each in completions)
        scheduler.arrived(stored)
        scheduler.judged(judged)
        progress.news(tokens)

    def _tell_of_caches(self) -> None:
        for note in news_of(self._verifiers):
            self._reporter.warn(note)

    def _say_unwanted(self, count: int) -> None:
        if count and not self._unwanted:
            self._reporter.warn("the sampler gave samples that it was not asked for; they are left aside")
        self._unwanted += count

    def _seconds(self) -> float:
        return self._before + time.monotonic() - self._began

    def _note_seconds(self) -> None:
        with self._store.batch():
            self._store.add_seconds(self._spec.attempt, self._seconds())
        self._noted = time.monotonic()

    def _spent(self) -> Spent:
        return Spent(self._prompt_tokens, self._tokens, (self._earlier + self._seconds()) / 3600)

    def _interrupted(self) -> str:
        return f"asked to stop; {self._scheduler.settled} samples are judged and stored, the same command goes on"

    def report(self, capped: str | None = None) -> ExitReport:
        """Counted anew in the store, not from memory."""
        scheduler = self._scheduler
        counts = self._store.counts()
        settled = sum(
            count for by_outcome in counts.values() for outcome, count in by_outcome.items() if outcome != "unjudged"
        )
        done = {"steps": settled, "tokens": self._store.totals().completion_tokens, "rows": scheduler.done_tasks}
        planned = done if capped else {**done, "steps": scheduler.bound, "rows": scheduler.tasks}
        distinct = sum(keys for keys, _ in self._store.distinct().values())
        accepted = _sum(counts, "accepted")
        message = (
            f"{settled} samples of {scheduler.tasks} tasks judged: {accepted} accepted, {distinct} different"
            + _said(_sum(counts, "error"), "left unscored, the judge failed on them")
            + _said(_sum(counts, "refused"), "never drawn, the sampler refused them")
        )
        price = cost(self._sections.spend, self._spent())
        if price is not None:
            message += f"; cost {price:.2f}"
        return ExitReport(
            ExitKind.COMPLETED,
            message,
            step=settled,
            phase=Phase.FINISHED.name.lower(),
            planned=planned,
            done=done,
            stopped_early=f"{capped}." if capped else "",
            planned_at_first={"steps": scheduler.bound, "rows": scheduler.tasks} if capped else {},
        )


def _sum(counts: Mapping[str, Mapping[str, int]], outcome: str) -> int:
    return sum(by_outcome.get(outcome, 0) for by_outcome in counts.values())


def _said(count: int, what: str) -> str:
    return f"; {count} {what}" if count else ""
