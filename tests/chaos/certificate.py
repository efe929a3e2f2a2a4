"""The certificate of a chaos run, as Markdown."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from faults import BY_NAME, POOL
from one_run import SAVE_STEPS, STEPS, Result


def certificate(results: Sequence[Result], seed: int, reference_seconds: float, where: str) -> str:
    """All that was seen; ``reference_seconds`` is the wall time of the undisturbed run."""
    return "\n".join(
        [
            "# Chaos certificate",
            "",
            f"`make chaos N={len(results)} SEED={seed}`, on {where}. Every run is the real trainer on a tiny model "
            f"({STEPS} optimiser steps, a checkpoint every {SAVE_STEPS}) under the real `mens-sup run`; one to three "
            "faults strike it at random moments.",
            "",
            *_totals(results, reference_seconds),
            "",
            "## By fault",
            "",
            *_by_fault(results),
            "",
            "## Diagnosed against injected",
            "",
            *_confusion(results),
            "",
            "## Promises that were not kept",
            "",
            *(list(_broken(results)) or ["None."]),
            "",
        ]
    )


def _totals(results: Sequence[Result], reference_seconds: float) -> Iterator[str]:
    struck = sum(len(result.struck) for result in results)
    can = [result for result in results if _can_complete(result)]
    completed = [result for result in can if result.exit_code == 0]
    exact = [result for result in completed if all(BY_NAME[struck.name].identical for struck in result.struck)]
    lost = [steps for result in results for name, steps in result.lost if BY_NAME[name].lost_steps is not None]
    power = [steps for result in results for name, steps in result.lost if BY_NAME[name].lost_steps is None]
    recovery = [seconds for result in results for seconds in result.recovery]
    diagnosed = [right for result in results for _, _, right in result.diagnosed]
    orphans = sum("orphan" in problem for result in results for problem in result.problems)
    loops = sum("three times in a row" in problem for result in results for problem in result.problems)
    yield "| what | seen |"
    yield "| --- | --- |"
    yield f"| runs | {len(results)} |"
    yield f"| faults that struck | {struck} |"
    yield f"| runs that can complete and did | {len(completed)} of {len(can)} |"
    yield f"| bit-identical to the undisturbed run, where no lossy relief | {_share(exact)} |"
    yield f"| optimiser steps lost to a process that died | median {_median(lost)}, most {max(lost, default=0)} |"
    yield f"| optimiser steps lost with shared memory or the newest checkpoint | median {_median(power)}, most {max(power, default=0)} |"  # noqa: E501
    yield f"| strike to the next optimiser step | median {_median(recovery):.1f} s, most {max(recovery, default=0):.1f} s |"  # noqa: E501
    yield f"| undisturbed wall time / disturbed (ETTR of these very short runs) | {_ettr(completed, reference_seconds):.2f} |"  # noqa: E501
    yield f"| first diagnosis right | {sum(diagnosed)} of {len(diagnosed)} |"
    yield f"| orphans and zombies | {orphans} |"
    yield f"| the same failure three times in a row | {loops} |"
    yield f"| runs with a broken promise | {sum(bool(result.problems) for result in results)} |"


def _can_complete(result: Result) -> bool:
    return all(BY_NAME[struck.name].completes for struck in result.struck)


def _share(exact: Sequence[Result]) -> str:
    return f"{sum(result.identical is True for result in exact)} of {len(exact)}"


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0


def _ettr(completed: Sequence[Result], reference_seconds: float) -> float:
    wall = sum(result.wall_seconds for result in completed)
    return reference_seconds * len(completed) / wall if wall else 0.0


def _by_fault(results: Sequence[Result]) -> Iterator[str]:
    yield "| fault | struck | most steps lost | runs with a broken promise |"
    yield "| --- | --- | --- | --- |"
    for fault in POOL:
        runs = [result for result in results if any(struck.name == fault.name for struck in result.struck)]
        times = sum(struck.name == fault.name for result in runs for struck in result.struck)
        lost = max((steps for result in runs for name, steps in result.lost if name == fault.name), default=0)
        yield f"| {fault.name} | {times} | {lost} | {sum(bool(result.problems) for result in runs)} |"


def _confusion(results: Sequence[Result]) -> Iterator[str]:
    yield "| injected | diagnosed as (times) |"
    yield "| --- | --- |"
    for fault in POOL:
        kinds = Counter(kind for result in results for name, kind, _ in result.diagnosed if name == fault.name)
        if kinds:
            yield f"| {fault.name} | {', '.join(f'{kind} ({times})' for kind, times in kinds.most_common())} |"


def _broken(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        plan = ", ".join(f"{entry.fault.name} at {entry.step}" for entry in result.plan)
        yield from (f"- run {result.number} ({plan}): {problem}" for problem in result.problems)
