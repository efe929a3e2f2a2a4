"""Longest row, steps, tokens and epochs of a configuration, from its rendered data and its data plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.protocol.forecast import DataForecast
from trainer.base_names import is_local
from trainer.config import SftSections
from trainer.errors import TrainerError, one_paragraph

if TYPE_CHECKING:
    from trainer.data.token_rows import TokenRows

_TOKENIZER = "tokenizer.json"


class _Quiet:
    """Takes the place of an attempt's reporter: nothing runs that could be told."""

    def beat(self) -> None:
        pass

    def warn(self, message: str) -> None:
        pass


def forecast_data(sections: SftSections, document: Mapping[str, Any]) -> DataForecast:
    """Reads and renders the data (once: the corpus is cached as for a run), but fetches nothing from the hub."""
    steps = sections.train.max_steps if sections.train.max_steps > 0 else None
    base = sections.model.base
    if not is_local(base):
        folder = _hub_folder(base, sections.model.revision)
        if folder is None:
            return DataForecast(
                unknown=(
                    f"the tokenizer of {base} is not on this disk, so the rows cannot be counted in tokens. Fetch it "
                    f"with `hf download {base} --include '*token*' --include 'config.json'`"
                ),
                planned_steps=steps,
            )
    try:
        return _counted(sections, document)
    except (TrainerError, OSError) as error:
        return DataForecast(unknown=one_paragraph(error), planned_steps=steps)


def _counted(sections: SftSections, document: Mapping[str, Any]) -> DataForecast:
    from trainer.base_model import BaseModel, load_tokenizer, locate
    from trainer.data.plan import Segment
    from trainer.run import corpus_of, make_renderer, training_plan

    base_name, revision = sections.model.base, sections.model.revision
    if is_local(base_name):
        base = locate(base_name, revision)
    else:
        folder = _hub_folder(base_name, revision)
        assert folder is not None
        base = BaseModel(base_name, folder, folder.name, from_hub=True)
    renderer = make_renderer(sections, base, load_tokenizer(base))
    corpus = corpus_of(sections, base, renderer, _Quiet())  # type: ignore[arg-type]
    ranks = int(document.get("launch", {}).get("processes", 1))
    plan = training_plan(sections, corpus.train, (Segment(sections.train.max_length, 0),), ranks)
    report = corpus.report
    return DataForecast(
        rows=report.rows,
        tokens=report.tokens,
        validation_rows=report.validation_rows,
        longest_row=report.longest_row,
        longest_sequence=max(plan.longest_bin, _longest_evaluated(sections, corpus.validation)),
        trimmed_rows=report.trimmed_rows,
        planned_steps=plan.total_steps,
        planned_tokens=plan.planned_tokens,
        planned_rows=plan.planned_rows,
        epochs=round(plan.planned_rows / report.rows, 3),
        histogram=tuple(report.histogram),
    )


def _longest_evaluated(sections: SftSections, rows: TokenRows) -> int:
    """Of the validation rows, packed as :func:`trainer.evaluation.evaluation_bins` does it."""
    from trainer.data.plan import PlanSpec, Segment, build_plan

    train = sections.train
    segments = (Segment(train.max_length, 0),)
    spec = PlanSpec(seed=train.seed, packing=train.packing, bins_per_step=1, segments=segments, epochs=1.0)
    return build_plan(len(rows), rows.lengths, spec).longest_bin


def _hub_folder(base: str, revision: str | None) -> Path | None:
    """The snapshot of a hub model that holds its tokenizer, None when it isn't on this disk."""
    from trainer.planner.shapes import hub_file

    found = hub_file(base, revision, _TOKENIZER)
    return found.parent if found is not None else None
