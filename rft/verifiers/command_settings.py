"""Settings of the verifier ``command``, and what can be wrong with them. No process is started here."""

from __future__ import annotations

import re
import shlex
from itertools import dropwhile
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import Field, StrictStr, model_validator

from rft.sandbox.run import Limits
from rft.verifiers.answers import Take
from rft.verifiers.toolchain import NoProgramError, find_program
from trainer.config import Count, Positive, Section

FILE = "{file}"
MAX_PROJECT_BYTES = 20_000_000
_MIB = 1 << 20
_EXECUTED = re.compile(
    r"(?:^|/)(?:build\.rs|conftest\.py|sitecustomize\.py|usercustomize\.py|setup\.py|noxfile\.py|[^/]+\.pth|[Mm]akefile"
    r"|GNUmakefile|Cargo\.toml|rust-toolchain(?:\.toml)?|CMakeLists\.txt|package\.json|pytest\.ini|tox\.ini|setup\.cfg"
    r"|pyproject\.toml|\.cargo/.*|\.git/.*)$"
)
_INTERPRETERS = re.compile(
    r"^(?:python[\d.]*|pypy[\d.]*|node|deno|bun|ruby|perl|php|lua|julia|Rscript|sh|bash|zsh|dash)$"
)
_RUNNING_VERBS = {
    "cargo": {"test", "t", "run", "r", "bench", "nextest"},
    "go": {"test", "run"},
    "npm": {"test", "run", "start"},
    "yarn": {"test", "run", "start"},
    "pnpm": {"test", "run", "start"},
    "dotnet": {"test", "run"},
}
_RUNNING_MODULES = {"pytest", "unittest", "doctest", "nose2", "coverage"}
_WRAPPERS = {"env", "timeout", "nice", "nohup", "stdbuf", "time", "setsid", "ionice", "chrt", "taskset", "xvfb-run"}
_ENVIRONMENTS = {"uv", "poetry", "pipenv", "pdm", "rye", "hatch"}
_SHELLS = {"sh", "bash", "zsh", "dash"}
_NO_PROGRAM = re.compile(r"^(?:[-+].*|\w+=.*|\d[\d.]*[smhd]?)$")
"""An option, an assignment or a duration, such as stand between a wrapper and its program."""

InnerPath = Annotated[StrictStr, Field(min_length=1)]


class LimitsSection(Section):
    timeout_seconds: Positive = 30.0
    """Wall time of one judgement; of processor time each process gets as much."""
    memory_mib: Count = 2048
    """Of all its processes together."""
    processes: Count = 128
    """Processes and threads at a time."""
    output_kib: Count = 1024
    """What it may print."""
    tmp_mib: Count = 512
    """What it may write."""
    files: Count = 20_000
    """How many files and folders it may write."""

    def limits(self) -> Limits:
        return Limits(
            cpu_seconds=max(1, int(self.timeout_seconds + 0.999)),
            wall_seconds=self.timeout_seconds,
            memory_bytes=self.memory_mib * _MIB,
            processes=self.processes,
            output_bytes=self.output_kib << 10,
            tmp_bytes=self.tmp_mib * _MIB,
            files=self.files,
        )


class CommandSettings(Section):
    command: Annotated[list[StrictStr], Field(min_length=1)]
    """The command and its arguments; {file} stands for the path of the file that holds what is judged."""
    proof: Literal["static", "output", "pytest"]
    """What proves a pass. static: the command doesn't run the answer (a compiler, a linter) and exits with 0, and
    rejects must_reject; output: what the answer's program prints is what each of the task's cases says; pytest: the
    task's tests, in a process of their own, count their passes."""
    file: InnerPath
    """Where what is judged is put, such as src/lib.rs; for pytest the module that tests import, such as solution.py."""
    take: Take = "code_block"
    """answer: the text as it is; code_block: its first fenced block; continuation: the task's prefix and the text."""
    project: StrictStr | None = None
    """Folder with the files around the answer, such as a crate; each judgement gets a copy."""
    readable: list[StrictStr] = []
    """More folders that the command needs, under their own paths, such as vendored packages."""
    tools: list[StrictStr] = []
    """More programs that the command starts."""
    environment: dict[StrictStr, StrictStr] = {}
    """Variables besides PATH, HOME, TMPDIR and LANG; nothing else of yours is seen."""
    build: list[StrictStr] = []
    """output: a command that comes first, such as a compiler; when it fails, the answer is rejected."""
    must_reject: list[StrictStr] = []
    """static: files that are wrong, at least one; a command that lets one pass is not used."""
    must_accept: list[StrictStr] = []
    """Files that are right without a task's own files; they prove the command before anything is judged."""
    must_contain: list[StrictStr] = []
    """Texts that have to stand in what is judged, such as fn main."""
    limits: LimitsSection = LimitsSection()
    """For one judgement."""

    @model_validator(mode="after")
    def _consistent(self) -> CommandSettings:
        if problem := inner_path_problem(self.file):
            raise ValueError(f"file {problem}")
        if _EXECUTED.search(self.file):
            raise ValueError(
                f"file {self.file} is one that tools run or are configured by, so an answer there could make anything "
                "pass; name a source file"
            )
        if self.proof == "static":
            _check_static(self)
        elif self.must_reject:
            raise ValueError(
                f"must_reject belongs to proof static; the cases or tests of proof {self.proof} do its work"
            )
        if self.build and self.proof != "output":
            raise ValueError("build belongs to proof output")
        if self.proof == "pytest":
            _check_pytest(self)
        return self


def _check_static(settings: CommandSettings) -> None:
    if running := runs_answer(settings.command):
        raise ValueError(
            f"{running} runs the answer, whose exit code then proves nothing: it can end with 0 before any test. Use "
            "proof output with the task's cases, or proof pytest"
        )
    if not settings.must_reject:
        raise ValueError(
            "must_reject is missing: give at least one file that is wrong, to show before sampling that the command "
            "can tell"
        )


def _check_pytest(settings: CommandSettings) -> None:
    if Path(settings.command[0]).name not in ("pytest", "py.test"):
        raise ValueError("with proof pytest the command begins with pytest")
    path = PurePosixPath(settings.file)
    if path.suffix != ".py" or len(path.parts) != 1 or not path.stem.isidentifier():
        raise ValueError("with proof pytest file is a module's name with .py, such as solution.py")


def runs_answer(command: list[str]) -> str | None:
    """The words of a command that would run what is judged, as far as that can be told; None when they do not."""
    name, *arguments = [Path(command[0]).name, *command[1:]]
    if name in _WRAPPERS or (name in _ENVIRONMENTS and arguments[:1] == ["run"]):
        inner = list(dropwhile(_NO_PROGRAM.match, arguments[name in _ENVIRONMENTS :]))
        return runs_answer(inner) if inner else None
    if name in _SHELLS and "-c" in arguments[:-1]:
        return _runs_in_shell(arguments[arguments.index("-c") + 1])
    words = [word for word in arguments if not word.startswith(("-", "+"))]
    if name in ("pytest", "py.test", "tox", "nox"):
        return name
    if words and words[0] in _RUNNING_VERBS.get(name, set()):
        return f"{name} {words[0]}"
    if _INTERPRETERS.match(name):
        if "-m" in arguments[:-1] and arguments[arguments.index("-m") + 1] in _RUNNING_MODULES:
            return f"{name} -m {arguments[arguments.index('-m') + 1]}"
        checks_only = name not in ("sh", "bash", "zsh", "dash", "ruby", "perl", "php", "node") or not {
            "-n", "-c", "-l", "--check", "-wc",
        } & set(arguments[: arguments.index(FILE)] if FILE in arguments else arguments)  # fmt: skip
        if words and words[0] == FILE and checks_only:
            return f"{name} {FILE}"
        if "-c" in arguments[:-1] and FILE in arguments[arguments.index("-c") + 1]:
            return f"{name} -c"
    return FILE if command[0] == FILE else None


def _runs_in_shell(line: str) -> str | None:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return None
    part: list[str] = []
    for word in [*words, ";"]:
        if not set(word) <= set(";&|()"):
            part.append(word)
        elif part:
            if running := runs_answer(part):
                return running
            part = []
    return None


def inner_path_problem(path: str) -> str | None:
    """Why a path can't be one inside the sandbox's folder."""
    parts = PurePosixPath(path)
    if not path or parts.is_absolute() or ".." in parts.parts or "\0" in path or path.endswith("/"):
        return f"{path!r} is no path below the folder that the command runs in"
    return None


def located(settings: CommandSettings, base: Path) -> CommandSettings:
    """The same with the folders and a program that is a path made absolute against ``base``."""

    def absolute(path: str) -> str:
        return str(base / Path(path).expanduser())

    first = settings.command[0]
    command = [absolute(first) if "/" in first and FILE not in first else first, *settings.command[1:]]
    changed: dict[str, object] = {"command": command}
    if settings.project is not None:
        changed["project"] = absolute(settings.project)
    for name in ("readable", "tools"):
        given: list[str] = getattr(settings, name)
        if given:
            changed[name] = [absolute(path) if name == "readable" or "/" in path else path for path in given]
    return settings.model_copy(update=changed)


def problems(settings: CommandSettings) -> list[str]:
    """What of the settings is not on this machine."""
    found = []
    for program in [*settings.command[:1], *settings.build[:1], *settings.tools]:
        if program.startswith("./") or FILE in program or (settings.build and program == settings.command[0]):
            continue  # made in the sandbox
        try:
            find_program(program)
        except NoProgramError as error:
            found.append(f"command: {error}")
    for folder in settings.readable:
        if not Path(folder).is_dir():
            found.append(f"readable: {folder} is no folder")
    if settings.project is not None:
        try:
            project_files(Path(settings.project), settings.file)
        except ProjectError as error:
            found.append(f"project: {error}")
    return found


class ProjectError(Exception):
    """A project that can't be copied; a sentence."""


def project_files(folder: Path, judged: str) -> dict[str, bytes]:
    """The files of a project but for the one that is judged; ``target`` and hidden folders but ``.cargo`` are left out.

    Raises ProjectError.
    """
    if not folder.is_dir():
        raise ProjectError(f"{folder} is no folder")
    found: dict[str, bytes] = {}
    size = 0
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder)
        if any(part in ("target", "__pycache__", ".git", ".venv") for part in inner.parts[:-1]):
            continue
        if path.is_symlink():
            raise ProjectError(f"{path} is a link; copy what it points to")
        if not path.is_file() or str(inner) == judged:
            continue
        size += path.stat().st_size
        if size > MAX_PROJECT_BYTES:
            raise ProjectError(
                f"{folder} is larger than {MAX_PROJECT_BYTES // 1_000_000} MB; put large parts into readable"
            )
        try:
            found[str(inner)] = path.read_bytes()
        except OSError as error:
            raise ProjectError(f"{path} cannot be read: {error.strerror}") from None
    return found
