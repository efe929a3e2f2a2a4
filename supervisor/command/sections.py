"""The ``command`` kind's sections of the YAML."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

Name = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]*$")]
Text = Annotated[StrictStr, Field(pattern=r"^[^\x00]*$")]
Word = Text | StrictInt | StrictFloat
Scalar = StrictBool | StrictInt | StrictFloat | Text


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class OwnCheckpoints(Section):
    """Where the program keeps its own checkpoints."""

    dir: Text
    """Folder in which they appear, relative to working_dir; may hold placeholders such as {output_dir}."""
    pattern: Text = "checkpoint-*"
    """Names of the checkpoints in it (files or folders); the last number in a name is the optimiser step."""
    marker: Text | None = "trainer_state.json"
    """File that a whole checkpoint folder contains, written last; null when there is no such file."""


class CommandSections(Section):
    """A configuration of kind ``command``: any program, run as it is."""

    command: Text | Annotated[list[Word | Annotated[list[Word], Field(min_length=1)]], Field(min_length=1)]
    """The program and its arguments, with placeholders such as {micro_batch}; a list, or text split like a shell would
    (but no shell runs it). A list inside the list is left out as a whole while one of its placeholders is empty."""
    working_dir: Text | None = None
    """Folder in which it runs. Unset: the configuration file's own."""
    values: dict[Name, Scalar] = {}
    """What the placeholders of the command stand for. Relief understands micro_batch, gradient_accumulation,
    max_length and model."""
    fallback: dict[Name, Annotated[list[Scalar], Field(min_length=1)]] = {}
    """What relief may replace max_length and model by, one after the other. Unset for max_length:
    relief.seq_len_rungs."""
    checkpoints: OwnCheckpoints | None = None
    """The program's own checkpoints: torn ones are moved aside, the newest whole one becomes {resume_from}. Unset: the
    program finds by itself where to go on."""
