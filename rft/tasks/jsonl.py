"""Tasks from JSONL files: rows of our own shape, and those of three that public task sets come in.

- ours: ``prompt`` or ``messages``; ``id``, ``system``, ``tools``, ``verifier``, ``gold``, ``cluster``, ``metadata``;
  and how it is judged: ``check`` (an object for the verifier), or ``tests`` (Python) with ``entry_point``, ``setup``
  and ``prefix``, or ``answer``
- HumanEval: ``task_id``, ``prompt``, ``entry_point``, ``canonical_solution``, ``test``
- MBPP: ``text`` or ``prompt``, ``test_list``; ``task_id``, ``code``, ``test_setup_code``, ``test_imports``, ...
- GSM8K: ``question``, and ``answer`` whose last line is ``#### 42``

A field that none of them has is refused: it would be dropped.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from rft.tasks.files import matching_files, objects
from rft.tasks.python_prompt import code_prompt, fenced
from rft.tasks.task import Check, Task
from supervisor.problems import InputError
from trainer.data.messages import Message, RowError, check_conversation
from trainer.data.rows import check_json, messages_of, text_of, tools_of

PYTHON, MATHS = "python_tests", "maths"
JUDGED_BY: Mapping[str, frozenset[str]] = {
    "check": frozenset({"check"}),
    "tests": frozenset({"tests", "entry_point", "setup", "prefix"}),
    "answer": frozenset({"answer"}),
}
OWN = frozenset({"id", "prompt", "messages", "system", "tools", "verifier", "gold", "cluster", "metadata"})
HUMANEVAL = frozenset({"task_id", "prompt", "entry_point", "canonical_solution", "test"})
MBPP = frozenset(
    {
        "task_id", "text", "prompt", "code", "test_list", "test_setup_code", "test_imports", "challenge_test_list",
        "source_file",
    }
)  # fmt: skip
GSM8K = frozenset({"question", "answer", "id"})
_FINAL = re.compile(r"####\s*(.+?)\s*\Z")


def read_tasks(path: str, source: str, verifier: str | None = None) -> Iterator[Task]:
    """The tasks of a file or of the files of a glob, in order; streams.

    ``verifier`` judges them all; None for what each row says or its shape means. Raises InputError.
    """
    for file in matching_files(path):
        for line, fields in objects(file):
            yield task_of(fields, source, verifier, str(file), line)


def task_of(fields: dict[str, Any], source: str, verifier: str | None, file: str, line: int) -> Task:
    """One task from the fields of its object. Raises InputError with ``file:line``."""
    fields = {name: value for name, value in fields.items() if value is not None}
    try:
        task = _reader(fields)(fields, source, verifier)
        check_conversation([*task.messages, Message("assistant", "-")])
        if task.messages[-1].role not in ("user", "tool"):
            raise RowError("no question", "the last turn must be the user's (or a tool's): the answer is sampled")
        check_json(task.check.data, "how it is judged")
        if task.gold is not None and not task.gold.strip():
            raise RowError("empty gold answer", "its gold answer is empty; leave it out when there is none")
    except RowError as error:
        raise InputError(f"{file}:{line}: {error.problem}. Correct the task or remove it.") from None
    key = task.id or f"#{task.digest[:16]}"
    return msgspec.structs.replace(task, id=f"{source}/{key}", file=file, line=line)


def _reader(fields: Mapping[str, Any]) -> Callable[[dict[str, Any], str, str | None], Task]:
    """Whose shape this is; the task that a reader makes has its bare key as id, or none."""
    if "test_list" in fields:
        return _mbpp
    if "canonical_solution" in fields or ("test" in fields and "entry_point" in fields):
        return _humaneval
    if "question" in fields:
        return _gsm8k
    return _own


def _own(fields: dict[str, Any], source: str, verifier: str | None) -> Task:
    ways = [way for way in JUDGED_BY if way in fields]
    if len(ways) > 1:
        raise RowError("judged twice", f"the task says in two ways how it is judged: {' and '.join(ways)}; keep one")
    _only(fields, OWN.union(*JUDGED_BY.values()), "a task")
    named = text_of(fields["verifier"], "'verifier'") if "verifier" in fields else None
    if named and verifier and named != verifier:
        raise RowError("two verifiers", f"the task names the verifier {named!r}, its source {verifier!r}; keep one")
    judge = named or verifier or {"tests": PYTHON, "answer": MATHS}.get(ways[0] if ways else "")
    if judge is None:
        raise RowError(
            "not judged",
            "nothing says how its answers are judged: give the task tests, an answer, or a check with a verifier",
        )
    for way, names in JUDGED_BY.items():
        for name in names & fields.keys():
            if way not in ways:
                raise RowError("not judged", f"the field {name!r} belongs to {way!r}, which the task does not have")
    gold = text_of(fields["gold"], "'gold'") if "gold" in fields else None
    check = Check(judge, _judged_by(fields, ways[0] if ways else None))
    return Task(
        _key(fields, "id"), source, tuple(_question(fields)), check,
        tools_of(fields.get("tools")), gold, _text(fields, "cluster"), _object(fields, "metadata"),
    )  # fmt: skip


def _judged_by(fields: Mapping[str, Any], way: str | None) -> dict[str, Any]:
    if way is None:
        return {}
    if way == "check":
        return _object(fields, "check")
    if way == "answer":
        answer = fields["answer"]
        if isinstance(answer, int | float) and not isinstance(answer, bool):
            return {"answer": str(answer)}
        return {"answer": text_of(answer, "'answer'")}
    return _python(
        fields["tests"], _text(fields, "entry_point"), setup=_text(fields, "setup"), prefix=_text(fields, "prefix")
    )


def _python(tests: Any, entry_point: str | None, *, setup: str | None, prefix: str | None) -> dict[str, Any]:
    if isinstance(tests, list):
        tests = [text_of(test, f"tests[{index}]") for index, test in enumerate(tests)]
    else:
        tests = text_of(tests, "'tests'")
    if not tests or not "".join(tests).strip():
        raise RowError("no tests", "it has no tests, so no answer could be told from another")
    if isinstance(tests, str) and entry_point is None:
        problem = "tests given as one text define check(candidate), which needs an 'entry_point'"
        raise RowError("no entry point", problem)
    data: dict[str, Any] = {"tests": tests}
    for name, value in (("entry_point", entry_point), ("setup", setup), ("prefix", prefix)):
        if value:
            data[name] = value
    return data


def _humaneval(fields: dict[str, Any], source: str, verifier: str | None) -> Task:
    _only(fields, HUMANEVAL, "a task of HumanEval's shape")
    for name in ("prompt", "entry_point", "test"):
        if name not in fields:
            raise RowError("missing field", f"a task of HumanEval's shape has no {name!r}")
    prompt, entry_point = text_of(fields["prompt"], "'prompt'"), text_of(fields["entry_point"], "'entry_point'")
    solution = _text(fields, "canonical_solution")
    data = _python(text_of(fields["test"], "'test'"), entry_point, setup=None, prefix=prompt)
    key = _key(fields, "task_id")
    return Task(
        key, source, (Message("user", code_prompt(prompt)),), Check(verifier or PYTHON, data),
        gold=None if solution is None else fenced(prompt + solution), metadata={"task_id": key} if key else {},
    )  # fmt: skip


def _mbpp(fields: dict[str, Any], source: str, verifier: str | None) -> Task:
    _only(fields, MBPP, "a task of MBPP's shape")
    if ("text" in fields) == ("prompt" in fields):
        raise RowError("missing field", "a task of MBPP's shape has either 'text' or 'prompt'")
    question = text_of(fields["text" if "text" in fields else "prompt"], "the question")
    imports = fields.get("test_imports", [])
    if not isinstance(imports, list):
        raise RowError("not a list", "'test_imports' must be a list of import statements")
    setup = [text_of(line, "'test_imports'") for line in imports] + [_text(fields, "test_setup_code") or ""]
    tests = fields["test_list"]
    if not isinstance(tests, list) or not tests:
        raise RowError("no tests", "'test_list' must be a list of assert statements, at least one")
    data = _python(tests, None, setup="\n".join(filter(None, setup)), prefix=None)
    shown = (
        f"{question.strip()}\n\nYour code should pass this test:\n\n{fenced(tests[0])}\n\n"
        "Answer with one Python code block."
    )
    code = _text(fields, "code")
    key = _key(fields, "task_id")
    return Task(
        key, source, (Message("user", shown),), Check(verifier or PYTHON, data),
        gold=None if code is None else fenced(code), metadata={"task_id": key} if key else {},
    )  # fmt: skip


def _gsm8k(fields: dict[str, Any], source: str, verifier: str | None) -> Task:
    _only(fields, GSM8K, "a task of GSM8K's shape")
    if "answer" not in fields:
        raise RowError("missing field", "the question has no 'answer'")
    worked = text_of(fields["answer"], "'answer'")
    found = _FINAL.search(worked)
    if found is None:
        raise RowError("no final answer", "its 'answer' does not end with a line such as '#### 42'")
    question = text_of(fields["question"], "'question'")
    return Task(
        _key(fields, "id"), source, (Message("user", question),),
        Check(verifier or MATHS, {"answer": found.group(1).replace(",", "")}), gold=worked,
    )  # fmt: skip


def _question(fields: Mapping[str, Any]) -> list[Message]:
    if ("prompt" in fields) == ("messages" in fields):
        both = "prompt" in fields
        reason = "has both 'prompt' and 'messages'; keep one" if both else "has neither 'prompt' nor 'messages'"
        raise RowError("two questions" if both else "no question", f"the task {reason}")
    if "messages" in fields:
        messages = messages_of(fields["messages"], "messages")
    elif isinstance(fields["prompt"], list):
        messages = messages_of(fields["prompt"], "prompt")
    else:
        messages = [Message("user", text_of(fields["prompt"], "'prompt'"))]
    if system := _text(fields, "system"):
        if messages and messages[0].role == "system":
            raise RowError("two system prompts", "the task has a 'system' field and a system message; keep one")
        messages = [Message("system", system), *messages]
    return messages


def _only(fields: Mapping[str, Any], known: frozenset[str], what: str) -> None:
    for name in fields:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
            hint = f"meant is perhaps {close[0]!r}" if close else f"it has only {', '.join(sorted(known))}"
            raise RowError("unknown field", f"{what} has no field {name!r}, which would be dropped; {hint}")


def _key(fields: Mapping[str, Any], name: str) -> str:
    """An id as it stands in the row; empty when there is none."""
    value = fields.get(name, "")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    key = text_of(value, f"{name!r}")
    if name in fields and (not key.strip() or any(character in key for character in "\n\r\t")):
        raise RowError("bad id", f"{name!r} must be a short text without line breaks, it is {key[:40]!r}")
    return key


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    return text_of(fields[name], f"{name!r}") if name in fields else None


def _object(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = fields.get(name, {})
    if not isinstance(value, dict):
        raise RowError("not an object", f"{name!r} must be an object")
    return value
