"""PASS, FAIL, INCONCLUSIVE: what the differences between a candidate and its references are worth. Pure.

A check compares the candidate with one reference by one metric, task by task. With level a = 1 - confidence:

- ``PASS`` when the difference is shown to lie above -margin (not_worse), or above 0 (better), with level a. A gate
  passes only when every check does, so it passes wrongly with a chance of at most a, however many checks it has.
- ``FAIL`` when it is no PASS and the difference is shown to lie below 0, with level a for all checks of the gate
  together (Holm). A model that is no worse than its references fails with a chance of at most a. A drop that is real
  but shown to be smaller than the margin is a PASS.
- ``INCONCLUSIVE`` otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from evalsuite.check import Wanted, check, paired
from evalsuite.gate_config import CheckSection, GateSections
from evalsuite.gate_inputs import BenchInputs
from evalsuite.gate_result import FORMAT, CheckResult, GateInput, GateResult, GateVerdict
from evalsuite.metrics import task_scores
from evalsuite.scores import Scores
from evalsuite.statistics.corrections import holm
from supervisor.problems import InputError


def judge(gate: GateSections, own: Sequence[GateInput], benches: Sequence[BenchInputs]) -> GateResult:
    """The gate's verdict on what was read. With any reason against a comparison, nothing is compared."""
    reasons = list(dict.fromkeys(reason for bench in benches for reason in bench.reasons))
    checks: list[CheckResult] = []
    if not reasons:
        try:
            checks = run_checks(gate, benches)
        except InputError as error:
            reasons = [str(error)]
    inputs = (*own, *(each for bench in benches for each in bench.inputs))
    verdict, decided = (GateVerdict.UNJUDGED, reasons) if reasons else gate_verdict(checks)
    unasked = any(each.asked < each.tasks for each in checks if each.verdict is GateVerdict.INCONCLUSIVE)
    return GateResult(
        FORMAT, gate.name, verdict, tuple(decided), tuple(checks), inputs, gate.confidence, gate.power, gate.draws,
        gate.seed, verdict is not GateVerdict.INCONCLUSIVE or not unasked,
    )  # fmt: skip


def run_checks(gate: GateSections, benches: Sequence[BenchInputs]) -> list[CheckResult]:
    """Every check of every bench against every reference there is. Raises InputError."""
    alpha = 1 - gate.confidence
    wanted = [
        (bench, section, against)
        for bench in benches
        for section in bench.section.checks
        for against in section.against
        if against in bench.references
    ]
    for bench, section, against in wanted:
        _require_height(bench.references[against], section, against)
    levels = Wanted(alpha, alpha / len(wanted), gate.power, gate.draws, gate.seed)
    found = []
    for bench, section, against in wanted:
        reference, order = bench.references[against], bench.section.sequential
        assert bench.candidate is not None  # or there would be a reason
        data = paired(bench.candidate, reference, section.metric, order)
        found.append(check(bench.candidate.bench.name, section, against, data, reference, levels, order))
    corrected = holm([each.p_fail for each in found])
    return [decided(each, p_fail, alpha) for each, p_fail in zip(found, corrected, strict=True)]


def _require_height(reference: Scores, section: CheckSection, against: str) -> None:
    """Raises InputError where a candidate that solves nothing would be no worse than the margin allows."""
    if section.margin is None:
        return
    height = float(task_scores(reference.tasks, section.metric).mean())
    if height <= section.margin:
        raise InputError(
            f"{reference.bench.name}, {section.metric}: the {against} scores {height:.4f}, no more than the margin of "
            f"{section.margin:g}, so a candidate that solves nothing would pass. Lower the margin, or take a bench of "
            f"which the {against} can do more."
        )


def decided(found: CheckResult, p_fail: float, alpha: float) -> CheckResult:
    """With the p-value that counts among all checks of the gate, and the verdict that follows."""
    if found.p_pass <= alpha:
        verdict = GateVerdict.PASS
    else:
        verdict = GateVerdict.FAIL if p_fail <= alpha else GateVerdict.INCONCLUSIVE
    settled = found.settled_by if verdict is GateVerdict.INCONCLUSIVE else ""
    return msgspec.structs.replace(found, p_fail_corrected=p_fail, verdict=verdict, settled_by=settled)


def gate_verdict(checks: Sequence[CheckResult]) -> tuple[GateVerdict, list[str]]:
    """One FAIL fails the gate, one INCONCLUSIVE leaves it open; with the checks that decide, in words."""
    for verdict in (GateVerdict.FAIL, GateVerdict.INCONCLUSIVE):
        deciding = [each for each in checks if each.verdict is verdict]
        if deciding:
            return verdict, [_said(each) for each in deciding]
    return GateVerdict.PASS, [_said(each) for each in checks]


def _said(found: CheckResult) -> str:
    what = f"{found.bench}, {found.metric} against {found.against}: {found.difference:+.4f}"
    if found.verdict is GateVerdict.FAIL:
        return f"{what}, worse beyond doubt (below {found.upper:+.4f})"
    if found.verdict is GateVerdict.INCONCLUSIVE:
        return f"{what}, between {found.lower:+.4f} and {found.upper:+.4f}; {found.settled_by}"
    shown = "better" if found.rule == "better" else f"not worse by more than {found.margin:g}"
    return f"{what}, {shown} (above {found.lower:+.4f})"
