"""One attempt from configuration to the last checkpoint: read this file top to bottom."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from supervisor.protocol.attempt import AttemptSpec, ExitKind, ExitReport
from supervisor.protocol.heartbeat import Phase
from supervisor.protocol.manifest import Manifest
from trainer.base_model import BaseModel, load_tokenizer, locate, stop_token_ids
from trainer.base_names import RANDOM
from trainer.cache import cache_root
from trainer.checkpoint import (
    DataPosition,
    Provenance,
    check_compatible,
    open_checkpoint,
    read_sources,
    read_standing,
)
from trainer.collate import BinCollator
from trainer.config import SftSections
from trainer.corpus_check import first_difference, from_scratch_sentence, overfit_problem
from trainer.data.built import mixture_warnings, planned_mixture, readiness_problem
from trainer.data.corpus import Corpus, DataError, Validation, build_corpus
from trainer.data.corpus_cache import cached_corpus, corpus_key
from trainer.data.plan import DataPlan, PlanSpec, Segment, build_plan
from trainer.data.render import Renderer
from trainer.data.token_rows import TokenRows
from trainer.early_stop import Standing
from trainer.errors import CheckpointIncompatibleError, ConfigurationError
from trainer.evaluation import Evaluations, evaluation_bins, training_sample
from trainer.held_model import take_model
from trainer.job import sources_of
from trainer.launcher import Place
from trainer.model import add_adapter, choose_device, load_base, trainable_parameters
from trainer.numerics import settle_vector_maths
from trainer.peak_memory import PeakMeter, report_peak
from trainer.ranks import Ranks, meet
from trainer.reporting import Reporter
from trainer.sft import SupervisedSFTTrainer
from trainer.sharding import shard_base
from trainer.training_arguments import check_trackers


def run_attempt(
    sections: SftSections,
    document: Mapping[str, Any],
    spec: AttemptSpec,
    reporter: Reporter,
    place: Place | None = None,
) -> ExitReport:
    """Train until done or asked to stop. Raises what :func:`trainer.errors.classify` understands.

    ``place``: which of several processes this is.
    """
    settle_vector_maths()
    transformers_logging.disable_progress_bar()
    reporter.enter(Phase.LOADING)
    device = choose_device(sections.device, place)
    ranks = meet(place, device)
    if sections.device == "auto" and device.type == "cpu":
        reporter.warn("device: auto found no usable GPU; training on the CPU")
    check_trackers(sections.train.report_to)
    resume_from = Path(spec.resume_from) if spec.resume_from else None
    resumed, position = open_checkpoint(resume_from) if resume_from else (None, None)
    with ranks.first_before_others():
        base = locate(sections.model.base, sections.model.revision or _begun_with(resumed, sections.model.base))
    tokenizer = load_tokenizer(base)
    renderer = make_renderer(sections, base, tokenizer)

    with ranks.first_before_others():
        corpus = corpus_of(sections, base, renderer, reporter)
    train, validation = corpus.train, corpus.validation
    reporter.event("corpus", **corpus.report.as_dict())
    _check_ready(corpus, resumed is not None, reporter)
    identity = _identity(sections, base, renderer, corpus, ranks.size)
    if resumed is not None:
        before = read_sources(resume_from, resumed) if resume_from else None
        sources = first_difference(before, corpus.report.sources) if before is not None else ""
        for difference in check_compatible(resumed, identity, spec.accepted_changes, sources):
            reporter.event("accepted_change", difference)

    segments = _segments(position, sections.train.max_length)
    plan = training_plan(sections, train, segments, ranks.size)
    start_step = position.step if position else 0
    if resumed is not None and position is not None:
        _check_steps(plan, start_step)
        _check_order(plan, train, resumed, position, identity)
    reporter.event(
        "plan", planned_steps=plan.total_steps, planned_tokens=plan.planned_tokens, planned_rows=plan.planned_rows
    )
    _say_mixture(plan, train, reporter)
    _check_passes(plan, train, spec.force_overfit, reporter)
    planned = _planned(plan, resumed, start_step)
    evaluations = Evaluations(
        sections, reporter, read_standing(resume_from, resumed) if resume_from and resumed else Standing(),
        held_out=sections.data.validation.path is not None,
    )  # fmt: skip
    over = evaluations.over if evaluations.standing.step == start_step else None
    if resumed is not None and (over or (start_step == plan.total_steps and resumed.eval_loss is not None)):
        reporter.beat(step=start_step, planned_steps=start_step)
        reporter.enter(Phase.FINISHED)
        done = {"steps": start_step, "tokens": resumed.tokens_seen, "rows": resumed.rows_seen}
        ranks.part()
        return _parting(_report(planned, done, over), reporter, ranks)

    reporter.beat()
    divided = ranks.size > 1 and spec.strategy == "fsdp"
    held = take_model(base, sections.model, sections.train.seed, device)
    peak = PeakMeter(device, held.resident_bytes if held else 0)
    if held is not None:
        model = held.model
        for sentence in held.said:
            reporter.warn(sentence)
    else:
        with ranks.first_before_others():
            frozen = load_base(base, sections.model, device, reporter.warn, held_on_cpu=divided)
        model = add_adapter(frozen, sections.model.lora, sections.train.seed)
    if divided:
        here, whole = shard_base(model, device, ranks)
        share = f"{here / 2**20:.0f} of {whole / 2**20:.0f} MiB are held by each of the {ranks.size} processes"
        reporter.event("divided", f"the frozen base is divided: {share}", bytes_held={"here": here, "whole": whole})
    if sections.model.base.startswith(RANDOM):
        parameters = sum(parameter.numel() for parameter in trainable_parameters(model).values())
        reporter.event("from_scratch", from_scratch_sentence(base.name, plan.planned_tokens, parameters))
    flatten = sections.model.attn_implementation == "flash_attention_2"
    sample = training_sample(train, len(validation), sections.train.seed)
    trainer = SupervisedSFTTrainer(
        model=model,
        tokenizer=tokenizer,
        sections=sections,
        reporter=reporter,
        train_bins=BinCollator(train, plan, tokenizer.pad_token_id, flatten),
        eval_bins=evaluation_bins(validation, sections, tokenizer.pad_token_id, flatten),
        sample_bins=evaluation_bins(sample, sections, tokenizer.pad_token_id, flatten),
        evaluations=evaluations,
        start_step=start_step,
        provenance=Provenance(
            spec.attempt,
            spec.lineage,
            identity,
            document,
            renderer.describe(),
            renderer.chat_template,
            corpus.report.sources,
        ),
        resume_from=resume_from,
        resumed=resumed,
        device=device,
        ranks=ranks,
    )
    if sections.federated is not None:
        from trainer.federated.mailbox import Mailbox
        from trainer.federated.training import FederatedRounds

        trainer.add_callback(FederatedRounds(trainer, Mailbox(Path(sections.federated.mailbox))))
    if resume_from is not None:
        reporter.beat(step=start_step)
        reporter.event("resumed", f"from {resume_from.name}", path=str(resume_from))
    if start_step == plan.total_steps:
        trainer.only_evaluate()
    else:
        trainer.train(resume_from_checkpoint=str(resume_from) if resume_from else None)
    if ranks.first and start_step < plan.total_steps:
        longest = max(plan.longest_bin, trainer.eval_bins.plan.longest_bin)
        report_peak(peak, sections, longest, reporter, trainer.reached, divided=divided)
    ranks.part()
    reporter.enter(Phase.FINISHED)
    done = {"steps": int(trainer.state.global_step), "tokens": trainer.tokens_done, "rows": trainer.rows_done}
    owed = trainer.evaluation_due(done["steps"])
    over = trainer.ending or (evaluations.over if evaluations.standing.step == done["steps"] else None)
    return _parting(_report(planned, done, over, owed), reporter, ranks)


def _parting(report: ExitReport, reporter: Reporter, ranks: Ranks) -> ExitReport:
    """No evaluation goes on after a training that is over."""
    if report.kind is ExitKind.COMPLETED:
        reporter.paths.kept_batches(ranks.index).unlink(missing_ok=True)
    return report


def _report(planned: dict[str, int], done: dict[str, int], over: str | None, owed: bool = False) -> ExitReport:
    """``over``: why the training came to its end before its last planned step. ``owed``: its evaluation is missing."""
    steps = done["steps"]
    if steps >= planned["steps"] and owed:
        return ExitReport(
            ExitKind.INTERRUPTED, f"stopped on request at optimiser step {steps} of {steps}, before its evaluation",
            step=steps, phase="evaluating", planned=planned, done=done,
        )  # fmt: skip
    if steps < planned["steps"] and over is not None:
        why = f"stopped early at optimiser step {steps} of {planned['steps']}: {over}"
        return ExitReport(
            ExitKind.COMPLETED, why, step=steps, phase="finished", planned=done, done=done, stopped_early=why,
            planned_at_first=planned,
        )
    if steps < planned["steps"]:
        return ExitReport(
            ExitKind.INTERRUPTED, f"stopped on request at optimiser step {steps} of {planned['steps']}",
            step=steps, phase="training", planned=planned, done=done,
        )  # fmt: skip
    return ExitReport(
        ExitKind.COMPLETED, f"all {steps} planned optimiser steps done",
        step=steps, phase="finished", planned=planned, done=done,
    )  # fmt: skip


def make_renderer(sections: SftSections, base: BaseModel, tokenizer: PreTrainedTokenizerBase) -> Renderer:
    model, data = sections.model, sections.data
    return Renderer(
        tokenizer,
        chat_template=Path(model.chat_template).read_text(encoding="utf-8") if model.chat_template else None,
        template_kwargs=model.chat_template_kwargs,
        stop_token_ids=stop_token_ids(base, tokenizer),
        default_system=Path(data.system_prompt_file).read_text(encoding="utf-8").strip()
        if data.system_prompt_file
        else None,
    )


def corpus_of(sections: SftSections, base: BaseModel, renderer: Renderer, reporter: Reporter) -> Corpus:
    data = sections.data
    sources = sources_of(data)
    held_out = Path(data.validation.path) if data.validation.path else None
    settings = {
        "data": data.model_dump(mode="json"),
        "max_length": sections.train.max_length,
        "seed": sections.train.seed,
        "template": renderer.template_hash,
    }

    def build() -> Corpus:
        return build_corpus(
            sources,
            renderer,
            max_length=sections.train.max_length,
            on_bad_row=data.on_bad_row,
            metadata_fields=frozenset(data.metadata_fields),
            curriculum_field=data.curriculum_field,
            validation=Validation(path=held_out, fraction=data.validation.fraction, max_rows=data.validation.max_rows),
            seed=sections.train.seed,
            cache=cache_root() / "declarations",
            on_progress=reporter.beat,
        )

    return cached_corpus(
        cache_root() / "corpus",
        lambda: corpus_key(sources, base.path, settings, held_out),
        build,
        reporter.warn,
    )


def _identity(
    sections: SftSections, base: BaseModel, renderer: Renderer, corpus: Corpus, ranks: int
) -> dict[str, str]:
    """What a resumed attempt must share with the checkpoint, by the names of ``--accept-change``."""
    model, options = sections.model, sections.train
    lora = model.lora
    targets = lora.target_modules if isinstance(lora.target_modules, str) else ",".join(sorted(lora.target_modules))
    return {
        "data": corpus.train.fingerprint()[:16],
        "validation_data": corpus.validation.fingerprint()[:16],
        "base": f"{base.name}@{base.revision}",
        "template": renderer.template_hash[:16],
        "rank": str(lora.r),
        "adapter": f"alpha {lora.lora_alpha:g}, dropout {lora.lora_dropout:g}, targets {targets}",
        "precision": f"{model.quantization}, double_quant {model.double_quant}, dtype {model.dtype}",
        "max_length": str(options.max_length),
        "global_batch": str(options.per_device_train_batch_size * options.gradient_accumulation_steps * ranks),
        "packing": str(options.packing),
        "seed": str(options.seed),
        "optim": options.optim,
        "ranks": str(ranks),
    }


def _begun_with(resumed: Manifest | None, base: str) -> str | None:
    """The hub revision that the checkpoint was trained on, so that a branch may move meanwhile."""
    name, _, revision = resumed.identity.get("base", "").rpartition("@") if resumed else ("", "", "")
    return revision if name == base else None


def _check_ready(corpus: Corpus, resumed: bool, reporter: Reporter) -> None:
    """A run does not begin on a corpus below its thresholds; one that is under way (in a window that relief has
    shortened, perhaps) says so and goes on."""
    if not corpus.unready:
        return
    problem = readiness_problem(corpus.unready)
    if not resumed:
        raise DataError([problem])
    reporter.warn(problem.message)


def _say_mixture(plan: DataPlan, rows: TokenRows, reporter: Reporter) -> None:
    mixture = planned_mixture(plan, rows)
    if mixture is None:
        return
    sentence, sources = mixture
    reporter.event("mixture", sentence, sources=sources)
    for warning in mixture_warnings(sources):
        reporter.warn(warning)


def _segments(position: DataPosition | None, max_length: int) -> tuple[Segment, ...]:
    """The plan's segments, with a new one where the sequence length changed."""
    if position is None:
        return (Segment(max_length, 0),)
    if position.segments[-1].max_length == max_length:
        return position.segments
    kept = tuple(segment for segment in position.segments if segment.first_step < position.step)
    return (*kept, Segment(max_length, position.step))


def training_plan(
    sections: SftSections, rows: TokenRows, segments: tuple[Segment, ...], ranks: int
) -> DataPlan:
    train = sections.train
    spec = PlanSpec(
        seed=train.seed,
        packing=train.packing,
        bins_per_step=train.per_device_train_batch_size * train.gradient_accumulation_steps * ranks,
        segments=segments,
        epochs=train.num_train_epochs,
        max_steps=max(0, train.max_steps),
    )
    return build_plan(len(rows), rows.lengths, spec, rows.difficulty, rows.mixture)


def _check_passes(plan: DataPlan, rows: TokenRows, forced: bool, reporter: Reporter) -> None:
    """Refuse a plan that passes over the data too often, unless the user has forced it."""
    longest = max(segment.max_length for segment in plan.spec.segments)
    problem = overfit_problem(plan.planned_tokens, int(rows.lengths(longest).sum()))
    if problem is not None and not forced:
        raise ConfigurationError(problem)
    if problem is not None:
        reporter.warn(f"--force-overfit was given: {problem}")


def _check_steps(plan: DataPlan, done: int) -> None:
    if done > plan.total_steps:
        raise ConfigurationError(
            f"train: {plan.total_steps} optimiser steps are asked for and {done} are done already. Raise "
            f"train.max_steps or train.num_train_epochs to at least what is done, or start a new run directory."
        )


def _check_order(
    plan: DataPlan, rows: TokenRows, resumed: Manifest, position: DataPosition, identity: Mapping[str, str]
) -> None:
    """The rows consumed so far must be the head of today's plan, unless a change of it was accepted."""
    if any(resumed.identity.get(name) != identity[name] for name in ("data", "seed", "packing", "global_batch")):
        return
    if plan.fingerprint(rows.fingerprint(), position.step) != position.fingerprint:
        raise CheckpointIncompatibleError(
            f"the data plan up to optimiser step {position.step} is not the one that the checkpoint was trained on, "
            "though the rows are: another version of numpy or of mens-supervisor orders them differently. "
            "Use the versions in the checkpoint's manifest, or start a new run directory."
        )


def _planned(plan: DataPlan, resumed: Manifest | None, start_step: int) -> dict[str, int]:
    """Planned totals: what the checkpoint has counted plus what the plan still holds."""
    tokens, rows = (resumed.tokens_seen, resumed.rows_seen) if resumed else (0, 0)
    return {
        "steps": plan.total_steps,
        "tokens": tokens + plan.planned_tokens - plan.tokens_before_step(start_step),
        "rows": rows + plan.planned_rows - plan.rows_before_step(start_step),
    }
