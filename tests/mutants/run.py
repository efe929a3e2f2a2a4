"""Applies every mutant to a copy of the packages and runs its test there: ``python tests/mutants/run.py [NAME ...]``.

A mutant whose test fails is killed, one whose test passes has survived; one whose text is not found, or that cannot
even be imported, is an error. What takes long to import is imported once, before forking.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from mutant import Mutant
from mutants import MUTANTS

PROJECT = Path(__file__).parents[2]
PACKAGES = ("supervisor", "trainer", "rft", "evalsuite")
COPIED = (*PACKAGES, "tests", "configs", "benchmarks")
"""Tests as well: who edits while mutants run must not confuse them."""
IMPORTED_BEFORE = ("torch", "transformers", "trl", "peft", "bitsandbytes", "datasets", "hypothesis", "pytest")
PATIENCE_SECONDS = 3600.0
TESTS_FAILED = 1
"""pytest's exit code; 2 and above are errors of another kind."""


class Fate(StrEnum):
    KILLED = "killed"
    SURVIVED = "SURVIVED"
    NOT_FOUND = "ERROR: its text is not found once"
    BROKEN = "ERROR: the test did not run"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help="mutants whose name contains this; all by default")
    parser.add_argument("--check", action="store_true", help="only look whether every text is found")
    options = parser.parse_args(arguments)
    chosen = [mutant for mutant in MUTANTS if not options.names or any(name in mutant.name for name in options.names)]
    lost = [mutant for mutant in chosen if mutated(mutant) is None]
    for mutant in lost:
        print(f"{Fate.NOT_FOUND}: {mutant.name} in {mutant.file}")
    if options.check or lost:
        return 1 if lost else 0
    return run(chosen)


def run(chosen: Sequence[Mutant]) -> int:
    """The exit code: 0 when all tests pass on our source and all mutants are killed."""
    for name in IMPORTED_BEFORE:
        importlib.import_module(name)
    tests = list(dict.fromkeys(mutant.test for mutant in chosen))
    with tempfile.TemporaryDirectory(prefix="mens-mutants-") as folder:
        copy = copied(Path(folder))
        code, log = _pytest(copy, tests)
        if code != 0:
            print(log, f"the tests fail on the source as it is (exit code {code}); no mutant was tried", sep="\n")
            return 1
        print(f"{len(tests)} tests pass on the source as it is", flush=True)
        fates = []
        for mutant in chosen:
            started = time.monotonic()
            fate, log = try_mutant(copy, mutant)
            fates.append(fate)
            print(f"{fate:<9} {mutant.proves:<7} {mutant.name} ({time.monotonic() - started:.0f} s)", flush=True)
            if fate is not Fate.KILLED:
                print(log)
    killed = fates.count(Fate.KILLED)
    print(f"{killed} of {len(chosen)} mutants killed")
    return 0 if killed == len(chosen) else 1


def copied(folder: Path) -> Path:
    """Everything that tests need, in ``folder``."""
    for name in COPIED:
        shutil.copytree(PROJECT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "pyproject.toml", folder)
    return folder


def mutated(mutant: Mutant, source: Path = PROJECT) -> str | None:
    """The file of ``source`` with the mutant's edits, None when an old text does not stand there exactly once."""
    text = (source / mutant.file).read_text(encoding="utf-8")
    for old, new in mutant.edits:
        if text.count(old) != 1:
            return None
        text = text.replace(old, new)
    return text


def try_mutant(copy: Path, mutant: Mutant) -> tuple[Fate, str]:
    text = mutated(mutant, copy)
    if text is None:
        return Fate.NOT_FOUND, ""
    with _edited(copy / mutant.file, text):
        code, log = _pytest(copy, [mutant.test])
    if code == 0:
        return Fate.SURVIVED, log
    return (Fate.KILLED if code == TESTS_FAILED else Fate.BROKEN), log


@contextlib.contextmanager
def _edited(file: Path, text: str) -> Iterator[None]:
    before = file.read_bytes()
    file.write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        file.write_bytes(before)


def _pytest(copy: Path, tests: Sequence[str]) -> tuple[int, str]:
    """pytest's exit code and output; our packages are those of ``copy``, also in processes that a test starts."""
    log = copy / "pytest.log"
    child = os.fork()
    if child == 0:
        _become(copy, tests, log)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), log.read_text(errors="replace")
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            return -9, f"{log.read_text(errors='replace')}\nended after {PATIENCE_SECONDS:.0f} s"
        time.sleep(0.05)


def _become(copy: Path, tests: Sequence[str], log: Path) -> None:
    """In the child: never returns."""
    code = 70
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.chdir(copy)
        # No byte code: a file that is edited twice within a second would be taken for the one before.
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        os.environ["PYTHONPATH"] = str(copy)
        sys.path.insert(0, str(copy))
        loaded = [name for name in sys.modules if name.partition(".")[0] in PACKAGES]
        assert not loaded, f"imported before forking: {loaded}"
        for package in PACKAGES:
            found = importlib.import_module(package).__file__
            assert found is not None and Path(found).is_relative_to(copy), f"{package} is not the copy's but {found}"
        import pytest

        code = int(pytest.main([*tests, "-q", "-x", "--tb=short", f"--rootdir={copy}", "-p", "no:warnings"]))
    except Exception as error:  # noqa: BLE001  # whatever it is, it is told and must not return into the parent's code
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
