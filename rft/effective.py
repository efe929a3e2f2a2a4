"""What a job reads of a resolved configuration: an attempt's ``effective.yaml``, or a run's ``run.yaml``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from ruamel.yaml import YAML

from rft.config import RftSections
from trainer.errors import ConfigurationError

DEFAULT_GRACE_SECONDS = 120.0


@dataclass(frozen=True)
class Effective:
    sections: RftSections
    stop_grace_seconds: float


def read_effective(path: Path) -> Effective:
    """Raises ConfigurationError."""
    document = YAML(typ="safe", pure=True).load(path)
    own = {key: value for key, value in document.items() if key in RftSections.model_fields}
    try:
        sections = RftSections.model_validate(own)
    except ValidationError as error:
        details = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise ConfigurationError(f"{path}: {details}") from None
    limits = document.get("limits") or {}
    return Effective(sections, float(limits.get("stop_grace_seconds", DEFAULT_GRACE_SECONDS)))
