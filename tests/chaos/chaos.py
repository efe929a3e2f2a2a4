"""`make chaos N=200 SEED=1`: random faults at random moments against tiny real runs, and a certificate.

Exit code 1 when a promise was broken; what is left of such a run stays in the work folder.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from certificate import certificate
from faults import BY_NAME, POOL, Fault
from memory_cgroup import NoMemoryCgroupError, memory_cgroup
from one_run import STEPS, Result, Strike, carry_out, make_plan, reference


def main() -> int:
    options = _options()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10_000)
    place = Path(tempfile.mkdtemp(prefix="mens-chaos-"))
    print(f"SEED={seed}, work folder {place}", flush=True)
    # One thread a run: the sums are the same on every machine, and two runs share two cores fairly.
    began = time.monotonic()
    undisturbed = reference(place, {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
    reference_seconds = time.monotonic() - began
    print(f"undisturbed run: {reference_seconds:.1f} s", flush=True)
    pool_of_faults = _possible()
    results: list[Result] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        waiting = [
            pool.submit(carry_out, number, _plan(options.only, seed, number, pool_of_faults), place, undisturbed)
            for number in options.again or range(1, options.runs + 1)
        ]
        for future in as_completed(waiting):
            results.append(future.result())
            print(_line(results[-1]), flush=True)
    results.sort(key=lambda result: result.number)
    where = f"{os.cpu_count()} cores, Python {platform.python_version()}, {options.jobs} runs at a time"
    text = certificate(results, seed, reference_seconds, where)
    print(text)
    if options.certificate:
        options.certificate.write_text(text)
    return 1 if any(result.problems for result in results) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--only", choices=sorted(BY_NAME), help="this fault alone, in every run")
    parser.add_argument("--again", metavar="NUMBER", type=int, nargs="+", help="only these runs, as the seed has them")
    parser.add_argument("--certificate", type=Path, help="also write the certificate here")
    return parser.parse_args()


def _possible() -> list[Fault]:
    try:
        with memory_cgroup(f"mens-chaos-{os.getpid()}", 1 << 30):
            return list(POOL)
    except NoMemoryCgroupError as error:
        print(f"left out: eat_memory ({error})", flush=True)
        return [fault for fault in POOL if fault.name != "eat_memory"]


def _plan(only: str | None, seed: int, number: int, pool: list[Fault]) -> tuple[Strike, ...]:
    choose = random.Random(f"{seed} {number}")
    if only is None:
        return make_plan(choose, pool)
    return (Strike(BY_NAME[only], choose.randrange(2, STEPS), choose.uniform(0.0, 0.06)),)


def _line(result: Result) -> str:
    faults = ", ".join(f"{struck.name}@{struck.attempt}.{struck.step}" for struck in result.struck) or "nothing struck"
    end = "; ".join(result.problems) or ("identical" if result.identical else "as it must be")
    return f"run {result.number:>4} {result.wall_seconds:5.0f} s  exit {result.exit_code}  {faults}: {end}"


if __name__ == "__main__":
    sys.exit(main())
