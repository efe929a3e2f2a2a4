"""The machine: GPUs, disk, memory, control groups, systemd, the sandbox."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import supervisor
from supervisor.doctor.check import Check, fail, ok, warn
from supervisor.sensors.cgroup import find_cgroup, read_cgroup
from supervisor.sensors.disk import disk_space, human_bytes
from supervisor.sensors.gpu import GpuSensor
from supervisor.sensors.host import read_host
from supervisor.sensors.snapshot import GpuReading, Unknown

GIB = 1 << 30
LITTLE_DISK = 20 * GIB
NO_DISK = 2 * GIB
LITTLE_SHM = GIB
LITTLE_RAM = 8 * GIB
LEAST_PYTHON = (3, 11)
SECONDS = 5.0
_DRIVER_VERSION = Path("/proc/driver/nvidia/version")
_DRIVER_DEVICE = Path("/dev/nvidiactl")


def python_check() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < LEAST_PYTHON:
        return fail("python", version, "Install Python 3.11 or newer.")
    if sys.prefix == sys.base_prefix:
        remedy = "python3 -m venv .venv, and install there"
        return warn("python", f"{version}, not in a virtual environment: packages of others may clash", remedy)
    return ok("python", f"{version} in {sys.prefix}")


def name_clash_check() -> Check:
    """supervisord's distribution is called ``supervisor``, and so is our import name."""
    name = "import name"
    try:
        other = importlib.metadata.version("supervisor")
    except importlib.metadata.PackageNotFoundError:
        return ok(name, f"supervisor is ours ({Path(supervisor.__file__ or '?').parent})")
    return fail(
        name, f"supervisord {other} is installed in this environment, and its import name is supervisor as well",
        "Use a virtual environment of its own for one of the two, or pip uninstall supervisor.",
    )  # fmt: skip


def gpus() -> tuple[GpuReading, ...] | str:
    """The GPUs, asked through the sensors' disposable probe; or why they are unknown."""
    sensor = GpuSensor(first_deadline=10.0)
    try:
        found = sensor.read()
    finally:
        sensor.close()
    return found.reason if isinstance(found, Unknown) else found


def gpu_check(found: tuple[GpuReading, ...] | str, driver: str | None, device: bool) -> Check:
    """``driver``: its version, None without one. ``device``: whether a device of the driver is there."""
    if isinstance(found, str):
        if driver is None and not device:
            return warn("gpu", f"none ({found})", "Training goes on the CPU, which is slow beyond small models.")
        remedy = "Load or reinstall the driver (dmesg says why); in a container, pass the GPU in (--gpus all)."
        return fail("gpu", f"there is a driver, but it does not answer: {found}", remedy)
    if not found:
        return warn("gpu", "none", "Training goes on the CPU, which is slow beyond small models.")
    named = ", ".join(_gpu(gpu) for gpu in found)
    return ok("gpu", f"{named}; driver {driver or 'of unknown version'}")


def driver_version() -> str | None:
    """Of the loaded NVIDIA kernel module."""
    try:
        found = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", _DRIVER_VERSION.read_text())
    except OSError:
        return None
    return found.group(1) if found else None


def driver_device() -> bool:
    return _DRIVER_DEVICE.exists()


def disk_checks(places: dict[str, Path]) -> Iterator[Check]:
    """One for each file system, with what lies on it."""
    uses: dict[Path, list[str]] = {}
    rooms = {}
    for use, place in places.items():
        while not place.exists():
            place = place.parent
        space = disk_space(place)
        uses.setdefault(space.mount, []).append(use)
        rooms[space.mount] = space
    for mount, space in rooms.items():
        found = f"{mount}: {human_bytes(space.free_bytes)} free ({', '.join(uses[mount])})"
        inodes = space.free_inodes
        if space.free_bytes < NO_DISK or (inodes is not None and inodes < 1000):
            yield fail("disk", found + ("" if inodes is None else f", {inodes} inodes"), "Free some room there.")
        elif space.free_bytes < LITTLE_DISK:
            yield warn("disk", found, "Checkpoints and models want more: free some room, or use another --run-dir.")
        else:
            yield ok("disk", found)


def shm_check(folder: Path = Path("/dev/shm")) -> Check:
    remedy = "Set checkpoint.snapshot to another folder in memory, or to off; start a container with --shm-size=8g."
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return warn("shared memory", f"{folder} cannot be written: no state after every step", remedy)
    free = disk_space(folder).free_bytes
    if free < LITTLE_SHM:
        return warn("shared memory", f"{folder}: only {human_bytes(free)} free", remedy)
    return ok("shared memory", f"{folder}: {human_bytes(free)} free")


def ram_check() -> Check:
    host = read_host(None)
    total, available = host.ram_total, host.ram_available
    if isinstance(total, Unknown) or isinstance(available, Unknown):
        return warn("memory", "unknown", "See /proc/meminfo.")
    found = f"{human_bytes(available)} of {human_bytes(total)} available"
    if available < LITTLE_RAM:
        return warn("memory", found, "A 4-bit model of 4 billion parameters wants some 8 GiB to load.")
    return ok("memory", found)


def cgroup_check() -> Check:
    name = "control group"
    group = find_cgroup(os.getpid())
    if isinstance(group, Unknown):
        return warn(name, f"unknown: {group.reason}", "A memory limit, if there is one, will not be seen.")
    reading = read_cgroup(group)
    limit = None if isinstance(reading, Unknown) or isinstance(reading.limit_bytes, Unknown) else reading.limit_bytes
    bounded = "no memory limit" if limit is None else f"memory limit {human_bytes(limit)}"
    found = f"version {group.version}, {bounded}"
    if group.version == 1:
        return warn(name, found, "It works; for version 2 boot with systemd.unified_cgroup_hierarchy=1.")
    return ok(name, found)


def systemd_check(running: Path = Path("/run/systemd/system")) -> Check:
    if not running.is_dir():
        remedy = "mens-sup run and mens-sup daemon work without it; only make install-systemd needs it."
        return warn("systemd", "not running here", remedy)
    said = _said(["systemctl", "--version"])
    version = re.match(r"systemd (\d+)", said or "")
    if version is None:
        return warn("systemd", "running, of unknown version", "See systemctl --version.")
    if int(version.group(1)) < 252:
        return warn("systemd", f"version {version.group(1)}", "The unit is made for 252 and newer.")
    state = (_said(["systemctl", "is-active", "mens-supervisor.service"]) or "unknown").strip()
    return ok("systemd", f"version {version.group(1)}; mens-supervisor.service is {state}")


def bubblewrap_check() -> Check:
    program = shutil.which("bwrap")
    install = "apt-get install bubblewrap (or your system's package of that name)"
    if program is None:
        return warn("bubblewrap", "not installed: completions cannot be judged (rft, eval)", install)
    command = [program, "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return warn("bubblewrap", f"{program} cannot be run ({type(error).__name__})", install)
    if done.returncode:
        why = done.stderr.strip()[-200:]
        remedy = "This machine or container forbids user namespaces: allow them, or run as root."
        return warn("bubblewrap", f"{program} cannot isolate here: {why}", remedy)
    return ok("bubblewrap", f"{program} isolates")


def vllm_check(project: Path | None = None) -> Check:
    """The environment that `make vllm` makes, beside the project."""
    beside = project or Path(supervisor.__file__ or ".").resolve().parents[1]
    folder = beside / ".venv-vllm"
    python = folder / "bin" / "python"
    if not python.exists():
        return warn("vllm", f"no environment {folder}", "make vllm, for fast sampling; transformers does without.")
    found = sorted(folder.glob("lib/python3*/site-packages/vllm*.dist-info"))
    if not found:
        return warn("vllm", f"{folder} has no vLLM in it", "Run make vllm anew.")
    name, _, version = found[0].name.removesuffix(".dist-info").partition("-")
    return ok("vllm", f"{name.replace('_', '-')} {version} in {folder}")


def apprise_check() -> Check:
    if importlib.util.find_spec("apprise") is None:
        remedy = "pip install 'mens-supervisor[notify]', when notify.urls_file is to be used"
        return warn("notifications", "apprise is not installed; notify.command does without", remedy)
    return ok("notifications", f"apprise {importlib.metadata.version('apprise')}")


def _gpu(gpu: GpuReading) -> str:
    name = "?" if isinstance(gpu.name, Unknown) else gpu.name
    if isinstance(gpu.total_bytes, Unknown) or isinstance(gpu.used_bytes, Unknown):
        return f"{gpu.index}: {name}"
    return f"{gpu.index}: {name}, {human_bytes(gpu.used_bytes)} of {human_bytes(gpu.total_bytes)} in use"


def _said(command: list[str]) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
