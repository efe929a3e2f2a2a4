"""``mens-sup eval gate``: may this model take the place of the last one? Light; imports when it runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evalsuite.gate_result import GateResult

EXAMPLE = """example:
  mens-sup eval gate configs/gates/quickstart.yaml
  mens-sup eval gate GATE.yaml --json --out release-3.gate.json"""


def add_actions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser(
        "gate",
        help="compare a candidate with its base and the last release; PASS, FAIL or INCONCLUSIVE",
        description=(
            "Compare a candidate with its base and with the last accepted release, by scores of `mens-sup eval run`. "
            "Exit code 0: PASS; 1: FAIL; 3: INCONCLUSIVE, with what would settle it; 2: it could not be judged, with "
            "the reason, which is never a pass. The result is a file with the digests of all that was read."
        ),
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("gate", metavar="GATE", type=Path, help="YAML file; see docs/gates.md")
    parser.add_argument("--out", metavar="FILE", type=Path, help="the result (GATE.result.json beside the gate's file)")
    parser.add_argument("--html", metavar="FILE", type=Path, help="the result as a page")
    parser.add_argument("--json", dest="as_json", action="store_true", help="the result as JSON on standard output")
    parser.set_defaults(command=gate_command)


def gate_command(options: argparse.Namespace) -> int:
    import msgspec

    from evalsuite.gate_result import gate_digest, write_gate
    from supervisor.problems import InputError

    out = options.out or options.gate.with_name(f"{options.gate.stem}.result.json")
    _check_out(out)
    try:
        out.unlink(missing_ok=True)  # an old verdict must not stand for this one, whatever happens
        result = run_gate(options.gate)
        write_gate(out, result)
    except OSError as error:
        raise InputError(f"{out}: the result cannot be written: {error.strerror or error}.") from None
    if options.html is not None:
        from evalsuite.report.write import write_gate_page

        write_gate_page(options.html, result)
    if options.as_json:
        plain = {**msgspec.to_builtins(result), "sha256": gate_digest(result)}
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(plain), indent=2).decode() + "\n")
    else:
        show_gate(result)
        sys.stdout.write(f"{out}\n")
    return result.verdict.exit_code


def _check_out(out: Path) -> None:
    """Raises InputError for a file that is no result of a gate: it would be lost."""
    import json

    from supervisor.problems import InputError

    if not out.is_file():
        return
    try:
        found = json.loads(out.read_bytes())
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or not {"result", "sha256"} <= found.keys():
        raise InputError(f"{out} is a file and no result of a gate, so it is not overwritten. Name another --out.")


def show_gate(result: GateResult) -> None:
    """On standard output, for people; the verdict comes last, where one looks."""
    from evalsuite.report.tables import gate_lines, gate_table, show

    show(*([gate_table(result)] if result.checks else []), gate_lines(result))


def run_gate(file: Path) -> GateResult:
    """Read and judge. Raises ConfigError for a gate that is no gate; whatever is missing otherwise is in the result."""
    from evalsuite.gate_config import load_gate
    from evalsuite.gate_inputs import read_inputs

    gate = load_gate(file)
    own, benches = read_inputs(gate, file)
    from evalsuite.gate import judge

    return judge(gate, own, benches)
