"""One pass over the rows of an evaluation, batch by batch; one that an attempt before was killed in goes on."""

from __future__ import annotations

import hashlib
import importlib.metadata
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import torch
import xxhash
from torch.utils.data import DataLoader

from trainer.checkpoint import Provenance, library_versions
from trainer.collate import BinCollator
from trainer.evaluation import Evaluated, losses_by_row, row_losses
from trainer.kept_batches import Batch, EvaluationKey, KeptBatches
from trainer.ranks import Ranks, bins_of_rank
from trainer.reporting import Reporter
from trainer.step_boundary import EvaluationInterruptedError

TokenLosses = Callable[[dict[str, Any]], torch.Tensor]
"""From a collated batch to float32 [N], the nats of each labelled position in their order."""


@dataclass
class EvaluationPass:
    """``validation`` and ``sample`` (of training rows) are evaluated in this order, ``batch_bins`` bins at a time.

    The ranks take turns with the batches.
    """

    validation: BinCollator
    sample: BinCollator
    batch_bins: int
    ranks: Ranks
    reporter: Reporter
    kept: KeptBatches

    def run(self, key: EvaluationKey, token_losses: TokenLosses) -> Evaluated:
        """The loss of every row. Raises EvaluationInterruptedError when asked to stop, between two batches."""
        kept = self.kept.open(key)
        done = min(self.ranks.gather(len(kept)))
        self.kept.go_on(done)
        batches = kept[:done]
        of_validation, of_sample = (self._batches_of(bins) for bins in (self.validation, self.sample))
        if done:
            self.reporter.event(
                "evaluation_resumed",
                f"{done} of {of_validation + of_sample} batches had been evaluated before; going on after them",
                batches=done,
            )
        try:
            for bins, first in ((self.validation, done), (self.sample, max(0, done - of_validation))):
                for batch in self._evaluated(bins, first, token_losses):
                    batches.append(batch)
                    self.kept.add(batch)
        finally:
            self.kept.close()
        return Evaluated(
            row_losses(self.validation.rows, self._of_all_ranks(batches[:of_validation])),
            row_losses(self.sample.rows, self._of_all_ranks(batches[of_validation:])),
            seconds=sum(batch.seconds for batch in batches),
        )

    def batches(self, bins: BinCollator, first: int = 0) -> DataLoader[Any]:
        """This rank's batches, from its number ``first`` on."""
        mine = [{"bin": int(index)} for index in self._bins_of(bins)[first * self.batch_bins :]]
        # A generator of its own: an iterator would otherwise draw its seed from the training's stream.
        return DataLoader(
            mine,  # type: ignore[arg-type]  # a list is a map-style data set
            batch_size=self.batch_bins,
            collate_fn=bins,
            generator=torch.Generator(),
        )

    def _bins_of(self, bins: BinCollator) -> Any:
        return bins_of_rank(0, bins.plan.total_bins, self.batch_bins, self.ranks)

    def _batches_of(self, bins: BinCollator) -> int:
        return -(-len(self._bins_of(bins)) // self.batch_bins)

    def _of_all_ranks(self, batches: list[Batch]) -> list[tuple[int, float, int]]:
        mine = [row for batch in batches for row in batch.rows]
        return [row for rows in self.ranks.gather(mine) for row in rows]

    def _evaluated(self, bins: BinCollator, first: int, token_losses: TokenLosses) -> Iterator[Batch]:
        for number, inputs in enumerate(self.batches(bins, first), start=first):
            if self.ranks.any(self.reporter.stop_requested):
                raise EvaluationInterruptedError
            started = time.monotonic()
            rows = inputs.pop("rows")
            inputs.pop("tokens")
            losses = token_losses(inputs)
            first_bin = (number * self.ranks.size + self.ranks.index) * self.batch_bins
            of_batch = tuple(losses_by_row(bins, first_bin, inputs, losses))
            if len(of_batch) != rows:
                raise AssertionError(f"{rows} rows went into a batch and {len(of_batch)} came out")
            self.reporter.beat()
            yield Batch(of_batch, round(time.monotonic() - started, 4))

    # --- what the figures depend on ---------------------------------------------------------------------

    def key(self, lineage: int, step: int, adapter: Mapping[str, torch.Tensor], computed: str) -> EvaluationKey:
        return EvaluationKey(lineage, step, adapter_digest(adapter), self._rows, computed)

    @cached_property
    def _rows(self) -> str:
        digest = hashlib.sha256(f"{self.batch_bins} {self.ranks.index} of {self.ranks.size}".encode())
        for bins in (self.validation, self.sample):
            plan = bins.plan.fingerprint(bins.rows.fingerprint())
            digest.update(f"{bins.pad_token_id} {bins.flatten} {plan}".encode())
        return digest.hexdigest()


def adapter_digest(adapter: Mapping[str, torch.Tensor]) -> str:
    """Of names, types, shapes and numbers."""
    digest = xxhash.xxh3_128()
    for name, tensor in sorted(adapter.items()):
        data = tensor.detach().contiguous().cpu()
        digest.update(f"{name} {data.dtype} {tuple(data.shape)}".encode())
        digest.update(data.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def computed_by(provenance: Provenance, device: torch.device) -> str:
    """Digest of the configuration, the base, the programs' versions and the machine's way of computing."""
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    versions = {**library_versions(), "mens-supervisor": importlib.metadata.version("mens-supervisor")}
    parts = (provenance.config, provenance.identity, versions, device.type, machine, torch.get_num_threads())
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()
