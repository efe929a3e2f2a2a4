from typing import Any

import pytest
from scripted_kind import SCRIPTED

from supervisor.config_sections import CustomRung
from supervisor.diagnosis.kinds import FailureKind
from supervisor.diagnosis.values import Diagnosis, fingerprint
from supervisor.jobs import Patch, Relief
from supervisor.relief.custom import own_rungs
from supervisor.relief.effective import effective_document, taken
from supervisor.relief.ledger import place
from supervisor.relief.policy import PolicyInput, Relaunch, StepBack, Stop, WaitForGpu, backoff, decide
from supervisor.state import Failure, Outcome, ReliefTaken

LADDER = ("trim_retention", "wait_for_foreign_vram", "halve_micro_batch", "shorten_sequence", "switch_model")
TRIM = Relief("trim_retention", (Patch("checkpoint.keep", 3, 1),), "frees 2 checkpoints", lossless=True)
FOREIGN = FailureKind.CUDA_OOM_FOREIGN
HOLDER = "firefox (process 4711 of anna) holds 1.4 GiB of GPU 0"
WATCHED: dict[str, Any] = {"foreign": HOLDER, "foreign_wait_seconds": 1800.0}
DOCUMENT: dict[str, Any] = {
    "train": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1, "max_length": 2048},
    "model": {"base": "big", "fallback": "small"},
    "relief": {"seq_len_rungs": [2048, 1024]},
    "checkpoint": {"keep": 3},
}
ONLY_LOSSY: dict[str, Any] = {
    **DOCUMENT,
    "train": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2, "max_length": 2048},
}
EXHAUSTED: dict[str, Any] = {
    "train": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2, "max_length": 1024},
    "model": {"base": "small", "fallback": None},
    "relief": {"seq_len_rungs": [2048, 1024]},
    "checkpoint": {"keep": 1},
}


def found(kind: FailureKind, step: int = 7, cause: str = "boom") -> Diagnosis:
    return Diagnosis(kind, 1.0, step, f"at step {step}", (), True, cause, fingerprint(kind, cause))


def failure(
    kind: FailureKind,
    step: int = 7,
    attempt: int = 1,
    cause: str = "boom",
    lineage: int = 1,
    resumed_step: int | None = None,
) -> Failure:
    return Failure(attempt, kind.value, step, cause, fingerprint(kind, cause), 0.0, lineage, resumed_step)


def case(kind: FailureKind, **changes: Any) -> PolicyInput:
    values: dict[str, Any] = {
        "diagnosis": found(kind),
        "attempt": 1,
        "first_attempt": 1,
        "launches": 1,
        "max_attempts": 5,
        "lineage": 1,
        "resumed_step": 6,
        "older_good": False,
        "document": DOCUMENT,
        "facts": {},
        "ladder": LADDER,
        "strict_order": False,
        "rungs": SCRIPTED.rungs,
        "trim": TRIM,
        "failures": (),
        "relief": (),
        "backoff_seconds": 2.0,
        "backoff_max_seconds": 60.0,
    }
    return PolicyInput(**{**values, **changes})


# proves SUP-3: relief is chosen by the kind of failure, lossless first, in the ladder's order
@pytest.mark.parametrize(
    ("kind", "changes", "rung"),
    [
        (FailureKind.CUDA_OOM, {}, "halve_micro_batch"),
        (FailureKind.HOST_OOM, {}, "halve_micro_batch"),
        (FailureKind.DISK_FULL, {}, "trim_retention"),
        (FailureKind.CUDA_OOM, {"ladder": ("shorten_sequence", "halve_micro_batch")}, "shorten_sequence"),
        (FailureKind.CUDA_OOM, {"ladder": ("switch_model",)}, "switch_model"),
        (FailureKind.CUDA_OOM, {"strict_order": True}, "trim_retention"),
        (FailureKind.CUDA_OOM, {"strict_order": True, "trim": None}, "halve_micro_batch"),
        (FailureKind.DISK_FULL, {"strict_order": True, "trim": None}, "halve_micro_batch"),
        (FailureKind.PROGRAM_ERROR, {"strict_order": True}, "trim_retention"),
        (FailureKind.PROGRAM_ERROR, {}, None),
        (FailureKind.KILLED, {}, None),
        (FailureKind.NATIVE_CRASH, {}, None),
        (FailureKind.COMPLETED_EARLY, {}, None),
        (FailureKind.UNKNOWN, {}, None),
        (FailureKind.INTERRUPTED, {}, None),
        (FailureKind.INTERRUPTED, {"strict_order": True}, None),
        (FailureKind.CHECKPOINT_CORRUPT, {"resumed_step": None}, None),
        (FailureKind.DISK_FULL, {"trim": None, "has_room": True}, None),
    ],
)
def test_relief_by_kind_of_failure(kind: FailureKind, changes: dict[str, Any], rung: str | None) -> None:
    decision = decide(case(kind, **changes))
    assert isinstance(decision, Relaunch)
    assert (decision.relief.rung if decision.relief else None) == rung


# proves SUP-2
@pytest.mark.parametrize(
    ("kind", "changes", "outcome", "words"),
    [
        (FailureKind.DATA_ERROR, {}, Outcome.GAVE_UP, "data_error at step 7"),
        (FailureKind.CONFIG_ERROR, {}, Outcome.FAILED_CONFIG, "config_error"),
        (FailureKind.NO_GPU, {}, Outcome.GAVE_UP, "device: cpu"),
        (FailureKind.DEPENDENCY_ERROR, {}, Outcome.GAVE_UP, "Install what is missing"),
        (FailureKind.CHECKPOINT_INCOMPATIBLE, {}, Outcome.GAVE_UP, "--accept-change"),
        (FailureKind.NAN_LOSS, {}, Outcome.GAVE_UP, "train.learning_rate"),
        (FailureKind.DATA_ERROR, {"strict_order": True}, Outcome.GAVE_UP, "Trying again"),
        (FailureKind.KILLED, {"launches": 5}, Outcome.GAVE_UP, "All 5 attempts"),
        (FailureKind.CUDA_OOM, {"launches": 5}, Outcome.GAVE_UP, "Rungs left: halve_micro_batch, shorten_sequence"),
        (FOREIGN, {**WATCHED, "launches": 5}, Outcome.GAVE_UP, "Rungs left: wait_for_foreign_vram, halve_micro_batch."),
        (FailureKind.CUDA_OOM, {"document": EXHAUSTED}, Outcome.GAVE_UP, "more) to give: halve_micro_batch, shorten"),
        (FailureKind.CUDA_OOM, {"document": EXHAUSTED}, Outcome.GAVE_UP, "do not help here: trim_retention"),
        (FailureKind.CUDA_OOM, {"ladder": ()}, Outcome.GAVE_UP, "relief.ladder"),
        (FailureKind.DISK_FULL, {"trim": None, "room": "/x has 1 bytes free."}, Outcome.GAVE_UP, "/x has 1 bytes"),
        (FailureKind.DISK_FULL, {"ladder": ("halve_micro_batch",)}, Outcome.GAVE_UP, "not in relief.ladder"),
        (FailureKind.DISK_FULL, {"relief": (taken(TRIM, 1, "disk_full"),)}, Outcome.GAVE_UP, "free nothing more"),
        (
            FailureKind.DISK_FULL,
            {"trim": None, "has_room": True, "attempt": 2, "failures": (failure(FailureKind.DISK_FULL),)},
            Outcome.GAVE_UP,
            "would free nothing more",
        ),
        (FailureKind.KILLED, {"stop_requested": True}, Outcome.STOPPED, "Stopped on request"),
        (FailureKind.COMPLETED, {"launches": 5}, Outcome.COMPLETED, ""),
    ],
)
def test_stops(kind: FailureKind, changes: dict[str, Any], outcome: Outcome, words: str) -> None:
    decision = decide(case(kind, **changes))
    assert isinstance(decision, Stop)
    assert decision.outcome is outcome
    assert words in decision.explanation
    assert "\n" not in decision.explanation


# proves SUP-2: the same failure at the same place is not repeated as it was
@pytest.mark.parametrize(
    ("kind", "changes", "stops"),
    [
        (FailureKind.PROGRAM_ERROR, {}, True),
        (FailureKind.NATIVE_CRASH, {}, True),
        (FailureKind.COMPLETED_EARLY, {}, True),
        (FailureKind.UNKNOWN, {}, True),
        (FailureKind.KILLED, {}, False),
        (FailureKind.INTERRUPTED, {}, False),
        (FailureKind.PROGRAM_ERROR, {"failures": (failure(FailureKind.PROGRAM_ERROR, step=5),)}, False),
        (FailureKind.PROGRAM_ERROR, {"failures": (failure(FailureKind.PROGRAM_ERROR, cause="other"),)}, False),
        (FailureKind.PROGRAM_ERROR, {"lineage": 2}, False),
        (FailureKind.PROGRAM_ERROR, {"first_attempt": 2}, False),
        (FailureKind.PROGRAM_ERROR, {"relief": (taken(TRIM, 2, "disk_full"),)}, False),
        (FailureKind.PROGRAM_ERROR, {"relief": (taken(TRIM, 1, "disk_full"),)}, True),
    ],
)
def test_twice_the_same_is_deterministic(kind: FailureKind, changes: dict[str, Any], stops: bool) -> None:
    given_ = case(kind, **{"attempt": 2, "launches": 2, "failures": (failure(kind),), **changes})
    decision = decide(given_)
    assert isinstance(decision, Stop) is stops
    if isinstance(decision, Stop):
        assert "deterministic" in decision.explanation


WAITED = Relief("wait_for_foreign_vram", (), "waited 30 m 00 s", lossless=True)


def waited(kind: FailureKind, *, in_vain: bool, step: int = 7) -> ReliefTaken:
    answers = place(fingerprint(kind, "boom"), step)
    return taken(WAITED, 2, kind.value, answers, in_vain=in_vain)


# proves SUP-3: GPU memory that somebody else holds is waited out; degrading the model is never the answer to it
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (WATCHED, "wait"),
        ({**WATCHED, "strict_order": True, "trim": None}, "wait"),
        ({**WATCHED, "strict_order": True}, "trim_retention"),
        ({**WATCHED, "ladder": ("halve_micro_batch", "wait_for_foreign_vram")}, "wait"),
        ({**WATCHED, "relief": (waited(FOREIGN, in_vain=True),)}, "halve_micro_batch"),
        ({**WATCHED, "relief": (waited(FOREIGN, in_vain=True, step=3),)}, "halve_micro_batch"),
        ({**WATCHED, "relief": (waited(FOREIGN, in_vain=False),)}, "halve_micro_batch"),
        ({**WATCHED, "relief": (waited(FOREIGN, in_vain=False, step=3),)}, "wait"),
        ({**WATCHED, "foreign_wait_seconds": 0.0}, "halve_micro_batch"),
        ({**WATCHED, "ladder": ("halve_micro_batch",)}, "halve_micro_batch"),
        ({**WATCHED, "ladder": ("shorten_sequence",)}, "shorten_sequence"),
        ({**WATCHED, "relief": (waited(FOREIGN, in_vain=True),), "document": EXHAUSTED}, None),
        ({**WATCHED, "relief": (waited(FOREIGN, in_vain=True),), "document": ONLY_LOSSY}, None),
        ({**WATCHED, "relief": (waited(FOREIGN, in_vain=True),), "ladder": ("wait_for_foreign_vram",)}, None),
        ({}, "unchanged"),
        ({"attempt": 2, "launches": 2, "failures": (failure(FOREIGN),)}, "halve_micro_batch"),
        ({**WATCHED, "launches": 5}, None),
    ],
)
def test_foreign_memory(changes: dict[str, Any], expected: str | None) -> None:
    decision = decide(case(FOREIGN, **changes))
    if expected is None:
        assert isinstance(decision, Stop) and decision.outcome is Outcome.GAVE_UP
        assert "cuda_oom_foreign" in decision.explanation and "Close the other programs" in decision.explanation
    elif expected == "wait":
        assert isinstance(decision, WaitForGpu)
        assert (decision.holders, decision.seconds) == (HOLDER, 1800.0)
    else:
        assert isinstance(decision, Relaunch)
        assert (decision.relief.rung if decision.relief else "unchanged") == expected


# proves SUP-3: a rung that says where it helps is taken for that only; others by what their name stands for
@pytest.mark.parametrize(
    ("kind", "helps", "expected"),
    [
        (FailureKind.HOST_OOM, ("cuda_oom",), "halve_micro_batch"),
        (FailureKind.HOST_OOM, ("host_oom",), "mine"),
        (FailureKind.CUDA_OOM, ("cuda_oom",), "mine"),
        (FailureKind.OOM_AT_LOAD, ("oom_at_load",), "mine"),
        (FailureKind.OOM_AT_LOAD, ("cuda_oom",), "switch_model"),
        (FailureKind.DISK_FULL, ("disk_full",), "mine"),
        (FailureKind.NAN_LOSS, ("nan_loss",), "mine"),
        (FailureKind.NAN_LOSS, ("cuda_oom",), "stop"),
        (FailureKind.HANG, ("hang", "nan_loss"), "mine"),
        (FailureKind.DATA_ERROR, ("nan_loss",), "stop"),
        (FailureKind.CONFIG_ERROR, ("unknown",), "stop"),
    ],
)
def test_an_own_rung_is_taken_for_what_it_helps(kind: FailureKind, helps: Any, expected: str) -> None:
    mine = CustomRung(name="mine", set={"train.max_length": 300}, helps=helps, price="shorter", lossless=True)
    rungs = {**SCRIPTED.rungs, **own_rungs([mine], ())}
    decision = decide(case(kind, ladder=("mine", *LADDER), rungs=rungs))
    if expected == "stop":
        assert isinstance(decision, Stop)
        return
    assert isinstance(decision, Relaunch) and decision.relief is not None
    assert decision.relief.rung == expected
    entry = taken(decision.relief, 2, kind.value)
    assert own_rungs([mine], [entry]) == {} or expected != "mine"


def test_an_own_rung_says_what_it_changes() -> None:
    mine = CustomRung(
        name="mine", set={"train.max_length": 300, "launch.env.X": "1"}, helps=("cuda_oom",), price="short"
    )
    relief = own_rungs([mine], ())["mine"](DOCUMENT, {})
    assert relief is not None
    assert relief.patches == (Patch("train.max_length", 2048, 300), Patch("launch.env.X", None, "1"))
    assert (relief.price, relief.lossless, relief.new_lineage) == ("short", False, False)
    assert relief.accepts == ("train.max_length", "launch.env.X")
    same = CustomRung(name="same", set={"train.max_length": 2048}, helps=("cuda_oom",), price="none")
    assert own_rungs([same], ())["same"](DOCUMENT, {}) is None


# proves SUP-14
def test_a_checkpoint_that_does_not_load_is_stepped_over() -> None:
    assert isinstance(decide(case(FailureKind.CHECKPOINT_CORRUPT)), StepBack)


# proves SUP-14: a checkpoint that kills its loader twice is distrusted, if there is one before it to go on from
@pytest.mark.parametrize(
    ("kind", "before", "changes", "expected"),
    [
        (FailureKind.NATIVE_CRASH, FailureKind.NATIVE_CRASH, {}, StepBack),
        (FailureKind.PROGRAM_ERROR, FailureKind.NATIVE_CRASH, {}, StepBack),
        (FailureKind.UNKNOWN, FailureKind.UNKNOWN, {}, StepBack),
        (FailureKind.PROGRAM_ERROR, FailureKind.PROGRAM_ERROR, {"older_good": False}, Stop),
        (FailureKind.PROGRAM_ERROR, FailureKind.PROGRAM_ERROR, {"resumed_step": 3}, Stop),
        (FailureKind.PROGRAM_ERROR, FailureKind.PROGRAM_ERROR, {"lineage": 2}, Relaunch),
        (FailureKind.PROGRAM_ERROR, FailureKind.PROGRAM_ERROR, {"first_attempt": 3}, Relaunch),
        (FailureKind.PROGRAM_ERROR, FailureKind.PROGRAM_ERROR, {"launches": 5}, Stop),
        (FailureKind.PROGRAM_ERROR, FailureKind.PROGRAM_ERROR, {"diagnosis": found(FailureKind.UNKNOWN, 7)}, Relaunch),
        (FailureKind.KILLED, FailureKind.KILLED, {}, Relaunch),
        (FailureKind.NATIVE_CRASH, FailureKind.KILLED, {}, Relaunch),
        (FailureKind.GPU_LOST, FailureKind.GPU_LOST, {}, Stop),
        (FailureKind.HOST_OOM, FailureKind.HOST_OOM, {}, Relaunch),
        (FailureKind.DATA_ERROR, FailureKind.DATA_ERROR, {}, Stop),
    ],
)
def test_a_checkpoint_that_kills_twice(
    kind: FailureKind, before: FailureKind, changes: dict[str, Any], expected: type
) -> None:
    given_ = {
        "diagnosis": found(kind, step=6),
        "attempt": 3,
        "launches": 3,
        "older_good": True,
        "failures": (failure(before, step=6, attempt=2, resumed_step=6),),
        **changes,
    }
    assert type(decide(case(kind, **given_))) is expected


# proves SUP-2: a step that always fails is no fault of the checkpoint before it
def test_a_failure_met_before_the_checkpoint_is_not_its_fault() -> None:
    kind = FailureKind.PROGRAM_ERROR
    first = failure(kind, step=6, attempt=2, resumed_step=3)
    decision = decide(case(kind, diagnosis=found(kind, step=6), attempt=3, older_good=True, failures=(first,)))
    assert isinstance(decision, Stop) and "deterministic" in decision.explanation


# proves SUP-2: pauses double while nothing improves and start anew after progress
def test_backoff_doubles_to_its_limit_and_forgets_after_progress() -> None:
    stuck = tuple(failure(FailureKind.KILLED, step=7, attempt=n) for n in range(1, 9))
    waits = [backoff(case(FailureKind.KILLED, failures=stuck[:n])) for n in range(8)]
    assert waits == [0, 4, 8, 16, 32, 60, 60, 60]
    further = (*stuck, failure(FailureKind.KILLED, step=3, attempt=9))
    assert backoff(case(FailureKind.KILLED, failures=further)) == 0


# proves SUP-12: no pause after a crash that came after progress, but one where something outside has to recover
@pytest.mark.parametrize(
    ("kind", "resumed_step", "seconds"),
    [
        (FailureKind.KILLED, 6, 0),
        (FailureKind.NATIVE_CRASH, None, 0),
        (FailureKind.KILLED, 7, 2),
        (FailureKind.NETWORK, 6, 2),
        (FailureKind.GPU_LOST, 6, 2),
    ],
)
def test_the_first_pause(kind: FailureKind, resumed_step: int | None, seconds: int) -> None:
    assert backoff(case(kind, resumed_step=resumed_step)) == seconds


# proves SUP-3: relief is layered over what was submitted, which itself stays as it is
def test_effective_document_layers() -> None:
    halved = SCRIPTED.rungs["halve_micro_batch"](DOCUMENT, {})
    assert halved is not None
    result = effective_document(
        DOCUMENT, {"checkpoint.keep": 5}, [taken(halved, 2, "cuda_oom"), taken(TRIM, 3, "disk_full")]
    )
    assert result["train"]["per_device_train_batch_size"] == 1
    assert result["train"]["gradient_accumulation_steps"] == 2
    assert result["checkpoint"]["keep"] == 1
    assert DOCUMENT["train"]["per_device_train_batch_size"] == 2
