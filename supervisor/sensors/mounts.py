"""The file systems that a run touches, each once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from supervisor.sensors.disk import mount_point
from supervisor.sensors.snapshot import MountReading, Unknown

SHARED_MEMORY = Path("/dev/shm")
RUN_DIRECTORY = "run directory"


def touched_folders(run_dir: Path, environment: Mapping[str, str]) -> dict[str, Path]:
    """Where a trainer with this environment writes, by what it is for; the folders need not exist yet."""

    def place(variable: str, default: Path) -> Path:
        return Path(environment.get(variable) or default)

    temporary = place("TMPDIR", Path("/tmp"))
    home = place("HOME", Path.home())
    cache = place("XDG_CACHE_HOME", home / ".cache")
    hub = place("HF_HUB_CACHE", place("HF_HOME", cache / "huggingface") / "hub")
    return {
        RUN_DIRECTORY: run_dir,
        "temporary files": temporary,
        "shared memory": SHARED_MEMORY,
        "model cache": cache / "mens-supervisor",
        "Hugging Face cache": hub,
        "data set cache": place("HF_DATASETS_CACHE", place("HF_HOME", cache / "huggingface") / "datasets"),
        "torch cache": place("TORCH_HOME", cache / "torch"),
        "Triton cache": place("TRITON_CACHE_DIR", home / ".triton" / "cache"),
        "compiler cache": place("TORCHINDUCTOR_CACHE_DIR", temporary),
    }


def read_mounts(folders: Mapping[str, Path]) -> tuple[MountReading, ...]:
    """One reading per device, in the order of ``folders``; one that cannot be read says why."""
    uses: dict[int, list[str]] = {}
    places: dict[int, Path] = {}
    failed = []
    for use, folder in folders.items():
        try:
            place = _nearest(folder)
            device = place.stat().st_dev
        except OSError as error:
            reason = Unknown(f"{folder}: {os.strerror(error.errno or 0)}")
            failed.append(MountReading(str(folder), (use,), reason, reason, reason))
            continue
        uses.setdefault(device, []).append(use)
        places.setdefault(device, place)
    return (*(_read(places[device], tuple(uses[device])) for device in places), *failed)


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists: its files will come onto that file system."""
    place = folder.absolute()
    while True:
        try:
            place.stat()
        except (FileNotFoundError, NotADirectoryError):
            if place == place.parent:
                raise
            place = place.parent
        else:
            return place


def _read(place: Path, uses: tuple[str, ...]) -> MountReading:
    try:
        figures = os.statvfs(place)
        mount = str(mount_point(place))
    except OSError as error:
        reason = Unknown(f"{place}: {os.strerror(error.errno or 0)}")
        return MountReading(str(place), uses, reason, reason, reason)
    inodes = figures.f_favail if figures.f_files else Unknown("this file system does not count inodes")
    size = figures.f_frsize
    return MountReading(mount, uses, figures.f_blocks * size, figures.f_bavail * size, inodes)
