"""Counting tokens with the tokenizer and the chat template of the model that the mix names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from supervisor.problems import ConfigError
from trainer.base_names import SPECIAL
from trainer.data.build.mix import Mix
from trainer.data.fit import fit
from trainer.data.messages import BadRow, Row


@dataclass(frozen=True)
class TokenCounter:
    """``count``: from rows to (all tokens, learnt tokens inside the window) of each, or why it cannot be rendered.

    ``tokenizer_sha256``: over the files that decide it.
    """

    tokenizer_sha256: str
    count: Callable[[Iterable[Row]], Iterator[tuple[int, int] | BadRow]]


@dataclass(frozen=True)
class TokenTable:
    """By row: ``tokens`` at full length, ``learnt`` ones inside the window; 0 for rows that were not counted.

    ``problems``: why a row could not be rendered.
    """

    tokens: npt.NDArray[np.int64]
    learnt: npt.NDArray[np.int64]
    problems: dict[int, str]


def token_counter(mix: Mix) -> TokenCounter | None:
    """None when the mix names no tokenizer. Raises ConfigError when it cannot be had."""
    base, max_length = mix.sections.tokenizer, mix.sections.max_length
    if base is None or max_length is None:
        return None
    from trainer.base_model import load_tokenizer, locate, stop_token_ids
    from trainer.data.corpus_cache import tokenizer_digest
    from trainer.data.render import Renderer
    from trainer.errors import TrainerError

    folder = mix.base / Path(base).expanduser()
    try:
        model = locate(str(folder) if not base.startswith(SPECIAL) and folder.is_dir() else base, None)
        tokenizer = load_tokenizer(model)
        renderer = Renderer(tokenizer, stop_token_ids=stop_token_ids(model, tokenizer))
    except TrainerError as error:
        raise ConfigError([mix.problem("tokenizer", str(error))]) from None

    def count(rows: Iterable[Row]) -> Iterator[tuple[int, int] | BadRow]:
        for result in renderer.render_many(rows):
            if isinstance(result, BadRow):
                yield result
                continue
            labels = np.array(result.labels, np.bool_)
            fitted = fit(np.array(result.ids, np.int32), labels, max_length)
            yield len(labels), int(fitted.labels[1:].sum())

    return TokenCounter(tokenizer_digest(model.path), count)
