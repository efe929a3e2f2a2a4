"""Functions of a repository that were added or changed between two commits: what a model trained before cannot know.

They become tasks as those of a source tree do (:mod:`rft.tasks.declarations`). What stood word for word in a changed
or removed file before is not new, wherever it stands now.
"""

from __future__ import annotations

import ast
import os
import random
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from rft.config import TaskSourceSection
from rft.tasks.declarations import EXAMPLES, Passed, Shown, file_tasks
from rft.tasks.task import Task
from supervisor.jobs import Problem
from supervisor.problems import InputError
from trainer.data.declarations import dedented, is_source_name, parsed
from trainer.data.keys import response_key

SINCE, UNTIL = "since", "until"
DEFAULT_UNTIL = "HEAD"
_QUIET = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}


def git_tasks(section: TaskSourceSection, seed: int, passed: Passed | None = None) -> Iterator[Task]:
    """Tasks of ``params.since``..``params.until`` by path and line; of more than ``max_tasks`` a sample by ``seed``.

    Raises InputError when the repository or a commit cannot be read.
    """
    tasks = list(_tasks(section, passed or Passed()))
    if section.max_tasks is not None and len(tasks) > section.max_tasks:
        chosen = random.Random(f"{seed}\0{section.name}").sample(range(len(tasks)), section.max_tasks)
        tasks = [tasks[index] for index in sorted(chosen)]
    yield from tasks


def range_problem(path: str, params: Mapping[str, Any]) -> str | None:
    """Why there is no such range, a sentence; None when there is."""
    if not isinstance(params.get(SINCE), str) or not isinstance(params.get(UNTIL, DEFAULT_UNTIL), str):
        return "params.since must name the commit, tag or branch after which functions count as new"
    try:
        _range(Path(path).expanduser(), params)
    except InputError as error:
        return str(error)
    return None


def _range(repository: Path, params: Mapping[str, Any]) -> tuple[str, str]:
    since, until = (_commit(repository, str(params.get(key, DEFAULT_UNTIL))) for key in (SINCE, UNTIL))
    return since, until


def _commit(repository: Path, name: str) -> str:
    try:
        return _git(repository, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}").decode().strip()
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().removeprefix("fatal: ").split("\n")[0]
        raise InputError(f"{repository} has no commit {name!r} ({said}). Name one that `git log` shows.") from None


def _tasks(section: TaskSourceSection, passed: Passed) -> Iterator[Task]:
    assert section.path is not None
    repository = Path(section.path).expanduser()
    since, until = _range(repository, section.params)
    shown: Shown = section.params.get(EXAMPLES, "first")
    old = {key for path in _changed(repository, since, until, "DM") for key in _keys(repository, since, path)}
    seen = set(old)
    with tempfile.TemporaryDirectory(prefix="mens-git-") as folder:
        for path in _changed(repository, since, until, "AM"):
            copy = Path(folder, path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(_blob(repository, until, path))
            for task in file_tasks(copy, Path(path.with_suffix("")), section, shown, passed):
                key = _key_of(copy, task.line)
                if key in seen:
                    passed.repeated += key not in old
                    passed.other_range += key in old
                    continue
                seen.add(key)
                metadata = {**task.metadata, SINCE: since, UNTIL: until}
                yield msgspec.structs.replace(task, file=f"{repository}/{path} at {until[:12]}", metadata=metadata)


def _changed(repository: Path, since: str, until: str, kinds: str) -> list[PurePosixPath]:
    """Python files that were (A)dded, (M)odified or (D)eleted, in order; a renamed one was deleted and added."""
    found = _git(
        repository, "diff", "--no-ext-diff", "--no-textconv", "--no-renames", "--name-only", "-z",
        f"--diff-filter={kinds}", since, until, "--", "*.py",
    )  # fmt: skip
    names = [name.decode("utf-8", "surrogateescape") for name in found.split(b"\0") if name]
    return [path for path in map(PurePosixPath, sorted(names)) if is_source_name(path)]


def _blob(repository: Path, commit: str, path: PurePosixPath) -> bytes:
    return _git(repository, "cat-file", "blob", f"{commit}:{path}")


def _keys(repository: Path, commit: str, path: PurePosixPath) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="mens-git-") as folder:
        copy = Path(folder, path.name)
        copy.write_bytes(_blob(repository, commit, path))
        source = parsed(copy)
        if source is not None:
            tree, lines = source
            for node in tree.body:
                if isinstance(node, ast.FunctionDef):
                    yield _key(node, lines)


def _key_of(file: Path, line: int) -> str:
    source = parsed(file)
    assert source is not None, "a task was made of it"
    tree, lines = source
    return next(_key(node, lines) for node in tree.body if isinstance(node, ast.FunctionDef) and node.lineno == line)


def _key(node: ast.FunctionDef, lines: list[str]) -> str:
    return response_key(dedented(lines[node.lineno - 1 : node.end_lineno]))


def _git(repository: Path, *arguments: str) -> bytes:
    """What git says. Raises CalledProcessError, or InputError when there is no git or no repository."""
    command = ["git", "-C", str(repository), "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", *arguments]
    try:
        return subprocess.run(
            command, capture_output=True, check=True, stdin=subprocess.DEVNULL, env={**os.environ, **_QUIET}
        ).stdout
    except FileNotFoundError:
        raise InputError("git is not installed, so no range of commits can be read; apt-get install git") from None
    except subprocess.CalledProcessError as error:
        if b"not a git repository" in error.stderr or b"cannot change to" in error.stderr:
            raise InputError(f"{repository} is no git repository. Name the folder of one.") from None
        if b"dubious ownership" in error.stderr:
            raise InputError(
                f"{repository} belongs to another user, and git refuses to read it. Clone it, or allow it with "
                f"git config --global --add safe.directory {repository}"
            ) from None
        raise


def git_problems(section: TaskSourceSection, at: str) -> Iterator[Problem]:
    known = (SINCE, UNTIL, EXAMPLES)
    for key in section.params:
        if key not in known:
            yield Problem(f"{at}.params.{key}", f"{at}.params.{key} is not a known key", f"Known: {', '.join(known)}.")
    if section.path is not None and (problem := range_problem(section.path, section.params)):
        yield Problem(f"{at}.params", problem)
