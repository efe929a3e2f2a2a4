"""Several processes of one machine: what all of them need together. proves TRN-16, TRN-19."""

from __future__ import annotations

from typing import Any

from supervisor.protocol.forecast import MemoryForecast, Question
from trainer.planner.__main__ import _of_all_processes

ONE = MemoryForecast(
    base="b", parts={"weights": 5, "activations": 2}, tensor_bytes=7, allocator_bytes=1, context_bytes=2, peak_bytes=10,
    conditions="as asked",
)  # fmt: skip


def asked(device: Any, **launch: Any) -> MemoryForecast:
    return _of_all_processes(ONE, Question("memory", {"launch": launch}, device))


def test_on_a_cpu_the_processes_share_the_memory() -> None:
    assert asked("cpu") == asked("cpu", processes=1) == ONE
    four = asked("cpu", processes=4)
    assert (four.peak_bytes, four.tensor_bytes, four.parts) == (40, 28, {"weights": 20, "activations": 8})
    assert four.allocator_bytes + four.context_bytes + four.tensor_bytes == four.peak_bytes
    assert four.conditions == "as asked, in each of 4 processes that share the memory"


def test_each_gpu_has_a_process() -> None:
    assert asked("cuda", processes=4) == ONE
    assert asked("cuda", processes=4, strategy="fsdp").at_most
