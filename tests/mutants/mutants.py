"""The defects that the audits behind this project found, each as a small change of our source and a test that sees it.

A mutant is applied to a copy of the packages; ``make mutants`` shows that its test turns red there and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """In ``file`` each old text, which must stand there once, becomes the new one; then ``test`` must fail.

    ``proves``: the requirement that forbids the defect.
    """

    name: str
    proves: str
    file: str
    edits: tuple[tuple[str, str], ...]
    test: str


def _mutant(name: str, proves: str, file: str, old: str, new: str, test: str) -> Mutant:
    return Mutant(name, proves, file, ((old, new),), f"tests/{test}")


MUTANTS: tuple[Mutant, ...] = (
    # --- gradients and loss -----------------------------------------------------------------------------
    _mutant(
        "drops 7 of 8 gradients",
        "TRN-1",
        "trainer/sft.py",
        "        return super().training_step(model, inputs, num_items_in_batch)",
        "        model.zero_grad()\n        return super().training_step(model, inputs, num_items_in_batch)",
        "trainer/test_accumulation.py::test_one_by_eight_is_any_other_split",
    ),
    _mutant(
        "trains on a mean of batch means",
        "TRN-1",
        "trainer/sft.py",
        "loss: torch.Tensor = summed / num_items_in_batch",
        "loss: torch.Tensor = summed / (\n"
        '            (inputs["labels"][:, 1:] != head_loss.IGNORED).sum() * self.args.gradient_accumulation_steps\n'
        "        )",
        "trainer/test_accumulation.py::test_one_by_eight_is_any_other_split",
    ),
    _mutant(
        "clipping is off",
        "TRN-2",
        "trainer/sft.py",
        "max_grad_norm=train.max_grad_norm",
        "max_grad_norm=0.0",
        "trainer/test_accumulation.py::test_the_norm_is_cut_and_what_is_logged_is_what_the_optimiser_gets",
    ),
    _mutant(
        "the clipped norm is assumed, not measured",
        "TRN-2",
        "trainer/sft.py",
        "self.grad_norm_clipped = float(torch.nn.utils.get_total_norm(gradients))",
        "self.grad_norm_clipped = min(value, self.sections.train.max_grad_norm) if gradients else None",
        "trainer/test_accumulation.py::test_disabled_clipping_shows_in_the_logged_norm",
    ),
    # --- rendering --------------------------------------------------------------------------------------
    _mutant(
        "the template is no part of the identity",
        "TRN-3",
        "trainer/run.py",
        '"template": renderer.template_hash[:16]',
        '"template": ""',
        "trainer/test_resume.py::test_a_difference_is_refused_by_its_name[template-model.chat_template_kwargs]",
    ),
    _mutant(
        "the system prompt's file is ignored",
        "TRN-3",
        "trainer/run.py",
        "        if data.system_prompt_file\n        else None,",
        "        if False\n        else None,",
        "trainer/test_knobs.py::test_system_prompt_file",
    ),
    _mutant(
        "unknown fields are dropped in silence",
        "TRN-4",
        "trainer/data/rows.py",
        "        if name not in SHAPES[shape][1]:",
        "        if name not in SHAPES[shape][1] and shape is None:",
        "trainer/data/test_data_rows.py::test_nothing_is_dropped_in_silence",
    ),
    _mutant(
        "the input of an instruction is dropped",
        "TRN-4",
        "trainer/data/rows.py",
        'question = f"{question}\\n\\n{addition}"',
        "question = str(question)",
        "trainer/data/test_data_rows.py::test_each_shape_is_read_whole",
    ),
    _mutant(
        "the mask covers the prompt",
        "TRN-5",
        "trainer/data/render.py",
        "labels += [answer] * len(piece_ids)",
        "labels += [True] * len(piece_ids)",
        "trainer/data/test_data_render.py::test_literal_ids_of_a_short_row",
    ),
    _mutant(
        "the stop token is never learnt",
        "TRN-5",
        "trainer/data/render.py",
        "            end = stop.end()",
        "            end = stop.start()",
        "trainer/data/test_data_render.py::test_stop_token_is_learnt_and_the_newline_after_it_is_not",
    ),
    _mutant(
        "a document's first token is the label of the one before",
        "TRN-5",
        "trainer/collate.py",
        "            labels[0] = IGNORED",
        "            labels[0] = ids[0]",
        "trainer/test_isolation.py::test_no_label_crosses_a_document_border",
    ),
    _mutant(
        "answers are truncated before prompts",
        "TRN-6",
        "trainer/data/fit.py",
        "budget = min(prompt, max_length - min(answer, (max_length + 1) // 2))",
        "budget = min(prompt, max_length - 1)",
        "trainer/data/test_data_fit.py::test_a_short_answer_is_kept_whole_and_the_prompt_loses_its_middle",
    ),
    _mutant(
        "truncated answers are not counted",
        "TRN-6",
        "trainer/data/token_rows.py",
        "answer += len(labels) - kept.end",
        "answer += 0",
        "trainer/data/test_data_corpus.py::test_over_long_rows_are_kept_whole_and_their_cost_is_told",
    ),
    _mutant(
        "dropped rows are not counted",
        "TRN-6",
        "trainer/data/corpus.py",
        "gathered.duplicates += 1",
        "gathered.duplicates += 0",
        "trainer/data/test_data_corpus.py::test_repeats_leaks_and_bad_rows_are_counted",
    ),
    # --- order and schedule -----------------------------------------------------------------------------
    _mutant(
        "every epoch has the order of the first",
        "TRN-7",
        "trainer/data/plan.py",
        "_rng(seed, epoch).permutation(n)",
        "_rng(seed, 0).permutation(n)",
        "trainer/data/test_data_plan.py::test_each_epoch_has_its_own_shuffle_from_the_seed",
    ),
    _mutant(
        "the curriculum is not shuffled",
        "TRN-7",
        "trainer/data/plan.py",
        'rows[np.argsort(difficulty[rows], kind="stable")]',
        "rows[np.lexsort((rows, difficulty[rows]))]",
        "trainer/data/test_data_plan.py::test_curriculum_shuffles_inside_ascending_levels",
    ),
    _mutant(
        "the schedule is off by one and wastes a step at zero",
        "TRN-7",
        "trainer/schedule.py",
        "return (step + 1) / (warmup + 1)",
        "return step / warmup",
        "trainer/test_schedule.py::test_warm_up_starts_above_zero_and_reaches_the_peak_once_it_is_over",
    ),
    _mutant(
        "the schedule is planned over other steps than run",
        "TRN-7",
        "trainer/sft.py",
        "total, train = self.plan.total_steps, self.sections.train",
        "total, train = 2 * self.plan.total_steps, self.sections.train",
        "trainer/test_knobs.py::test_the_knob_is_what_the_run_did[train.lr_scheduler_type]",
    ),
    # --- evaluation -------------------------------------------------------------------------------------
    _mutant(
        "the split leaks answers",
        "TRN-8",
        "trainer/data/split.py",
        "groups[key].append(index)",
        'groups[f"{key}{index}"].append(index)',
        "trainer/data/test_data_split.py::test_answers_that_differ_only_in_space_and_case_are_one_group",
    ),
    _mutant(
        "the split leaks near copies",
        "TRN-8",
        "trainer/data/groups.py",
        "for relation in (keys, *relations):",
        "for relation in (keys, *relations[:0]):",
        "trainer/data/test_data_groups.py::test_near_copies_are_held_out_together",
    ),
    _mutant(
        "training rows may be copies of held-out ones",
        "TRN-8",
        "trainer/data/corpus.py",
        "not_leaked = [row for row in kept if groups[row] not in theirs]",
        "not_leaked = [row for row in kept if groups[row] not in theirs or row]",
        "trainer/data/test_data_corpus.py::test_repeats_leaks_and_bad_rows_are_counted",
    ),
    _mutant(
        "early stopping counts noise",
        "TRN-8",
        "trainer/early_stop.py",
        "if difference.gain + difference.noise < min_delta:",
        "if difference.gain < min_delta:",
        "trainer/test_early_stop.py::test_noise_never_counts",
    ),
    _mutant(
        "noise is taken for a gain",
        "TRN-8",
        "trainer/early_stop.py",
        "if difference.gain >= min_delta and difference.gain > difference.noise:",
        "if difference.gain > 0:",
        "trainer/test_early_stop.py::test_noise_never_counts",
    ),
    _mutant(
        "rows that answer alike count as independent",
        "TRN-8",
        "trainer/eval_noise.py",
        "    dense = _dense(groups)\n    counts = np.bincount(dense, weights=tokens)",
        "    dense = np.arange(len(groups))\n    counts = np.bincount(dense, weights=tokens)",
        "trainer/test_eval_noise.py::test_rows_of_one_group_count_as_one",
    ),
    _mutant(
        "the evaluation loss is a mean of means",
        "TRN-8",
        "trainer/eval_noise.py",
        "return float(self.nats.sum() / self.tokens.sum())",
        "return float((self.nats / self.tokens).mean())",
        "trainer/test_eval_noise.py::test_the_loss_is_a_sum_over_a_sum",
    ),
    _mutant(
        "the patience is forgotten when a run is resumed",
        "TRN-8",
        "trainer/run.py",
        "read_standing(resume_from) if resume_from else Standing()",
        "Standing()",
        "trainer/test_evaluations.py::test_a_resumed_run_stops_at_the_same_step[2]",
    ),
    _mutant(
        "a validation set of any size will do",
        "TRN-8",
        "trainer/evaluation.py",
        "    if visible <= min_delta:",
        "    if visible <= min_delta or rows:",
        "trainer/test_evaluations.py::test_the_needed_size_is_enough",
    ),
    _mutant(
        "memorisation raises no alarm",
        "TRN-8",
        "trainer/evaluation.py",
        "        if gap is None or self.standing.alarmed:",
        "        if gap is None or step >= 0:",
        "trainer/test_evaluations.py::test_a_validation_loss_below_that_of_training_rows_is_an_alarm_once",
    ),
    _mutant(
        "a run that stopped early is called done as planned",
        "SUP-15",
        "supervisor/diagnosis/reported.py",
        'done = f"{_sentence(report)} Everything up to there is done." if report.stopped_early else _ALL_DONE',
        "done = _ALL_DONE",
        "supervisor/test_diagnosis_reported.py::test_a_training_that_stopped_early_says_so",
    ),
    _mutant(
        "the worst checkpoint is the best",
        "TRN-8",
        "supervisor/checkpoints.py",
        "return min(rated, key=lambda entry: entry[:2])[2] if rated else None",
        "return max(rated, key=lambda entry: entry[:2])[2] if rated else None",
        "supervisor/test_checkpoints.py::test_the_best_has_the_lowest_loss_and_is_the_earlier_on_a_tie",
    ),
    # --- configuration ----------------------------------------------------------------------------------
    _mutant(
        "a key of the YAML is ignored",
        "TRN-9",
        "trainer/sft.py",
        "        weight_decay=train.weight_decay,",
        "        weight_decay=0.0,",
        "trainer/test_knobs.py::test_the_knob_is_what_the_run_did[train.weight_decay]",
    ),
    _mutant(
        "unknown keys of the YAML are passed over",
        "TRN-9",
        "supervisor/config.py",
        'strict=True, extra="forbid")',
        'strict=True, extra="ignore")',
        "supervisor/test_config.py::test_unknown_keys",
    ),
    # --- adapter ----------------------------------------------------------------------------------------
    _mutant(
        "the adapter is bfloat16",
        "TRN-10",
        "trainer/sft.py",
        "            parameter.data = adapter[name]",
        "            parameter.data = parameter.data if name else adapter[name]",
        "trainer/test_adapter.py::test_the_adapter_is_fp32_with_its_initial_values",
    ),
    _mutant(
        "dropout stays on in an evaluation",
        "TRN-10",
        "trainer/sft.py",
        "        self.model.eval()",
        "        self.model.train()",
        "trainer/test_adapter.py::test_dropout_is_active_in_training_and_off_in_evaluation",
    ),
    _mutant(
        "dropout is off in training",
        "TRN-10",
        "trainer/model.py",
        "lora_dropout=lora.lora_dropout,",
        "lora_dropout=0.0,",
        "trainer/test_adapter.py::test_dropout_is_active_in_training_and_off_in_evaluation",
    ),
    # --- packing ----------------------------------------------------------------------------------------
    _mutant(
        "an attention mask of ones breaks the isolation",
        "TRN-11",
        "trainer/collate.py",
        '            "position_ids": tensors[2],',
        '            "position_ids": tensors[2],\n            "attention_mask": torch.ones_like(tensors[2]),',
        "trainer/test_isolation.py::test_packing_changes_neither_loss_nor_gradients",
    ),
    _mutant(
        "positions run on from document to document",
        "TRN-11",
        "trainer/collate.py",
        "np.arange(len(ids), dtype=np.int64)]))",
        "np.arange(len(ids), dtype=np.int64) + sum(part.shape[1] for part in parts)]))",
        "trainer/test_isolation.py::test_packing_changes_neither_loss_nor_gradients",
    ),
    # --- resuming ---------------------------------------------------------------------------------------
    _mutant(
        "random state is not restored",
        "TRN-12",
        "trainer/step_boundary.py",
        "            if self.trainer.resume_from is not None:",
        "            if self.trainer.resume_from is not None and False:",
        "trainer/test_resume.py::test_a_resumed_run_is_the_undisturbed_one",
    ),
    _mutant(
        "a resumed run starts with fresh moments",
        "TRN-12",
        "trainer/sft.py",
        "            self.optimizer.load_state_dict(read_optimiser_state(Path(checkpoint)))",
        "            read_optimiser_state(Path(checkpoint))",
        "trainer/test_resume.py::test_a_resumed_run_is_the_undisturbed_one",
    ),
    _mutant(
        "a resumed run starts with the first rows again",
        "TRN-12",
        "trainer/sft.py",
        "first_bin = min(self.start_step * self.plan.spec.bins_per_step, self.plan.total_bins - 1)",
        "first_bin = 0",
        "trainer/test_resume.py::test_a_resumed_run_is_the_undisturbed_one",
    ),
    _mutant(
        "a run is resumed on other data",
        "TRN-13",
        "trainer/checkpoint.py",
        "        if before == now:",
        '        if before == now or name == "data":',
        "trainer/test_resume.py::test_a_difference_is_refused_by_its_name[data-data.sources]",
    ),
    _mutant(
        "a run is resumed on another base",
        "TRN-13",
        "trainer/run.py",
        '"base": f"{base.name}@{base.revision}"',
        '"base": base.name[:6]',
        "trainer/test_resume.py::test_a_difference_is_refused_by_its_name[base-model.base]",
    ),
    _mutant(
        "a run is resumed in another precision",
        "TRN-13",
        "trainer/checkpoint.py",
        "        if before == now:",
        '        if before == now or name == "precision":',
        "trainer/test_resume.py::test_a_difference_is_refused_by_its_name[precision-model.dtype]",
    ),
    _mutant(
        "one accepted change accepts them all",
        "TRN-13",
        "trainer/checkpoint.py",
        "    return name in accepted or any(",
        "    return bool(accepted) or any(",
        "trainer/test_resume.py::test_an_accepted_difference_is_taken_and_said",
    ),
    _mutant(
        "the source that changed is not named",
        "TRN-13",
        "trainer/run.py",
        "check_compatible(resumed, identity, spec.accepted_changes, sources)",
        "check_compatible(resumed, identity, spec.accepted_changes)",
        "trainer/test_evaluations.py::test_a_corpus_that_changed_is_refused_with_its_source",
    ),
    _mutant(
        "any number of passes over the data is planned",
        "TRN-14",
        "trainer/corpus_check.py",
        "    if planned_tokens <= MOST_PASSES * corpus_tokens:",
        "    if planned_tokens <= MOST_PASSES * corpus_tokens or corpus_tokens:",
        "trainer/test_evaluations.py::test_more_than_four_passes_are_refused_unless_forced",
    ),
    # --- numbers that aren't any ------------------------------------------------------------------------
    Mutant(
        "NaN is replaced by a running mean in the log",
        "TRN-15",
        "trainer/sft.py",
        (
            ("        if not np.isfinite(value):", "        if not np.isfinite(value) and not model:"),
            ("logging_nan_inf_filter=False", "logging_nan_inf_filter=True"),
        ),
        "tests/trainer/test_non_finite.py::test_a_non_finite_gradient_stops_before_the_optimiser",
    ),
    _mutant(
        "weights that are not finite are saved",
        "TRN-15",
        "trainer/checkpoint.py",
        "        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):",
        "        if tensor.is_complex() and not bool(torch.isfinite(tensor).all()):",
        "trainer/test_non_finite.py::test_non_finite_weights_and_moments_are_never_saved",
    ),
    _mutant(
        "a loss spike goes unnoticed",
        "TRN-15",
        "trainer/loss_spike.py",
        "RISE = 1.5",
        "RISE = 1.5e9",
        "trainer/test_loss_spike.py::test_a_jump_is_noticed_and_does_not_become_the_new_normal",
    ),
    # --- building a corpus ------------------------------------------------------------------------------
    _mutant(
        "weights change nothing",
        "DAT-1",
        "trainer/data/mixture.py",
        "    shares = np.array(mixture.spec.shares(), np.float64)",
        "    shares = np.full(len(mixture.spec.shares()), 1.0 / len(mixture.spec.shares()))",
        "trainer/data/test_mixture.py::test_weights_are_shares_of_learnt_tokens_and_not_of_rows",
    ),
    _mutant(
        "weights are shares of rows",
        "DAT-1",
        "trainer/data/mixture.py",
        "        learnt = mixture.learnt(max_length)",
        "        learnt = np.ones_like(mixture.learnt(max_length))",
        "trainer/data/test_mixture.py::test_weights_are_shares_of_learnt_tokens_and_not_of_rows",
    ),
    _mutant(
        "near copies stay in the corpus",
        "DAT-2",
        "trainer/data/build/drop.py",
        '    if near == "drop":',
        '    if near == "never":',
        "trainer/data/build/test_build_corpus.py::"
        "test_repeats_and_near_repeats_are_dropped_and_listed_with_what_they_are_copies_of",
    ),
    _mutant(
        "rows with the same answer are copies whatever was asked",
        "DAT-2",
        "trainer/data/near_duplicates.py",
        "    return asked, row.response",
        '    return asked[:0], row.response',
        "trainer/data/test_near_duplicates.py::test_a_row_is_compared_by_everything_asked_and_everything_answered",
    ),
    _mutant(
        "bench items stay in the corpus",
        "DAT-3",
        "trainer/data/contamination.py",
        "MIN_CONTAINMENT = 0.2",
        "MIN_CONTAINMENT = 1.1",
        "trainer/data/build/test_build_corpus.py::test_rows_with_a_bench_item_are_dropped_and_listed",
    ),
    _mutant(
        "what nobody measured counts as met",
        "DAT-4",
        "trainer/data/build/readiness.py",
        "        if not found.judged:",
        "        if not found.judged and found.passed:",
        "trainer/data/build/test_build_readiness.py::test_every_shortfall_is_named_with_both_numbers",
    ),
    _mutant(
        "too few rows are ready",
        "DAT-4",
        "trainer/data/build/readiness.py",
        "    if found.rows < asked.min_rows:",
        "    if found.rows < 0:",
        "trainer/data/build/test_build_corpus.py::test_thresholds_of_sources_and_of_the_whole_stop_the_build",
    ),
    _mutant(
        "the oracle's verdict is a formality",
        "DAT-5",
        "trainer/data/build/oracle.py",
        "return Verdict.PASS if code == 0 else Verdict.FAIL",
        "return Verdict.PASS if code >= 0 else Verdict.FAIL",
        "trainer/data/build/test_build_oracle.py::test_a_compiler_tells_good_answers_from_bad_ones",
    ),
    _mutant(
        "a build writes over what is there",
        "DAT-6",
        "trainer/data/build/build.py",
        "    if out.exists():",
        "    if out.is_symlink():",
        "trainer/data/build/test_build_corpus.py::test_an_existing_folder_is_left_alone",
    ),
    _mutant(
        "a mix feeds on its own output",
        "DAT-6",
        "trainer/data/build/reading.py",
        "            problems += [mix.problem(key, *found) for found in _loops(mix, source, out)]",
        "            problems += []",
        "trainer/data/build/test_build_corpus.py::test_a_mix_that_names_its_own_output_is_refused",
    ),
)
