"""Rows of a Hugging Face data set: a folder on this disk, or an id on the hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from supervisor.problems import ConfigError
from trainer.data.build.mix import Mix

_SAVED = ("state.json", "dataset_dict.json")
"""Files that ``save_to_disk`` leaves in a folder."""


def read_dataset(mix: Mix, index: int, folder: Path | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """``(number from 1, fields)`` of every row. ``folder`` is None for an id on the hub.

    Raises ConfigError: the library is missing, there is no such data set or split, the hub cannot be reached.
    """
    section = mix.sections.sources[index]
    key = f"sources.{index}.path"
    try:
        import datasets
    except ImportError:
        remedy = "Install it: pip install 'mens-supervisor[train]'."
        raise ConfigError([mix.problem(key, "the package datasets is not installed", remedy)]) from None
    split = section.split or "train"
    try:
        rows = _load(datasets, folder, section.path, section.subset, split, section.revision)
    except (OSError, ValueError, KeyError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        message = f"the data set {section.path} (split {split}) cannot be read: {reason}"
        remedy = (
            "Correct path, subset or split."
            if folder is not None
            else "Check the id; without a network (or with HF_HUB_OFFLINE=1) save it to a folder first and name that."
        )
        raise ConfigError([mix.problem(key, message, remedy)]) from None
    for number, fields in enumerate(rows, start=1):
        yield number, dict(fields)


def _load(datasets: Any, folder: Path | None, name: str, subset: str | None, split: str, revision: str | None) -> Any:
    if folder is None:
        return datasets.load_dataset(name, subset, split=split, revision=revision)
    if not any((folder / saved).is_file() for saved in _SAVED):
        return datasets.load_dataset(str(folder), subset, split=split)
    loaded = datasets.load_from_disk(str(folder))
    if isinstance(loaded, datasets.DatasetDict):
        if split not in loaded:
            raise ValueError(f"it has the splits {', '.join(loaded)}, not {split}")
        return loaded[split]
    return loaded
