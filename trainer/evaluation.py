"""Evaluations row by row, and what is said of them: noise, patience, the memorisation alarm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch

from trainer.collate import BinCollator
from trainer.data.plan import PlanSpec, Segment, build_plan
from trainer.data.token_rows import TokenRows
from trainer.early_stop import Judged, Standing, Verdict, judge, stops
from trainer.errors import DataProblemError
from trainer.eval_noise import RowLosses, needed_share, smallest_visible
from trainer.head_loss import IGNORED
from trainer.reporting import Reporter

if TYPE_CHECKING:
    from trainer.config import SftSections

ALARM_DEVIATIONS = 3.0
"""Standard errors by which validation must be easier than training before that is called suspicious."""
SAMPLE_SHARE = 4
SMALLEST_SAMPLE, LARGEST_SAMPLE = 16, 64
"""Training rows that are evaluated besides, to compare with: a quarter as many as validation rows, within these."""


def evaluation_bins(rows: TokenRows, sections: SftSections, pad_token_id: int, flatten: bool) -> BinCollator:
    """Every row once, packed like the training rows."""
    train = sections.train
    spec = PlanSpec(
        seed=train.seed, packing=train.packing, bins_per_step=1, segments=(Segment(train.max_length, 0),), epochs=1.0
    )
    return BinCollator(rows, build_plan(len(rows), rows.lengths, spec), pad_token_id, flatten)


def training_sample(rows: TokenRows, validation_rows: int, seed: int) -> TokenRows:
    """Some training rows, the same ones throughout a run, whose loss the validation loss is compared with."""
    wanted = min(max(validation_rows // SAMPLE_SHARE, SMALLEST_SAMPLE), LARGEST_SAMPLE, len(rows))
    chosen = np.random.Generator(np.random.PCG64([seed, 1])).choice(len(rows), wanted, replace=False)
    return rows.select(sorted(chosen.tolist()))


def losses_by_row(
    bins: BinCollator, first_bin: int, inputs: dict[str, Any], losses: torch.Tensor
) -> Iterator[tuple[int, float, int]]:
    """``(row, nats, label tokens)`` of a batch of bins from ``first_bin`` on.

    ``inputs`` as the collator made them; ``losses`` float32 [N], one for each labelled position in their order.
    """
    positions = inputs["position_ids"]
    documents = (positions == 0).flatten().cumsum(0).reshape(positions.shape) - 1
    owner = documents[:, 1:][inputs["labels"][:, 1:] != IGNORED].cpu().numpy()
    count = int(documents.max()) + 1
    nats = np.bincount(owner, weights=losses.double().cpu().numpy(), minlength=count)
    tokens = np.bincount(owner, minlength=count)
    document = 0
    bin_index = first_bin
    for sequence in (positions == 0).sum(dim=1).tolist():
        rows: list[int] = []
        while len(rows) < sequence and bin_index < bins.plan.total_bins:
            rows += bins.plan.bin(bin_index).tolist()
            bin_index += 1
            if not bins.flatten:
                break  # what is left of the sequence is padding
        for offset, row in enumerate(rows):
            yield row, float(nats[document + offset]), int(tokens[document + offset])
        document += sequence


def row_losses(rows: TokenRows, found: Sequence[tuple[int, float, int]]) -> RowLosses:
    """All of an evaluation's rows, in the order of the rows. Raises ValueError when one is missing."""
    by_row = sorted(found)
    if [row for row, _, _ in by_row] != list(range(len(rows))):
        raise ValueError("an evaluation must have each row once")
    return RowLosses(
        np.array([nats for _, nats, _ in by_row], np.float64),
        np.array([tokens for _, _, tokens in by_row], np.int64),
        rows.groups,
    )


@dataclass(frozen=True)
class Evaluated:
    """One evaluation of the validation rows and of the sample of training rows."""

    validation: RowLosses
    sample: RowLosses
    seconds: float


class Evaluations:
    """Keeps the standing up to date and says what an evaluation means."""

    def __init__(self, sections: SftSections, reporter: Reporter, standing: Standing, held_out: bool) -> None:
        self._section = sections.eval
        self._fraction = None if held_out else sections.data.validation.fraction
        self._reporter = reporter
        self.standing = standing
        self._encoded: bytes | None = None

    @property
    def encoded(self) -> bytes:
        """The standing as it is kept in checkpoints; worked out once for each evaluation."""
        if self._encoded is None:
            self._encoded = msgspec.json.encode(self.standing)
        return self._encoded

    @property
    def over(self) -> str | None:
        """Why training ends before its last planned step, None while it goes on."""
        standing, patience = self.standing, self._section.early_stopping_patience
        if not stops(standing, patience) or standing.reference is None:
            return None
        return (
            f"the validation loss has gained less than {self._section.min_delta:g} nats per token on that of step "
            f"{standing.reference.step} in {standing.stale} evaluations, beyond their noise"
        )

    def take(self, step: int, found: Evaluated) -> None:
        """Report an evaluation and enter it. Raises DataProblemError: too few rows, and no step is trained yet."""
        losses, sample = found.validation, found.sample
        first = self.standing.step < 0
        judged = judge(self.standing, step, losses, self._section.min_delta)
        self.standing = judged.standing
        data: dict[str, Any] = {
            "eval_loss": losses.loss,
            "eval_loss_stderr": losses.stderr,
            "eval_tokens": losses.label_tokens,
            "eval_groups": losses.clusters,
            "train_sample_loss": sample.loss,
            "train_sample_loss_stderr": sample.stderr,
            "verdict": judged.verdict.value,
            "seconds": round(found.seconds, 2),
        }
        if judged.difference is not None:
            data["gain"], data["gain_noise"] = judged.difference.gain, judged.difference.noise
        self._reporter.event("evaluation", _sentence(judged, self._section.early_stopping_patience), **data)
        self._check_memorisation(step, losses, sample)
        self._encoded = None
        if first:
            self._check_size(step, losses)

    def _check_memorisation(self, step: int, losses: RowLosses, sample: RowLosses) -> None:
        gap = suspicious_gap(losses, sample)
        if gap is None or self.standing.alarmed:
            return
        self.standing = msgspec.structs.replace(self.standing, alarmed=True)
        meaning = (
            "before any training, so the validation rows are easier than the training rows or the base model knows them"
            if step == 0
            else "so they are trained on in some form (a leak), or easier than the training rows"
        )
        self._reporter.event(
            "alarm",
            f"memorisation suspected: the loss on the validation rows, {losses.loss:.4f}, is {gap:.4f} nats per token "
            f"below that on training rows, {sample.loss:.4f}, which is more than noise; {meaning}. Do not trust the "
            "validation loss before you have looked at where these rows come from",
            what="memorisation",
            gap=gap,
        )

    def _check_size(self, step: int, losses: RowLosses) -> None:
        problem = too_small(losses, self._section.min_delta, self._fraction)
        if problem is None:
            return
        if step == 0:
            raise DataProblemError(problem)
        self._reporter.event("alarm", problem, what="validation_too_small")


def suspicious_gap(validation: RowLosses, sample: RowLosses) -> float | None:
    """By how many nats per token validation is easier than training, when that is more than noise."""
    if validation.stderr is None or sample.stderr is None:
        return None
    gap = sample.loss - validation.loss
    return gap if gap > ALARM_DEVIATIONS * (validation.stderr**2 + sample.stderr**2) ** 0.5 else None


def too_small(losses: RowLosses, min_delta: float, fraction: float | None) -> str | None:
    """Why the validation rows cannot show a difference of ``min_delta``, with the size that could; None if they can.

    ``fraction``: the share of the rows that was split off, None for a file of held-out rows.
    """
    rows, tokens = len(losses.tokens), losses.label_tokens
    have = f"{rows} validation rows with {tokens} label tokens"
    visible = smallest_visible(losses)
    if visible is None:
        return (
            f"data.validation: {have} that all belong to one group of like rows say nothing about the noise of their "
            "loss. Bring at least two groups, better hundreds of rows."
        )
    if visible <= min_delta:
        return None
    share = needed_share(visible, min_delta)
    remedy = "Bring a larger data.validation.path"
    if fraction is not None:
        wanted = min(0.5, fraction * share)
        remedy = f"Raise data.validation.fraction to {wanted:.3g} and data.validation.max_rows to {_up(rows * share)}"
    return (
        f"data.validation: {have} are too few: their loss is {losses.loss:.3f} ± {losses.stderr:.3f} nats per token, "
        f"so two checkpoints that differ by less than {visible:.3g} cannot be told apart, and eval.min_delta is "
        f"{min_delta:g}. About {_up(tokens * share)} label tokens ({_up(rows * share)} rows) are needed. {remedy}, or "
        f"set eval.min_delta to {_up_figure(visible)} to be content with what these rows can show."
    )


def _sentence(judged: Judged, patience: int | None) -> str:
    if judged.difference is None or judged.standing.reference is None:
        return ""
    gain, noise = judged.difference.gain, judged.difference.noise
    figure = f"gain {gain:+.4f}" + ("" if noise is None else f" ± {noise:.4f}")
    match judged.verdict:
        case Verdict.BETTER:
            return f"{figure}: better than before"
        case Verdict.STALE:
            allowed = "" if patience is None else f" of {patience}"
            stale = f"no gain worth min_delta ({judged.standing.stale}{allowed})"
            return f"{figure} on step {judged.standing.reference.step}: {stale}"
        case _:
            return f"{figure} on step {judged.standing.reference.step}: within noise, not counted"


def _up(count: float) -> int:
    """Rounded up to two figures."""
    step = 10 ** max(0, len(str(int(count))) - 2)
    return int(-(-count // step) * step)


def _up_figure(value: float) -> str:
    text = f"{value:.2g}"
    return text if float(text) >= value else f"{value * 1.05:.2g}"

