"""What `--help` says, and completion in a shell."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess

import pytest

from supervisor.cli import _parser, _split_command, main
from supervisor.command_line import commands_below


def leaves() -> list[tuple[str, argparse.ArgumentParser]]:
    """Every command that does something."""
    return [
        (" ".join(words), parser)
        for words, parser in commands_below(_parser([]))
        if not any(isinstance(action, argparse._SubParsersAction) for action in parser._actions)
    ]


def examples(parser: argparse.ArgumentParser) -> list[str]:
    """The command lines in its ``--help``, each as a shell would take it."""
    shown = re.split(r"^examples?:", parser.format_help(), flags=re.MULTILINE)[-1].replace("\\\n", " ")
    return [line.strip() for line in shown.splitlines() if line.strip().startswith("mens-sup ")]


# proves SUP-19: every command has a --help with examples, and every example is one that the command takes
def test_every_command_has_examples_that_hold() -> None:
    parser = _parser([])
    found = leaves()
    assert len(found) > 25
    for words, leaf in found:
        assert leaf.description and leaf.description.endswith("."), words
        assert examples(leaf), f"mens-sup {words} --help has no example"
        for line in examples(leaf):
            plain = line.partition(" > ")[0].partition(" | ")[0].partition("; ")[0]
            given, _ = _split_command(shlex.split(plain, comments=True)[1:])
            try:
                parser.parse_args(given)
            except SystemExit:
                pytest.fail(f"the example of mens-sup {words} is none: {line}")
            assert " ".join(given).startswith(words), (words, line)


def test_help_says_what_the_command_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["watch", "--help"])
    shown = capsys.readouterr().out
    assert "q leaves" in " ".join(shown.split()) and "\n  mens-sup watch runs/a --no-live\n" in shown


# proves SUP-19: completion in shells
def test_completion_knows_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    asked = "COMP_WORDS=(mens-sup checkpoints ver); COMP_CWORD=2; _shtab_mens_sup; echo \"${COMPREPLY[@]}\""
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run([bash, "-c", f"{script}\n{asked}"], capture_output=True, text=True, check=True)
    assert "verify" in done.stdout.split(), done.stderr
    assert main(["completion", "zsh"]) == 0
    assert "#compdef mens-sup" in capsys.readouterr().out
