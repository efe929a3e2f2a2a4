"""What a gate found: an artefact with the digests of all that it read. Light: no numpy.

``export`` and the model card read it, so it says what was judged and not where.
"""

from __future__ import annotations

import enum
import hashlib
from pathlib import Path

import msgspec

from evalsuite.scores import ModelIdentity
from supervisor.problems import InputError
from supervisor.protocol.atomic import write_atomic

FORMAT = 1


class GateVerdict(enum.Enum):
    """PASS and FAIL are each wrong with a chance of at most 1 - confidence; UNJUDGED: there was no fair comparison."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    UNJUDGED = "unjudged"

    @property
    def exit_code(self) -> int:
        return {"pass": 0, "fail": 1, "inconclusive": 3, "unjudged": 2}[self.value]


class GateInput(msgspec.Struct, frozen=True):
    """Something that was read: ``role`` gate, bench, candidate, base or release; ``sha256`` of what it said."""

    role: str
    bench: str
    path: str
    sha256: str
    model: ModelIdentity | None = None


class CheckResult(msgspec.Struct, frozen=True):
    """One metric of one bench against one reference. Scores and ``difference`` (candidate less reference) are means
    over tasks; ``lower`` and ``upper`` each hold with the gate's confidence.

    ``p_pass``, ``p_fail``: how likely such data were if the claim were false; ``p_fail_corrected`` for all checks of
    the gate together. ``detectable_drop``: the smallest drop that ends in FAIL with the gate's power;
    ``unchanged_passes``: how often a model like the reference would PASS; ``settled_by``: what would settle an
    INCONCLUSIVE. ``asked``: tasks that were looked at, of ``tasks``; ``units``: independent ones among these.
    """

    bench: str
    metric: str
    rule: str
    margin: float | None
    against: str
    verdict: GateVerdict
    candidate: float
    reference: float
    difference: float
    lower: float
    upper: float
    p_pass: float
    p_fail: float
    p_fail_corrected: float
    method: str
    tasks: int
    asked: int
    units: int
    samples_per_task: int
    detectable_drop: float
    unchanged_passes: float
    settled_by: str = ""


class GateResult(msgspec.Struct, frozen=True):
    """``reasons``: why it could not be judged, or what decided. ``known``: sampling more would change nothing."""

    format: int
    name: str
    verdict: GateVerdict
    reasons: tuple[str, ...]
    checks: tuple[CheckResult, ...]
    inputs: tuple[GateInput, ...]
    confidence: float
    power: float
    draws: int
    seed: int
    known: bool = True


class _File(msgspec.Struct, frozen=True):
    result: GateResult
    sha256: str


def gate_digest(result: GateResult) -> str:
    """SHA-256 by which a model card names the result."""
    return hashlib.sha256(msgspec.json.encode(result, order="sorted")).hexdigest()


def write_gate(path: Path, result: GateResult) -> None:
    """Whole or not at all. Raises OSError."""
    data = msgspec.json.encode(_File(result, gate_digest(result)))
    write_atomic(path, msgspec.json.format(data, indent=1) + b"\n")


def read_gate(path: Path) -> GateResult:
    """Raises InputError when it is missing, damaged, changed by hand or of another format."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: the gate has not run. Run: mens-sup eval gate GATE.yaml.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is no result of a gate ({error}). Run the gate again.") from None
    if found.result.format != FORMAT:
        raise InputError(f"{path} is of format {found.result.format}, this program reads {FORMAT}. Run the gate again.")
    if found.sha256 != gate_digest(found.result):
        raise InputError(f"{path} is damaged or was changed by hand: its digest does not fit. Run the gate again.")
    return found.result
