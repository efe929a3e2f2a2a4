"""Functions of Python source trees as tasks: the signature and the docstring ask, the docstring's examples judge.

Names, code and prose are those of the source. A function is taken when it stands by itself (what it needs of its
module are imports of pure modules and a few short definitions, which the prompt shows) and when its docstring has
examples whose results are literals. Whether they are deterministic and right is proven by judging the source's own
function before anything is sampled.
"""

from __future__ import annotations

import ast
import doctest
import hashlib
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rft.config import TaskSourceSection
from rft.tasks.code_context import ModuleContext
from rft.tasks.python_prompt import code_prompt, fenced
from rft.tasks.task import Check, Task
from trainer.data.declarations import MAX_ANSWER_CHARACTERS, STDLIB, dedented, files_of, parsed, signature_of
from trainer.data.keys import response_key
from trainer.data.messages import Message

VERIFIER = "python_tests"
HELD_OUT_ONE_IN = 4
"""One file of so many is held out."""
EXAMPLES = "examples"
VALUE_MODULES = frozenset({"collections", "datetime", "decimal", "fractions", "math", "string"})
"""What an example may import: what these make travels to another process by value."""
Shown = Literal["first", "none", "all"]
"""Which of the examples the prompt shows: an example that is shown can be answered by heart, one that is not decides
only what the prose says. All of them judge."""
CHOICES: tuple[Shown, ...] = ("first", "none", "all")


@dataclass
class Passed:
    """Functions with a docstring that were not taken, by why."""

    without_examples: int = 0
    not_alone: int = 0
    other_range: int = 0
    repeated: int = 0


def declaration_tasks(section: TaskSourceSection, seed: int, passed: Passed | None = None) -> Iterator[Task]:
    """Tasks of a tree by path and line; of more than ``max_tasks`` a sample by the job's ``seed``. Raises OSError."""
    assert section.path is not None
    passed = passed or Passed()
    shown: Shown = section.params.get(EXAMPLES, "first")
    tasks = list(_tasks(section, shown, passed))
    if section.max_tasks is not None and len(tasks) > section.max_tasks:
        chosen = random.Random(f"{seed}\0{section.name}").sample(range(len(tasks)), section.max_tasks)
        tasks = [tasks[index] for index in sorted(chosen)]
    yield from tasks


def _tasks(section: TaskSourceSection, shown: Shown, passed: Passed) -> Iterator[Task]:
    assert section.path is not None
    root = Path(section.path).expanduser()
    found: dict[bool, list[Task]] = {False: [], True: []}
    files = files_of(root)
    top = _top(root, files)
    for file in files:
        module = file.relative_to(top).with_suffix("")
        found[_is_held_out(module)] += file_tasks(file, module, section, shown, passed)
    wanted = section.range == "held_out"
    # The same function may stand in two files, of which one is held out.
    seen = set() if wanted else {response_key(task.gold or "") for task in found[True]}
    passed.other_range += len(found[not wanted])
    ids = set()
    for task in found[wanted]:
        key = response_key(task.gold or "")
        if key in seen or task.id in ids:
            passed.repeated += 1
            continue
        seen.add(key)
        ids.add(task.id)
        yield task


def _top(root: Path, files: Sequence[Path]) -> Path:
    if root != STDLIB:
        return root
    return Path(ast.__file__).parent


def _is_held_out(module: Path) -> bool:
    """By its place in the tree alone, so that a function is never on both sides, whatever changes around it."""
    return hashlib.sha256(module.as_posix().encode("utf-8", "surrogateescape")).digest()[-1] % HELD_OUT_ONE_IN == 0


def file_tasks(
    file: Path, module: Path, section: TaskSourceSection, shown: Shown, passed: Passed
) -> Iterator[Task]:
    """The tasks of one file, which is called ``module`` in ids; by line. Nothing where it does not parse."""
    source = parsed(file)
    if source is None or ">>>" not in "".join(source[1]):
        return
    tree, lines = source
    context: ModuleContext | None = None
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_") or node.decorator_list:
            continue
        documentation = ast.get_docstring(node)
        if documentation is None:
            continue
        parts = _parts(documentation)
        examples = [part for part in parts if isinstance(part, doctest.Example)]
        tests = _tests(examples, node.name, module.name)
        if len(tests) < (2 if shown == "first" else 1):
            passed.without_examples += 1
            continue
        context = context or ModuleContext(tree, lines)
        needed = context.needed(node)
        answer = dedented(lines[node.lineno - 1 : node.end_lineno])
        if needed is None or len(answer) > MAX_ANSWER_CHARACTERS:
            passed.not_alone += 1
            continue
        yield _task(node, lines, parts, tests, needed, answer, file, module, section, shown)


def _task(
    node: ast.FunctionDef,
    lines: list[str],
    parts: Sequence[str | doctest.Example],
    tests: Sequence[str],
    needed: str,
    answer: str,
    file: Path,
    module: Path,
    section: TaskSourceSection,
    shown: Shown,
) -> Task:
    signature = signature_of(node, lines, node.lineno - 1)
    prompt = f"{needed}{signature}\n{_docstring(parts, shown)}\n"
    name = ".".join([*module.parts, node.name])
    return Task(
        id=f"{section.name}/{name}",
        source=section.name,
        messages=(Message("user", code_prompt(prompt)),),
        check=Check(
            section.verifier.name if section.verifier else VERIFIER,
            {"tests": list(tests), "entry_point": node.name, "prefix": prompt, **_withheld(module, section)},
        ),
        gold=fenced(needed + answer),
        cluster=module.as_posix(),
        metadata={"name": name, EXAMPLES: shown},
        file=str(file),
        line=node.lineno,
    )


def _withheld(module: Path, section: TaskSourceSection) -> dict[str, list[str]]:
    """The module that has the original, which an answer must not import where it is installed."""
    parts = module.parts[:-1] if module.name == "__init__" else module.parts
    ours = Path(section.path or "").expanduser() == STDLIB
    if not parts or (parts[0] in sys.stdlib_module_names and not ours):  # only its namesake is installed
        return {}
    return {"unimportable": [".".join(parts)]}


def _parts(documentation: str) -> list[str | doctest.Example]:
    """Prose and examples in turns; nothing where doctest cannot read them."""
    try:
        return doctest.DocTestParser().parse(documentation)
    except ValueError:  # a prompt without a blank after it, or with another indentation
        return []


def _docstring(parts: Sequence[str | doctest.Example], shown: Shown) -> str:
    """The docstring with the examples that are to be shown, indented as a function's body."""
    text = ""
    examples = 0
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        examples += bool(part.want)
        if shown == "all" or (shown == "first" and (examples == 0 or (examples == 1 and part.want))):
            text += _as_written(part)
    text = re.sub(r"\n{3,}", "\n\n", text.strip()).replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    if text.endswith('"'):
        text = f'{text[:-1]}\\"'
    body = f'"""{text}\n"""' if "\n" in text else f'"""{text}"""'
    return "\n".join(f"    {line}".rstrip() for line in body.split("\n"))


def _as_written(example: doctest.Example) -> str:
    first, *rest = example.source.rstrip("\n").split("\n")
    lines = [f">>> {first}", *(f"... {line}".rstrip() for line in rest), *example.want.rstrip("\n").split("\n")]
    return "".join(f"{' ' * example.indent}{line}".rstrip() + "\n" for line in lines)


def _tests(examples: Sequence[doctest.Example], name: str, module: str) -> list[str]:
    """An assertion for every example that calls the function and gives a literal, after the statements it needs."""
    before: list[ast.stmt] = []
    tests = []
    for example in examples:
        try:
            tree = ast.parse(example.source)
        except SyntaxError:
            continue
        tree = ast.fix_missing_locations(_Unqualified(module, name).visit(tree))
        statements = [node for node in tree.body if not _imports(node, module)]
        if not example.want:
            before += statements
            continue
        wanted = _literal(example.want)
        if wanted is None or example.exc_msg or example.options or len(statements) != 1:
            continue
        (only,) = statements
        if not isinstance(only, ast.Expr) or not _is_known([*before, only], name):
            continue
        needed = _needed_for(only, before)
        if any(_calls(node, name) for node in [*needed, only]):
            body = [ast.unparse(node) for node in needed]
            tests.append("\n".join([*body, f"assert {ast.unparse(only)} == {wanted}"]))
    return list(dict.fromkeys(tests))


def _literal(want: str) -> str | None:
    """A result as an expression, when it is one that says everything: numbers, texts, and containers of them."""
    text = " ".join(want.split("\n")).strip()
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return None if value is Ellipsis else f"({text})"


class _Unqualified(ast.NodeTransformer):
    """``textwrap.shorten(...)`` as ``shorten(...)``: what is judged is a function, not a module."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if node.attr == self._name and isinstance(node.value, ast.Name) and node.value.id == self._module:
            return ast.copy_location(ast.Name(self._name, node.ctx), node)
        return self.generic_visit(node)


def _imports(node: ast.stmt, module: str) -> bool:
    """Whether it imports the module that the function is from, or names of it."""
    if isinstance(node, ast.Import):
        return all(alias.name.split(".")[-1] == module for alias in node.names)
    return isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[-1] == module


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, context)}


def _bound(node: ast.AST) -> set[str]:
    aliases = {
        (alias.asname or alias.name).split(".")[0]
        for each in ast.walk(node)
        if isinstance(each, ast.Import | ast.ImportFrom)
        for alias in each.names
    }
    arguments = {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
    defined = {each.name for each in ast.walk(node) if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    return _names(node, ast.Store) | aliases | arguments | defined


def _is_known(statements: Sequence[ast.stmt], name: str) -> bool:
    """Whether the last statement uses only the function, builtins that do nothing to the world, and what the
    statements before it define."""
    needed = _needed_for(statements[-1], statements[:-1])
    if not all(_gives_values(node) for node in [*needed, statements[-1]]):
        return False
    bound = set().union(*(_bound(node) for node in [*needed, statements[-1]]), {name})
    used = set().union(*(_names(node, ast.Load) for node in [*needed, statements[-1]]))
    return all(each in bound or each in ModuleContext.BUILTINS for each in used)


def _gives_values(statement: ast.stmt) -> bool:
    """Whether it makes nothing but values, which can be handed to a program in another process: no functions, no
    classes, no objects such as open files."""
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda | ast.GeneratorExp):
            return False
        if isinstance(node, ast.Import) and not all(alias.name in VALUE_MODULES for alias in node.names):
            return False
        if isinstance(node, ast.ImportFrom) and node.module not in VALUE_MODULES:
            return False
    return True


def _needed_for(node: ast.stmt, before: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements before an example that it depends on, by the names that they bind or change."""
    wanted = _names(node, ast.Load)
    needed: list[ast.stmt] = []
    for statement in reversed(before):
        touches = _bound(statement) | (_names(statement, ast.Load) if isinstance(statement, ast.Expr) else set())
        if touches & wanted - ModuleContext.BUILTINS:
            needed.insert(0, statement)
            wanted |= _names(statement, ast.Load)
    return needed


def _calls(node: ast.AST, name: str) -> bool:
    return name in _names(node, ast.Load)
