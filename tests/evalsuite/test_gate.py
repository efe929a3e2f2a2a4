"""What a gate decides, and how sure it may be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from gates import BASE, CANDIDATE, chances, drawn, gate_of, inputs_of, scores_of

from evalsuite.comparable import differences, not_applied, not_the_base, not_whole
from evalsuite.gate import judge
from evalsuite.gate_result import GateResult, GateVerdict, read_gate, write_gate
from evalsuite.scores import BenchIdentity, SamplingIdentity, Scores
from supervisor.problems import InputError

CHANCE = chances(300)


def base(seed: int = 1) -> Scores:
    return scores_of(drawn(CHANCE, seed))


def candidate(drop: float, seed: int = 2) -> Scores:
    return scores_of(drawn(CHANCE, seed, drop=drop), model=CANDIDATE)


def judged(found: Scores, *checks: dict[str, Any], reference: Scores | None = None, **changed: Any) -> GateResult:
    gate = gate_of(*checks, **changed)
    return judge(gate, [], [inputs_of(gate, found, base=reference or base())])


# proves EVL-2: PASS above -margin, FAIL below 0, INCONCLUSIVE between, each with its exit code
def test_the_three_verdicts() -> None:
    same = judged(candidate(0.0))
    assert same.verdict is GateVerdict.PASS and same.verdict.exit_code == 0 and same.checks[0].lower > -0.05
    worse = judged(candidate(0.12))
    assert worse.verdict is GateVerdict.FAIL and worse.verdict.exit_code == 1 and worse.checks[0].upper < 0
    assert "worse beyond doubt" in worse.reasons[0]
    unclear = judged(candidate(0.0), {"margin": 0.005})
    assert unclear.verdict is GateVerdict.INCONCLUSIVE and unclear.verdict.exit_code == 3
    check = unclear.checks[0]
    assert check.lower < -0.005 < check.upper and check.detectable_drop > 0.005
    assert "tasks of this kind" in unclear.reasons[0] and "samples" in unclear.reasons[0]
    assert unclear.known, "every task was looked at"


# proves EVL-2: better needs a lower bound above 0; a tie is no improvement
def test_better_means_better() -> None:
    assert judged(candidate(-0.12), {"rule": "better"}).verdict is GateVerdict.PASS
    assert judged(candidate(0.0), {"rule": "better"}).verdict is GateVerdict.INCONCLUSIVE
    assert judged(candidate(0.12), {"rule": "better"}).verdict is GateVerdict.FAIL


# proves EVL-2: a real drop inside the margin passes: that is what the margin says
def test_a_drop_inside_the_margin_passes() -> None:
    found = judged(candidate(0.06), {"margin": 0.2}).checks[0]
    assert found.upper < 0 and found.verdict is GateVerdict.PASS


# proves EVL-2: few tasks never pass by being equal
def test_a_handful_of_equal_tasks_is_inconclusive() -> None:
    found = judged(scores_of([4, 0, 4], model=CANDIDATE), reference=scores_of([4, 0, 4]))
    assert found.verdict is GateVerdict.INCONCLUSIVE and found.checks[0].method == "bounded"
    assert found.checks[0].lower < -0.5


# proves EVL-2: where whoever solves nothing would pass, nothing can be judged
def test_a_reference_within_the_margin_is_no_measure() -> None:
    low = scores_of([1, 1, 1, 1, *[0] * 96])  # 0.01
    found = judged(scores_of([0] * 100, model=CANDIDATE), {"margin": 0.05}, reference=low)
    assert found.verdict is GateVerdict.UNJUDGED
    assert "the base scores 0.0100, no more than the margin of 0.05" in found.reasons[0]
    assert judged(scores_of([0] * 100, model=CANDIDATE), {"rule": "better"}, reference=low).verdict is not (
        GateVerdict.UNJUDGED
    )


# proves EVL-2: each of several checks must pass, and FAIL is corrected for their number
def test_several_checks_are_corrected_together() -> None:
    # worse by a little: enough for one check, not for one of twenty
    found = judged(candidate(0.06, seed=5), {"margin": 0.01})
    assert 0.001 < found.checks[0].p_fail < 0.05 and found.verdict is GateVerdict.FAIL
    many = judged(candidate(0.06, seed=5), *[{"margin": 0.01}] * 20)
    assert many.checks[0].p_fail == found.checks[0].p_fail
    assert many.checks[0].p_fail_corrected > 0.05 and many.verdict is GateVerdict.INCONCLUSIVE
    assert many.checks[0].detectable_drop > found.checks[0].detectable_drop
    mixed = judged(candidate(0.0), {"margin": 0.05}, {"margin": 0.005})
    assert [each.verdict.value for each in mixed.checks] == ["pass", "inconclusive"]
    assert mixed.verdict is GateVerdict.INCONCLUSIVE


# proves EVL-2: against the base and against the last release; being better than the base does not excuse a step back
def test_base_and_release_are_both_asked() -> None:
    gate = gate_of(bench={"release": "release"})
    release = scores_of(drawn(CHANCE, 8, drop=-0.15), model=msgspec.structs.replace(CANDIDATE, adapter="adapter-0"))
    result = judge(gate, [], [inputs_of(gate, candidate(0.0), base=base(), release=release)])
    assert [(each.against, each.verdict.value) for each in result.checks] == [("base", "pass"), ("release", "fail")]
    assert result.verdict is GateVerdict.FAIL


# proves EVL-2: pass@k is a metric, and impossible metrics are no pass
def test_metrics() -> None:
    assert judged(candidate(0.0), {"metric": "pass@2", "margin": 0.06}).verdict is GateVerdict.PASS
    for metric, reason in (("pass@9", "needs 9 samples"), ("right_tool", "no metric of this bench")):
        found = judged(candidate(0.0), {"metric": metric, "margin": 0.05})
        assert found.verdict is GateVerdict.UNJUDGED and found.verdict.exit_code == 2 and not found.checks
        assert reason in found.reasons[0]


# proves EVL-2: more samples are advised only where they would do
def test_advice_follows_the_noise() -> None:
    many = judged(candidate(0.0), {"margin": 0.005}).checks[0]
    assert many.verdict is GateVerdict.INCONCLUSIVE
    samples = int(many.settled_by.split("by about ")[2].split()[0].replace(",", ""))
    assert 4 < samples < 100
    single = scores_of(drawn(CHANCE, 2, samples=1), samples=1, model=CANDIDATE)
    alone = judged(single, {"margin": 0.02}, reference=scores_of(drawn(CHANCE, 3, samples=1), samples=1)).checks[0]
    assert "would not do" in alone.settled_by


# proves EVL-2: a sequential gate stops as soon as the answer is known, and says what is left while it is not
def test_a_sequential_gate_looks_at_what_was_asked() -> None:
    from evalsuite.statistics.sequential import order_of

    order = order_of([f"bench/{number}" for number in range(300)], 3)
    gate = gate_of({"margin": 0.08}, bench={"sequential": {"seed": 3}})
    accepted = drawn(CHANCE, 2)
    found = {}
    for asked in (20, 150):
        part = scores_of(accepted, model=CANDIDATE, missing=order[asked:])
        found[asked] = judge(gate, [], [inputs_of(gate, part, base=base())])
    assert found[20].verdict is GateVerdict.INCONCLUSIVE and not found[20].known
    assert "280 of 300 tasks are still to be asked" in found[20].reasons[0]
    assert found[150].verdict is GateVerdict.PASS and found[150].known and found[150].checks[0].asked == 150
    chosen = scores_of(accepted, model=CANDIDATE, missing=order[:1])
    result = judge(gate, [], [inputs_of(gate, chosen, base=base())])
    assert result.verdict is GateVerdict.UNJUDGED and "no task of the candidate" in result.reasons[0]
    gap = scores_of(accepted, model=CANDIDATE, missing=(order[10],))
    assert judge(gate, [], [inputs_of(gate, gap, base=base())]).checks[0].asked == 10, "no task may be passed over"


# proves EVL-2: reasons against a comparison are never a verdict
def test_reasons_end_the_gate() -> None:
    gate = gate_of()
    inputs = inputs_of(gate, candidate(0.0), base=base())
    inputs.reasons.append("base: it is gone")
    result = judge(gate, [], [inputs])
    assert result.verdict is GateVerdict.UNJUDGED and result.reasons == ("base: it is gone",) and not result.checks


SAMPLING = SamplingIdentity(4, 0.8, 1.0, 64, 7)


# proves EVL-2: what differs between two evaluations beside their models is found
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"bench": BenchIdentity("toy", "other", 300)}, "another bench"),
        ({"sampling": msgspec.structs.replace(SAMPLING, temperature=0.2)}, "temperature 0.2, the candidate with 0.8"),
        ({"sampling": msgspec.structs.replace(SAMPLING, top_p=0.9)}, "top_p"),
        ({"sampling": msgspec.structs.replace(SAMPLING, max_new_tokens=32)}, "max_new_tokens"),
        ({"sampling": msgspec.structs.replace(SAMPLING, stop=("x",))}, "stop"),
        ({"model": msgspec.structs.replace(BASE, template_hash="t2")}, "another chat template"),
        ({"model": msgspec.structs.replace(BASE, template_hash=None)}, "unknown by which chat template the base"),
        ({"clusters": ["one"] * 300}, "other clusters"),
    ],
)
def test_differences_are_reasons(changed: dict[str, Any], reason: str) -> None:
    found = differences(candidate(0.0), scores_of(drawn(CHANCE, 1), **changed), "base")
    assert len(found) == 1 and reason in found[0] and found[0].startswith("base: ")
    assert not differences(candidate(0.0), base(), "base")
    assert not differences(candidate(0.0), scores_of(drawn(CHANCE, 1), sampling=SAMPLING), "base")


# proves EVL-3: an adapter that is not proven applied, or none at all, is no candidate
def test_the_adapter_must_be_proven() -> None:
    for effect, reason in ((None, "not measured"), (0.0, "not applied"), (float("nan"), "not applied")):
        model = msgspec.structs.replace(CANDIDATE, adapter_effect_nats=effect)
        assert reason in not_applied(scores_of([1], model=model), "candidate")[0]
    assert not not_applied(candidate(0.0), "candidate")
    assert "it is the base itself" in not_the_base(BASE, BASE)[0]
    assert "it has an adapter" in not_the_base(CANDIDATE, CANDIDATE)[0]
    assert "the candidate's adapter was on" in not_the_base(
        CANDIDATE, msgspec.structs.replace(BASE, base="other", base_digest="others")
    )[0]
    assert not not_the_base(CANDIDATE, BASE)
    assert not not_the_base(msgspec.structs.replace(BASE, base_digest="merged"), BASE), "other weights need no adapter"


# proves EVL-4: partial evaluations are no evaluations
def test_partial_scores_are_reasons() -> None:
    assert "2 of 3 tasks have no score" in not_whole(scores_of([1, 2, 3], missing=("bench/0", "bench/2")), "base")[0]
    half = scores_of([1, 1], samples=2, sampling=SAMPLING)
    assert "another number of samples than 4" in not_whole(half, "base")[0]
    assert not not_whole(base(), "base")


# proves EVL-2: the result is an artefact that shows when it was changed
def test_the_result_is_sealed(tmp_path: Any) -> None:
    path = tmp_path / "gate.json"
    result = judged(candidate(0.12))
    write_gate(path, result)
    assert read_gate(path) == result
    path.write_text(path.read_text().replace('"fail"', '"pass"'))
    with pytest.raises(InputError, match="changed by hand"):
        read_gate(path)
    with pytest.raises(InputError, match="has not run"):
        read_gate(tmp_path / "other.json")


# proves EVL-2: the same scores give the same result
def test_a_gate_repeats_itself() -> None:
    assert judged(candidate(0.03)) == judged(candidate(0.03))
