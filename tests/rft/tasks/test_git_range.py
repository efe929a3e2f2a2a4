"""Functions that are new between two commits. # proves EVL-4"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from rft.config import TaskSourceSection
from rft.tasks.declarations import Passed
from rft.tasks.git_range import git_problems, git_tasks


def function(name: str, plus: int) -> str:
    return (
        f'def {name}(x):\n    """Add {plus} to x.\n\n    >>> {name}(1)\n    {1 + plus}\n'
        f'    >>> {name}(2)\n    {2 + plus}\n    """\n    return x + {plus}\n\n\n'
    )


def git(repository: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(repository), *identity, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(repository: Path, **files: str | None) -> str:
    for name, text in files.items():
        path = repository / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "change")
    return git(repository, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    return folder


def section(repository: Path, **params: Any) -> TaskSourceSection:
    return TaskSourceSection(name="new", type="git_declarations", path=str(repository), params=params)


def test_only_what_is_new_is_asked(repository: Path) -> None:
    first = commit(
        repository, a_py=function("same", 1) + function("other", 2), old_py=function("moved", 3) + function("gone", 4)
    )
    last = commit(
        repository,
        a_py="X = 1\n\n\n" + function("same", 1) + function("other", 20),
        old_py=None,
        new_py=function("moved", 3) + function("fresh", 5),
        pkg__deep_py=function("deep", 6),
        tests__t_py=function("tested", 7),
        test_a_py=function("tested_too", 8),
    )
    passed = Passed()
    tasks = list(git_tasks(section(repository, since=first), 0, passed))
    assert [task.id for task in tasks] == ["new/a.other", "new/new.fresh", "new/pkg.deep.deep"]
    assert passed.other_range == 2, "same, and moved, which stood in a file that was removed"
    assert tasks[0].metadata["since"] == first and tasks[0].metadata["until"] == last
    assert tasks[0].file == f"{repository}/a.py at {last[:12]}" and "x + 20" in str(tasks[0].gold)
    assert "return x + 20" not in tasks[0].messages[0].content and tasks[0].cluster == "a"


def test_the_range_is_of_commits_not_of_the_working_tree(repository: Path) -> None:
    first = commit(repository, a_py=function("one", 1))
    second = commit(repository, a_py=function("one", 1) + function("two", 2))
    commit(repository, a_py=function("one", 1) + function("two", 2) + function("three", 3))
    (repository / "a.py").write_text(function("dirty", 9))
    found = [task.id for task in git_tasks(section(repository, since=first, until=second), 0)]
    assert found == ["new/a.two"]
    assert len(list(git_tasks(section(repository, since=first), 0))) == 2


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({}, "params.since must name"),
        ({"since": "nothing"}, "has no commit 'nothing'"),
        ({"since": "--output=x"}, "has no commit '--output=x'"),
        ({"since": "HEAD", "untill": "HEAD"}, "untill is not a known key"),
    ],
)
def test_a_range_that_is_none_is_refused(repository: Path, params: dict[str, Any], says: str) -> None:
    commit(repository, a_py="X = 1\n")
    problems = list(git_problems(section(repository, **params), "tasks.sources.0"))
    assert [says in problem.message for problem in problems] == [True]


def test_a_folder_that_is_no_repository_is_refused(tmp_path: Path) -> None:
    problems = list(git_problems(section(tmp_path, since="HEAD"), "tasks.sources.0"))
    assert "is no git repository" in problems[0].message
