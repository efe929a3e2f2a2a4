"""What the diagnosis must never do, whatever the log; and how evidence of different rank is weighed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.cli import main
from supervisor.diagnosis.diagnose import diagnose
from supervisor.diagnosis.ended import signal_of_code
from supervisor.diagnosis.gpu_memory import is_foreign, read_gpu_memory
from supervisor.diagnosis.kernel_log import read_kernel_log
from supervisor.diagnosis.kinds import FACTS, FailureKind
from supervisor.diagnosis.loglines import HEAD_CHARACTERS, TAIL_CHARACTERS, read_lines
from supervisor.diagnosis.matching import SIGNS
from supervisor.diagnosis.phrases import compiled, phrases
from supervisor.diagnosis.values import Diagnosis, Evidence
from supervisor.protocol.attempt import ExitKind, ExitReport

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB "
    "of which 1.01 GiB is free. Including non-PyTorch memory, this process has 22.63 GiB memory in use."
)
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    step()\n'
LOST = "[1.0] NVRM: Xid (PCI:0000:01:00): 79, pid=1, name=python, GPU has fallen off the bus."
KILLED = "[1.0] Out of memory: Killed process 12 (python) total-vm:1kB"


def look(log: str, **known: Any) -> Diagnosis:
    values: dict[str, Any] = {"report": None, "exit_code": None, "signal": None, "heartbeat": None, "first_hand": False}
    return diagnose(Evidence(stderr_tail=log, **{**values, **known}))


# proves SUP-6: structured report > signal and counters > kernel log > text
@pytest.mark.parametrize(
    ("log", "known", "kind"),
    [
        (
            TRACEBACK + OOM,
            {"report": ExitReport(ExitKind.DATA_ERROR, "row 4"), "exit_code": 65},
            FailureKind.DATA_ERROR,
        ),
        (TRACEBACK + OOM, {"signal": signal.SIGKILL, "oom_kills": 1}, FailureKind.HOST_OOM),
        ("step 3", {"signal": signal.SIGKILL, "oom_kills": 0, "first_hand": True}, FailureKind.KILLED),
        ("step 3", {"signal": signal.SIGKILL, "kernel_log": KILLED, "first_hand": True}, FailureKind.HOST_OOM),
        ("step 3", {"signal": signal.SIGKILL}, FailureKind.HOST_OOM),
        ("step 3", {"signal": signal.SIGKILL, "kernel_log": "[1.0] eth0: link up"}, FailureKind.KILLED),
        ("RuntimeError: CUDA error: unspecified launch failure", {"kernel_log": LOST}, FailureKind.GPU_LOST),
        ("RuntimeError: CUDA error: unspecified launch failure", {}, FailureKind.NATIVE_CRASH),
        (TRACEBACK + OOM, {"exit_code": 78}, FailureKind.CUDA_OOM),
        ("", {"exit_code": 78, "first_hand": True}, FailureKind.CONFIG_ERROR),
    ],
)
def test_rank_of_evidence(log: str, known: dict[str, Any], kind: FailureKind) -> None:
    assert look(log, **known).kind is kind


# proves SUP-6: the cause, not what others did after it; not what was survived
@pytest.mark.parametrize(
    ("log", "kind"),
    [
        (
            f"{TRACEBACK}{OOM}\n[rank1]: DistBackendError: NCCL communicator was aborted on rank 1.",
            FailureKind.CUDA_OOM,
        ),
        (
            f"{OOM}\nstep 4 loss: 1.2\nstep 5 loss: 1.1\n{TRACEBACK}NameError: name 'x' is not defined",
            FailureKind.PROGRAM_ERROR,
        ),
        (
            f"{TRACEBACK}OSError: [Errno 28] No space left on device\n\nThe above exception was the direct cause of "
            f"the following exception:\n\n{TRACEBACK}RuntimeError: could not save",
            FailureKind.DISK_FULL,
        ),
        (
            f"{TRACEBACK}ModuleNotFoundError: No module named 'flash_attn'\n\nDuring handling of the above exception, "
            f"another exception occurred:\n\n{TRACEBACK}{OOM}",
            FailureKind.CUDA_OOM,
        ),
        ("12%|#    | 120/1000 [01:00<07:20,  2.0it/s]" + TRACEBACK + OOM, FailureKind.CUDA_OOM),
        (f"\x1b[31m{TRACEBACK}\x1b[0m{OOM}\r\n", FailureKind.CUDA_OOM),
    ],
)
def test_cause_and_aftermath(log: str, kind: FailureKind) -> None:
    assert look(log, exit_code=1).kind is kind


# What a more special sign explains does not count once more as the general one.
@pytest.mark.parametrize(
    ("line", "kind", "not_also"),
    [
        (
            "OSError: [Errno 28] No space left on device: '/dev/shm/sem.mp-x'",
            FailureKind.SHM_FULL,
            FailureKind.DISK_FULL,
        ),
        (
            "RuntimeError: unable to open shared memory object </torch_1> in read-write mode: Too many open files (24)",
            FailureKind.TOO_MANY_FILES,
            FailureKind.SHM_FULL,
        ),
        (
            "DistBackendError: NCCL error, unhandled system error: socketStartConnect: Connection refused",
            FailureKind.NCCL_ERROR,
            FailureKind.NETWORK,
        ),
        (
            "requests.exceptions.HTTPError: 403 Client Error: Max retries exceeded",
            FailureKind.PERMISSION_DENIED,
            FailureKind.NETWORK,
        ),
    ],
)
def test_special_before_general(line: str, kind: FailureKind, not_also: FailureKind) -> None:
    found = look(TRACEBACK + line, exit_code=1)
    assert found.kind is kind
    assert not_also not in found.also


def test_whose_memory() -> None:
    foreign = OOM.replace("this process has 22.63 GiB", "this process has 1.10 GiB")
    assert not is_foreign(read_gpu_memory(OOM))
    assert is_foreign(read_gpu_memory(foreign))
    assert not is_foreign(read_gpu_memory("CUDA out of memory."))
    assert look(TRACEBACK + foreign).kind is FailureKind.CUDA_OOM_FOREIGN
    assert "halve_micro_batch" not in look(TRACEBACK + foreign).helps
    assert FailureKind.CUDA_OOM in look(TRACEBACK + foreign).also


@pytest.mark.parametrize(
    ("code", "number"),
    [
        (137, 9),
        (-9, 9),
        (247, 9),
        (139, 11),
        (245, 11),
        (143, 15),
        (1, None),
        (255, None),
        (0xC0000005, 11),
        (10**12, None),
    ],
)
def test_exit_codes_that_hide_signals(code: int, number: int | None) -> None:
    assert signal_of_code(code) == number


def test_kernel_log_names_the_victim_and_the_first_xid_counts() -> None:
    asker = "[1.0] python invoked oom-killer: order=0\n[1.1] Out of memory: Killed process 7 (chrome) total-vm:1kB"
    assert [sign.weight < 0.5 for sign in read_kernel_log(asker)] == [True]
    app_first = "[1.0] NVRM: Xid (PCI:0000:01:00): 31, pid=1\n[1.1] NVRM: Xid (PCI:0000:01:00): 79, pid=1"
    assert read_kernel_log(app_first) == []
    assert read_kernel_log(LOST)[0].kind is FailureKind.GPU_LOST


ANYTHING = st.one_of(
    st.text(max_size=600),
    st.binary(max_size=600).map(lambda data: data.decode("latin-1")),
    st.lists(
        st.sampled_from(
            [
                TRACEBACK,
                OOM,
                "\r 1/20 [00:01",
                "[rank1]: ",
                "KeyError: 'x'",
                "│ a │",
                "exitcode: -9",
                "nan",
                "\x1b[",
                "\ud800",
            ]
        ),
        max_size=12,
    ).map("\n".join),
)


# proves SUP-6: pure and total
@settings(deadline=None, max_examples=150)
@given(
    log=ANYTHING,
    code=st.one_of(st.none(), st.integers()),
    number=st.one_of(st.none(), st.integers(1, 64)),
    kernel=st.one_of(st.none(), ANYTHING),
    first_hand=st.booleans(),
)
def test_any_log_gets_one_and_the_same_verdict(
    log: str, code: int | None, number: int | None, kernel: str | None, first_hand: bool
) -> None:
    known: dict[str, Any] = {"kernel_log": kernel, "first_hand": first_hand}
    known |= {"signal": number} if number is not None else {"exit_code": code}
    found = look(log, **known)
    assert found == look(log, **known)
    assert found.retryable is FACTS[found.kind].retryable
    assert 0 <= found.confidence <= 1
    assert found.kind not in found.also


# The work is bounded by what is looked at, not by the length of the log.
@pytest.mark.parametrize(
    "unit", ["x" * 80 + "\n", TRACEBACK + "ValueError: x\n", "\r 10%|# | 1/2000 [00:01<00:02]", "a.", "Traceback ("]
)
def test_a_long_log_is_read_at_both_ends(unit: str) -> None:
    log = unit * (10_000_000 // len(unit)) + "\n" + TRACEBACK + OOM
    assert sum(len(line.shown) for line in read_lines(log)) <= HEAD_CHARACTERS + TAIL_CHARACTERS + 2
    assert look(log, exit_code=1).kind in {FailureKind.CUDA_OOM, FailureKind.DATA_ERROR, FailureKind.PROGRAM_ERROR}


# A pattern is only tried where one of its literals stands: the literals must really be necessary.
def test_literals_are_necessary() -> None:
    texts = [
        OOM,
        "Error Some Modules are dispatched on the CPU or the disk",
        "slurmstepd: error: DUE TO TIME LIMIT",
        "os error 28",
    ]
    texts += [
        line
        for file in sorted((Path(__file__).parent / "diagnosis_cases").glob("*.jsonl"))
        for line in file.read_text().splitlines()[::3]
    ]
    for sign in SIGNS:
        for phrase in phrases(sign.words):
            for text in texts:
                if compiled(phrase.pattern).search(text):
                    assert phrase.found_in(text, text.lower()), phrase


# proves SUP-6: secrets are scrubbed from evidence and explanation
@pytest.mark.parametrize(
    "secret",
    [
        "hf_AbCdEfGhIjKlMnOpQrStUv", "sk-proj-0123456789abcdefghij", "ghp_0123456789abcdefghij0123456789abcdef",
        "github_pat_11ABCDEFG0123456789_abcdefghij", "AKIAIOSFODNN7EXAMPLE", "glpat-0123456789abcdefghij",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijk", "xoxb-0123456789-abcdefghij",
    ],
)  # fmt: skip
def test_secrets_are_scrubbed(secret: str) -> None:
    for around in (
        "RuntimeError: 403 Forbidden with {}", "OSError: [Errno 13] Permission denied: token={}",
        "ValueError: {} is bad",
        "requests.exceptions.ConnectionError: https://user:{}@host/x timed out: Read timed out", "last words {}",
        "HTTPError: 503 Server Error: Service Unavailable for url: https://h/x?X-Amz-Signature={}&a=1",
        "ConnectionError: headers={{'Authorization': 'Bearer {}'}} Connection refused",
    ):  # fmt: skip
        found = look(TRACEBACK + around.format(secret), exit_code=1)
        assert secret not in json.dumps([found.evidence, found.explanation]), around


def test_private_keys_and_named_values_are_scrubbed() -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\n-----END RSA PRIVATE KEY-----"
    found = look(
        f"WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567 DB_PASSWORD='hunter2hunter2'\nAborting {key}",
        exit_code=1,
    )
    told = json.dumps([found.evidence, found.explanation])
    assert "0123456789abcdef" not in told and "hunter2" not in told


# proves SUP-6: the command
def test_command_as_json_and_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text(TRACEBACK + OOM)
    assert main(["diagnose", str(log), "--exit-code", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told) == ["kind", "confidence", "retryable", "helps", "evidence", "explanation", "also"]
    assert told["kind"] == "cuda_oom" and told["retryable"] and "halve_micro_batch" in told["helps"]
    assert OOM in told["evidence"][-1]
    assert main(["diagnose", str(log)]) == 0
    assert capsys.readouterr().out.startswith("cuda_oom (confidence 9")
    kernel = tmp_path / "dmesg"
    kernel.write_text(KILLED)
    log.write_text("step 1\n")
    assert main(["diagnose", str(log), "--signal", "kill", "--kernel-log", str(kernel), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "host_oom"
    assert main(["diagnose", str(log), "--exit-code", "-11", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "native_crash"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.log"], "missing.log: No such file"),
        (["{log}", "--signal", "SIGNOPE"], "--signal SIGNOPE: no such signal"),
        (["{log}", "--signal", "SIGKILL", "--exit-code", "1"], "not both"),
        (["{log}", "--kernel-log", "missing.dmesg"], "missing.dmesg: No such file"),
        (["."], "Is a directory"),
    ],
)
def test_bad_input(arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.log").write_text("x")
    assert main(["diagnose", *(word.format(log=tmp_path / "x.log") for word in arguments)]) == 2
    assert words in capsys.readouterr().err


def test_standard_input_and_light_imports() -> None:
    program = (
        "import sys; from supervisor.cli import main; code = main(['diagnose', '-', '--json']); "
        "sys.exit(code or 10 * ('pydantic' in sys.modules))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], input=(TRACEBACK + OOM).encode(), capture_output=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["kind"] == "cuda_oom"
