"""``python -m trainer.planner``: answer the supervisor's questions about configurations, a JSON line each.

See supervisor/protocol/forecast.py. Starts light: torch is imported when something has to be traced or rendered.
"""

from __future__ import annotations

import os
import sys
import warnings

import msgspec

from supervisor.protocol.forecast import DataForecast, MemoryForecast, Question
from trainer.errors import TrainerError, one_paragraph
from trainer.planner.predict import forecast_memory, sections_of


def main() -> int:
    os.environ["HF_HUB_OFFLINE"] = "1"  # a plan fetches nothing
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # nor does it take any of a card's memory
    warnings.simplefilter("ignore")
    # Libraries print; the answers need standard output for themselves.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin.buffer:
        answers.write(msgspec.json.encode(answer(msgspec.json.decode(line, type=Question))) + b"\n")
        answers.flush()
    return 0


def answer(question: Question) -> MemoryForecast | DataForecast:
    sections = sections_of(question.document)
    if question.what == "memory":
        try:
            return _of_all_processes(forecast_memory(sections, question.device, question.tokens), question)
        except TrainerError as error:  # what would end a run before its first step as well
            return MemoryForecast(unknown=one_paragraph(error), base=sections.model.base)
    from trainer.planner.data import forecast_data

    return forecast_data(sections, question.document)


def _of_all_processes(forecast: MemoryForecast, question: Question) -> MemoryForecast:
    """On GPUs each process has a card of its own, on a CPU all of them share the memory.

    With fsdp the ranks share the frozen base, and what each borrows for a moment is not traced.
    """
    launch = question.document.get("launch", {})
    processes = launch.get("processes", 1)
    if forecast.unknown or processes < 2:
        return forecast
    if question.device == "cpu":
        forecast = msgspec.structs.replace(
            forecast,
            parts={name: processes * size for name, size in forecast.parts.items()},
            tensor_bytes=processes * forecast.tensor_bytes,
            allocator_bytes=processes * forecast.allocator_bytes,
            context_bytes=processes * forecast.context_bytes,
            peak_bytes=processes * forecast.peak_bytes,
            conditions=f"{forecast.conditions}, in each of {processes} processes that share the memory",
        )
    if launch.get("strategy") != "fsdp":
        return forecast
    conditions = f"{forecast.conditions}, the whole base in each process, though fsdp divides it"
    return msgspec.structs.replace(forecast, conditions=conditions, at_most=True)


if __name__ == "__main__":
    sys.exit(main())
