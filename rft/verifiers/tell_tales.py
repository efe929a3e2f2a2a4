"""Programs that give away that they were run, for commands that must not run what they judge."""

from __future__ import annotations

from pathlib import PurePosixPath

_TEMPLATES = {
    (".py", ".pyi"): 'import os\nos.write(1, b"{0}")\nos.write(1, b"{1}")\nos._exit(0)\n',
    (".sh", ".bash"): "printf %s {0}\nprintf %s {1}\nexit 0\n",
    (".js", ".mjs", ".cjs", ".ts"): 'process.stdout.write("{0}")\nprocess.stdout.write("{1}")\n',
    (".rb",): 'print "{0}"\nprint "{1}"\n',
    (".pl",): 'print "{0}";\nprint "{1}";\n',
    (".php",): '<?php\necho "{0}";\necho "{1}";\n',
    (".lua",): 'io.write("{0}")\nio.write("{1}")\n',
    (".c", ".cc", ".cpp"): '#include <stdio.h>\nint main(void) {{ printf("{0}"); printf("{1}"); return 0; }}\n',
    (".rs",): 'fn main() {{ print!("{0}"); print!("{1}"); }}\n',
    (".go",): 'package main\nimport "fmt"\nfunc main() {{ fmt.Print("{0}"); fmt.Print("{1}") }}\n',
}  # fmt: skip


def tell_tale(file: str, mark: str) -> str | None:
    """A program for ``file``, by its suffix, that prints ``mark`` when it is run; its text does not hold it whole, so a
    message that quotes the text does not either. None for a language that is not known."""
    suffix = PurePosixPath(file).suffix.lower()
    half = len(mark) // 2
    for suffixes, template in _TEMPLATES.items():
        if suffix in suffixes:
            return template.format(mark[:half], mark[half:])
    return None
