"""Several processes of one training: who takes which bins, how they end together, and that they learn the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import Attempt, Tiny, distance

from supervisor.config import ConfigError, load_config
from supervisor.protocol.attempt import (
    EXIT_CODES,
    SPEC_VARIABLE,
    AttemptSpec,
    ExitKind,
    ExitReport,
    read_exit_report,
    read_spec,
    write_spec,
)
from supervisor.protocol.events import read_events
from supervisor.protocol.lock import lock_holder
from supervisor.protocol.manifest import read_manifest
from supervisor.protocol.paths import AttemptPaths, RunPaths
from trainer.launcher import RankEnd, first_cause
from trainer.ranks import NOTHING, Ranks, StepExchange, bins_of_rank

STAND_IN = Path(__file__).parents[1] / "stand_ins" / "rank_program.py"
CAP_SECONDS = 120.0
FOREVER = ["sleep", "600"]

# --- who takes which bins -----------------------------------------------------------------------


@given(
    size=st.integers(1, 5), micro=st.integers(1, 4), accumulation=st.integers(1, 4), steps=st.integers(0, 4),
    rest=st.integers(1, 80),
)  # fmt: skip
def test_each_bin_goes_to_one_rank_in_its_step(size: int, micro: int, accumulation: int, steps: int, rest: int) -> None:
    """proves TRN-19, TRN-1"""
    per_step = size * micro * accumulation
    total = steps * per_step + min(rest, per_step)
    parts = [bins_of_rank(0, total, micro, Ranks(index, size)) for index in range(size)]
    assert len({len(part) for part in parts}) == 1, "ranks that take other numbers of micro-batches wait for ever"
    taken = [index for part in parts for index in part.tolist() if index != NOTHING]
    assert sorted(taken) == list(range(total))
    for step in range(steps):
        mine = slice(step * micro * accumulation, (step + 1) * micro * accumulation)
        of_step = sorted(index for part in parts for index in part[mine].tolist())
        assert of_step == list(range(step * per_step, (step + 1) * per_step))
    for step in range(steps + 1):  # a resumed run takes the very same bins
        again = [bins_of_rank(step * per_step, total, micro, Ranks(index, size)) for index in range(size)]
        skipped = step * micro * accumulation
        assert all(np.array_equal(part[skipped:], new) for part, new in zip(parts, again, strict=True))


def test_a_single_process_exchanges_nothing() -> None:
    exchange = StepExchange(Ranks())
    exchange.count(2, 30)
    exchange.count(1, 12)
    assert exchange.finish(True, lambda: pytest.fail("no random state is needed")) == (3, 42)
    assert exchange.stop and exchange.rng_of_others == []
    assert exchange.finish(False, dict) == (0, 0) and not exchange.stop
    assert not torch.distributed.is_initialized()


# --- how they end -------------------------------------------------------------------------------

LOST = ExitReport(ExitKind.PROGRAM_ERROR, "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer")
NAN = ExitReport(ExitKind.NAN_LOSS, "the gradient norm is nan")
DONE = ExitReport(ExitKind.COMPLETED, "all done")
STOPPED = ExitReport(ExitKind.INTERRUPTED, "stopped on request", phase="training")
NOT_LOADED = ExitReport(ExitKind.INTERRUPTED, "asked to stop while loading", phase="loading")


def end(rank: int, status: int, report: ExitReport | None = None, killed: bool = False) -> RankEnd:
    return RankEnd(rank, 100 + rank, status, report, killed)


@pytest.mark.parametrize(
    ("ends", "cause"),
    [
        ([end(1, 0, DONE), end(0, 0, DONE)], None),
        ([end(1, -11, DONE), end(0, 0, DONE)], None),  # in teardown, after everything was done
        ([end(1, 3, STOPPED), end(0, 3, STOPPED)], None),
        ([end(0, 70, LOST), end(1, -9)], 1),
        ([end(0, 70, LOST), end(2, 70, LOST), end(1, 73, NAN)], 1),
        ([end(1, -9), end(0, 70, LOST)], 1),
        ([end(1, 1), end(0, -9, killed=True)], 1),
        ([end(0, 70, LOST), end(1, 3, NOT_LOADED)], 1),
        ([end(0, 0, DONE), end(1, -9, killed=True)], 1),
        ([end(1, 0, DONE), end(0, -9, killed=True)], 0),
        ([end(0, 70, LOST), end(1, 70, LOST)], 0),
    ],
)
def test_the_first_cause_is_no_consequence(ends: Sequence[RankEnd], cause: int | None) -> None:
    """proves TRN-19"""
    found = first_cause(ends)
    assert (found.rank if found else None) == cause


class Launched:
    """The launcher as a process of its own, its ranks stand-ins that do what ``scripts`` say."""

    def __init__(self, run_dir: Path, scripts: Sequence[Sequence[Sequence[str]]]) -> None:
        self.paths = RunPaths(run_dir)
        self.files: AttemptPaths = self.paths.attempt(1)
        self.files.root.mkdir(parents=True)
        spec = AttemptSpec(str(run_dir), 1, 1, "unused", None, 10, processes=len(scripts))
        write_spec(self.files.spec, spec)
        code = (
            "import sys; from pathlib import Path; from supervisor.protocol.attempt import read_spec\n"
            "from trainer.launcher import run_ranks\n"
            "assert 'torch' not in sys.modules\n"
            f"sys.exit(run_ranks(read_spec(Path({str(self.files.spec)!r})), [sys.executable, {str(STAND_IN)!r}]))\n"
        )
        environment = {**os.environ, SPEC_VARIABLE: str(self.files.spec), "RANK_SCRIPT": json.dumps(scripts)}
        with open(self.files.stderr, "wb") as log:
            self.process = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=log)

    def pid(self, rank: int) -> int:
        """Of a rank, as soon as it runs."""
        written = self.files.root / f"pid-{rank}"
        until(lambda: written.exists() and written.read_text() != "")
        return int(written.read_text())

    def ended(self) -> int:
        return self.process.wait(CAP_SECONDS)

    @property
    def report(self) -> ExitReport | None:
        return read_exit_report(self.files.exit_report)

    def told(self) -> list[str]:
        return [event.message for event in read_events(self.paths.events) if event.kind == "rank_ended"]


def until(condition: Any) -> None:
    deadline = time.monotonic() + CAP_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_killed_rank_takes_the_others_and_the_launcher_down(tmp_path: Path) -> None:
    """proves TRN-19: the supervisor sees the very signal, the log says which rank"""
    launched = Launched(tmp_path / "run", [[FOREVER], [["say", "terminate called without"], ["kill", "SIGKILL"]]])
    other = launched.pid(0)
    assert launched.ended() == -signal.SIGKILL
    assert not lives(other)
    assert launched.report is None
    (message,) = launched.told()
    assert message.startswith("rank 1 (process ") and "was ended by SIGKILL; the other rank was ended" in message
    log = launched.files.stderr.read_text()
    assert "--- the end of rank-1.log:\nterminate called without\n" in log and log.endswith(f"{message}\n")


def test_the_report_is_that_of_the_rank_that_failed(tmp_path: Path) -> None:
    """proves TRN-19: whoever lost a peer may be the first to end"""
    lost = [["await", "1"], ["report", "program_error", LOST.message], ["exit", "70"]]
    failed = [["report", "cuda_oom", "CUDA out of memory"], ["await", "0"], ["exit", "71"]]
    launched = Launched(tmp_path / "run", [lost, failed])
    assert launched.ended() == EXIT_CODES[ExitKind.CUDA_OOM]
    assert launched.report is not None
    assert (launched.report.kind, launched.report.message) == (ExitKind.CUDA_OOM, "rank 1: CUDA out of memory")
    assert launched.report.step == 3


def test_what_all_ranks_say_is_nobodys_fault(tmp_path: Path) -> None:
    both = [["report", "data_error", "rows.jsonl:3: no answer"], ["exit", "65"]]
    launched = Launched(tmp_path / "run", [both, both])
    assert launched.ended() == EXIT_CODES[ExitKind.DATA_ERROR]
    assert launched.report is not None and launched.report.message == "rows.jsonl:3: no answer"
    assert launched.told() == []


def test_a_request_to_stop_reaches_every_rank(tmp_path: Path) -> None:
    """proves TRN-19, SUP-9"""
    launched = Launched(tmp_path / "run", [[["on-term"], FOREVER], [["on-term"], FOREVER]])
    for rank in (0, 1):
        pid = launched.pid(rank)
        until(lambda pid=pid: catches_term(pid))
    launched.process.terminate()
    assert launched.ended() == EXIT_CODES[ExitKind.INTERRUPTED]
    assert launched.report is not None and launched.report.message.startswith("stopped on request at optimiser step 3")
    assert launched.told() == []


def catches_term(pid: int) -> bool:
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_no_rank_outlives_the_launcher(tmp_path: Path) -> None:
    """proves TRN-19: the lock goes with the launcher, so the ranks must as well"""
    launched = Launched(tmp_path / "run", [[FOREVER], [FOREVER]])
    pids = [launched.pid(rank) for rank in (0, 1)]
    launched.process.kill()
    launched.ended()
    until(lambda: not any(lives(pid) for pid in pids))


# --- the configuration --------------------------------------------------------------------------


def refused(tiny: Tiny, place: Path, *lines: str, changes: dict[str, Any] | None = None) -> str:
    from supervisor.yaml_source import render_yaml

    file = place / "job.yaml"
    document = render_yaml({"kind": "sft", **tiny.with_changes(changes)})
    file.write_text("\n".join(["launch:", *(f"  {line}" for line in lines), document]))
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    return str(caught.value)


# proves TRN-19, TRN-9
def test_what_does_not_go_together_is_refused_where_it_stands(tiny: Tiny, tmp_path: Path) -> None:
    assert "job.yaml:2: launch.strategy: fsdp divides the model among processes, and there is one" in (
        refused(tiny, tmp_path, "strategy: fsdp")
    )
    assert "job.yaml:2: launch.processes must be at least 1" in refused(tiny, tmp_path, "processes: 0")
    assert "job.yaml:2: launch.strategy" in refused(tiny, tmp_path, "strategy: zero")


# proves TRN-11: what the CPU does not have is refused by name instead of replaced in silence
def test_what_the_cpu_does_not_have_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    paged = refused(tiny, tmp_path, "processes: 1", changes={"train.optim": "paged_adamw_8bit"})
    assert "train.optim: bitsandbytes has no paged memory on the CPU" in paged and "job.yaml:" in paged
    flash = refused(tiny, tmp_path, "processes: 1", changes={"model.attn_implementation": "flash_attention_2"})
    assert "flash_attention_2 has no kernels for the CPU" in flash


def test_a_command_starts_its_own_ranks(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("kind: command\ncommand: [echo, hello]\nlaunch:\n  processes: 2\n")
    with pytest.raises(ConfigError, match=r"job.yaml:4: launch.processes is 2, and a job of kind command starts no"):
        load_config(file)


# --- two processes of the real trainer ----------------------------------------------------------

SPLIT = {
    "train.packing": False, "train.max_steps": -1, "train.num_train_epochs": 1.0, "eval.eval_on_start": True,
    "train.per_device_train_batch_size": 1,
}  # fmt: skip
SAME = 3e-5
"""As in test_accumulation.py: the order of fp32 sums."""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """19 rows, one per sequence: two windows of 8 and a tail of 3, of which one rank has two."""
    return Tiny(tmp_path_factory.mktemp("ranks"), rows=19)


@pytest.fixture(scope="module")
def alone(unpacked: Tiny) -> Attempt:
    return unpacked.run("alone", {**SPLIT, "train.gradient_accumulation_steps": 8})


@pytest.fixture(scope="module")
def two(unpacked: Tiny) -> Attempt:
    file = unpacked.prepare("two", {**SPLIT, "train.gradient_accumulation_steps": 4}, save_steps=2)
    return train_together(file)


def train_together(file: Path, **changes: Any) -> Attempt:
    """``python -m trainer`` with two ranks, to its end."""
    spec = msgspec.structs.replace(read_spec(file), processes=2, **changes)
    write_spec(file, spec)
    environment = {**os.environ, SPEC_VARIABLE: str(file)}
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "trainer"], env=environment, capture_output=True, text=True, check=False
    )
    attempt = Attempt(RunPaths(Path(spec.run_dir)))
    attempt.report = read_exit_report(attempt.paths.attempt(spec.attempt).exit_report)
    assert attempt.report is not None, ended.stderr
    return attempt


# proves TRN-1, TRN-19: 2 processes x accumulation 4 is 1 process x accumulation 8, tail included
def test_two_processes_learn_what_one_learns(alone: Attempt, two: Attempt) -> None:
    assert two.report is not None and two.report.kind is ExitKind.COMPLETED, two.report
    assert len(two.progress("loss")) == len(alone.progress("loss")) == 3
    for key in ("loss", "grad_norm", "grad_norm_clipped"):
        assert two.progress(key) == pytest.approx(alone.progress(key), rel=1e-5)
    found = distance(alone.adapter(3), two.adapter(3))
    print(f"largest relative difference of the adapters: {found:.1e}")
    assert found < SAME


# proves TRN-19, TRN-8: each row is evaluated once, whoever does it
def test_the_evaluation_is_that_of_one_process(alone: Attempt, two: Attempt) -> None:
    ours, theirs = two.events("evaluation"), alone.events("evaluation")
    assert [event.step for event in ours][:1] == [0] and len(ours) > len(theirs) - 1
    assert ours[0].data["eval_tokens"] == theirs[0].data["eval_tokens"]
    assert ours[0].data["eval_loss"] == pytest.approx(theirs[0].data["eval_loss"], rel=1e-6)
    assert ours[-1].data["eval_loss"] == pytest.approx(theirs[-1].data["eval_loss"], rel=1e-5)


# proves TRN-19: one account of the run, with the work of all ranks in it
def test_only_one_rank_writes_for_all(alone: Attempt, two: Attempt) -> None:
    assert two.progress("rows_seen") == alone.progress("rows_seen") == [8, 16, 19]
    assert two.progress("tokens_seen") == alone.progress("tokens_seen")
    assert two.report is not None and alone.report is not None
    assert two.report.done == two.report.planned == alone.report.done
    assert len(two.events("plan")) == len(two.events("corpus")) == 1
    assert [event.step for event in two.events("checkpoint")] == [2, 3]
    assert lock_holder(two.paths.trainer_lock) is None
    for rank in (0, 1):
        told = read_exit_report(two.paths.attempt(1).rank_report(rank))
        assert told is not None and told.kind is ExitKind.COMPLETED


# proves TRN-12, TRN-19: each rank's random state is in the checkpoint, and they are not the same
def test_the_checkpoint_holds_every_ranks_random_state(two: Attempt) -> None:
    folder = two.paths.checkpoint(2)
    manifest = read_manifest(folder)
    assert manifest.identity["global_batch"] == "8" and manifest.identity["ranks"] == "2"
    states = [torch.load(folder / name, weights_only=False)["cpu"] for name in ("rng_state.pth", "rng_state_1.pth")]
    assert {"rng_state.pth", "rng_state_1.pth"} <= set(manifest.files)
    assert not torch.equal(states[0], states[1])


HARD = {"train.max_steps": 5, "model.lora.lora_dropout": 0.2, "model.quantization": "nf4", "train.packing": True}


# proves TRN-12, TRN-19: with dropout and packing, resumed in the middle of an epoch
@pytest.mark.slow
def test_resuming_two_processes_is_exact(tiny: Tiny) -> None:
    whole = train_together(tiny.prepare("two-whole", HARD, save_steps=2))
    file = tiny.prepare("two-resumed", HARD, save_steps=2)
    again = train_together(file, resume_from=str(whole.paths.checkpoint(2)), resume_step=2)
    assert distance(whole.adapter(5), again.adapter(5)) == 0
    assert whole.progress("loss")[2:] == again.progress("loss")


# proves TRN-15, TRN-19: what is not finite in one rank is so in all, and they end for that reason
@pytest.mark.slow
def test_a_gradient_that_is_not_finite_ends_all_ranks(tiny: Tiny) -> None:
    run = train_together(tiny.prepare("two-nan", {"train.learning_rate": 1e30, "train.max_grad_norm": 0.0}))
    assert run.report is not None
    assert run.report.kind is ExitKind.NAN_LOSS, run.report
    assert "the step was not taken" in run.report.message and not run.events("rank_ended")


# proves TRN-13, TRN-19
@pytest.mark.slow
def test_another_number_of_processes_is_named(tiny: Tiny) -> None:
    whole = train_together(tiny.prepare("two-then-one", {}, save_steps=2))
    with pytest.raises(Exception, match="ranks: checkpoint 2, now 1"):
        tiny.run(
            "one-after-two",
            {"train.gradient_accumulation_steps": 4},
            resume_from=whole.paths.checkpoint(2),
        )
