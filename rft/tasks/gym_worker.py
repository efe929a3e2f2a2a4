"""The process that generates: ``python -m rft.tasks.gym_worker``, one request on standard input, one line an entry.

A process of its own because some generators go through sets of texts, whose order is another in every process unless
PYTHONHASHSEED says otherwise, and because what they import is large.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy

from rft.tasks import gym_package


def main() -> int:
    request = json.load(sys.stdin)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    sys.stdout = sys.stderr  # for generators that print
    try:
        for number, entry in _entries(request):
            out.write(json.dumps([number, _plain(entry, request["dataset"])]) + "\n")
    except gym_package.GymError as error:
        out.write(json.dumps(str(error)) + "\n")
    except BrokenPipeError:
        os._exit(0)  # enough was read; there is nobody to flush to
    return 0


def _entries(request: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    dataset, size = request["dataset"], request["size"]
    for first in request["firsts"]:
        generator = gym_package.dataset(dataset, request["params"], first, size)
        for index in range(size):
            # Some draw from the generators of the process as well.
            random.seed(first + index)
            numpy.random.seed(first + index)
            yield first + index, gym_package.entry(generator, dataset, index)


def _plain(entry: Mapping[str, Any], dataset: str) -> dict[str, Any]:
    """An entry as JSON values: what its scorer gets back after it was stored. Raises GymError."""
    try:
        found: dict[str, Any] = json.loads(json.dumps(entry, default=_number, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise gym_package.GymError(f"an entry of the generator {dataset} cannot be stored as JSON: {error}") from error
    return found


def _number(value: Any) -> Any:
    """numpy's numbers and arrays."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"it holds a {type(value).__name__}")


if __name__ == "__main__":
    sys.exit(main())
