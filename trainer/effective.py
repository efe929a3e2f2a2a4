"""Reading an attempt's ``effective.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML

from trainer.config import SftSections
from trainer.errors import ConfigurationError


def read_effective(path: Path) -> tuple[SftSections, Mapping[str, Any]]:
    """The kind's sections, validated once more, and the same as plain values for the record.

    The other sections stay out of checkpoints: ``launch.env`` may hold credentials, and adapters get published.
    """
    document = YAML(typ="safe", pure=True).load(path)
    own = {key: value for key, value in document.items() if key in SftSections.model_fields}
    try:
        return SftSections.model_validate(own), own
    except ValidationError as error:
        details = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise ConfigurationError(f"{path}: {details}") from None
