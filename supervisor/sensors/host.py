"""Memory of the machine and of the trainer."""

from __future__ import annotations

import os

import psutil

from supervisor.sensors.snapshot import HostReading, ProcessMemory, Unknown


def read_host(trainer_pid: int | None) -> HostReading:
    """``trainer_pid`` None: there is no trainer to look at."""
    ram_total: int | Unknown
    ram_available: int | Unknown
    swap_total: int | Unknown
    swap_free: int | Unknown
    load: float | Unknown
    try:
        ram = psutil.virtual_memory()
        ram_total, ram_available = int(ram.total), int(ram.available)
    except OSError as error:
        ram_total = ram_available = Unknown(f"memory: {error.strerror}")
    try:
        swap = psutil.swap_memory()
        swap_total, swap_free = int(swap.total), int(swap.free)
    except OSError as error:
        swap_total = swap_free = Unknown(f"swap: {error.strerror}")
    try:
        load = os.getloadavg()[0]
    except OSError as error:
        load = Unknown(f"load: {error.strerror}")
    trainer = Unknown("no trainer is running") if trainer_pid is None else process_tree(trainer_pid)
    return HostReading(ram_total, ram_available, swap_total, swap_free, load, trainer)


def process_tree(pid: int) -> tuple[ProcessMemory, ...] | Unknown:
    """A process and its descendants, it first. What ends meanwhile is left out."""
    try:
        first = psutil.Process(pid)
        family = [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return Unknown(f"process {pid} has ended")
    except psutil.AccessDenied:
        return Unknown(f"we may not look at process {pid}")
    found = []
    for process in family:
        try:
            found.append(ProcessMemory(process.pid, process.name(), int(process.memory_info().rss)))
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied:
            return Unknown(f"we may not look at process {process.pid}")
    return tuple(found) if found else Unknown(f"process {pid} has ended")
