import pytest

from supervisor.diagnosis.diagnose import diagnose
from supervisor.diagnosis.kinds import FailureKind
from supervisor.diagnosis.values import Evidence
from supervisor.protocol.attempt import EXIT_CODES, ExitKind, ExitReport


def reported(exception: str) -> Evidence:
    """A trainer that met an exception it has no kind for."""
    lines = ('  File "/srv/trainer.py", line 3, in training_step', "    return self.model(batch)", exception)
    kind = ExitKind.PROGRAM_ERROR
    report = ExitReport(kind, exception, step=8, phase="training", evidence=lines)
    return Evidence(report, EXIT_CODES[kind], None, "", None)


# proves SUP-6: an exception that names the world outside is no bug of the program
@pytest.mark.parametrize(
    ("exception", "kind", "retryable"),
    [
        ("requests.exceptions.ConnectionError: ('Connection aborted.', RemoteDisconnected('...'))", "network", True),
        ("OSError: [Errno 98] Address already in use", "port_in_use", True),
        ("OSError: [Errno 24] Too many open files: 'rows.arrow'", "too_many_files", None),
        ("RuntimeError: CUDA error: device-side assert triggered", "device_assert", False),
        ("RuntimeError: the size of tensor a (7) must match the size of tensor b (5)", "program_error", False),
        ("IndexError: bin 9 cannot be turned into a tensor", "program_error", False),
        ("KeyError: 'messages'", "program_error", False),
    ],
)
def test_an_exception_the_trainer_has_no_kind_for(exception: str, kind: str, retryable: bool | None) -> None:
    found = diagnose(reported(exception))
    assert found.kind.value == kind
    assert retryable is None or found.retryable is retryable
    assert kind == "program_error" or FailureKind.PROGRAM_ERROR in found.also


# proves SUP-15: a training that ended early on purpose is completed and never called done as planned
def test_a_training_that_stopped_early_says_so() -> None:
    done = {"steps": 3, "tokens": 900, "rows": 24}
    why = "stopped early at optimiser step 3 of 8: no gain in 3 evaluations"
    report = ExitReport(ExitKind.COMPLETED, why, step=3, planned=done, done=done, stopped_early=why)
    found = diagnose(Evidence(report, 0, None, "", None, final_verified=True))
    assert found.kind is FailureKind.COMPLETED
    assert found.explanation.startswith("Stopped early at optimiser step 3 of 8: no gain in 3 evaluations.")
    assert "All planned" not in found.explanation
    without = diagnose(Evidence(report, 0, None, "", None, final_verified=False))
    assert without.kind is FailureKind.COMPLETED_EARLY
