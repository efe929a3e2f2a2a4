"""What a job reads of a resolved configuration: an attempt's ``effective.yaml``, or a run's ``run.yaml``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from rft.config import RftSections
from trainer.errors import ConfigurationError

DEFAULT_GRACE_SECONDS = 120.0
S = TypeVar("S", bound=BaseModel)


@dataclass(frozen=True)
class Effective(Generic[S]):
    """``name``: what the run is called."""

    sections: S
    stop_grace_seconds: float
    name: str = ""


def read_effective(path: Path) -> Effective[RftSections]:
    """Raises ConfigurationError."""
    return read_effective_as(path, RftSections)


def read_effective_as(path: Path, schema: type[S]) -> Effective[S]:
    """The sections of another kind of job that is built on this one. Raises ConfigurationError."""
    try:
        document = YAML(typ="safe", pure=True).load(path)
    except (YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path} holds no configuration")
    own = {key: value for key, value in document.items() if key in schema.model_fields}
    try:
        sections = schema.model_validate(own)
    except ValidationError as error:
        details = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise ConfigurationError(f"{path}: {details}") from None
    limits = document.get("limits") or {}
    grace = float(limits.get("stop_grace_seconds", DEFAULT_GRACE_SECONDS))
    return Effective(sections, grace, str(document.get("name", "")))
