"""Reads the GPUs through NVML in a process of its own, because a sick driver hangs whoever asks it.

Prints one line of JSON, then one more for each line on standard input; ends with the input or after an
error. A reply is ``{"gpus": [...]}`` or ``{"error": reason}``; a figure that cannot be read is
``{"type": "unknown", "reason": ...}``. Imports little, since it is started again after every hang.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pynvml

_PR_SET_PDEATHSIG = 1
_KEPT_XIDS = 64
_UNCORRECTED, _VOLATILE = 1, 0
_REASONS = {
    0x002: "applications clocks setting",
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
    0x100: "display clock setting",
}
_IDLE = 0x001
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}

Handle = Any


class Probe:
    """NVML initialised, Xid events subscribed. Raises pynvml.NVMLError when there is no usable driver."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._handles: dict[int, Handle] = {}
        self._xids: dict[int, list[int]] = {}
        self._deaf: dict[int, dict[str, str]] = {}
        self._events: Any = None
        self._no_events: dict[str, str] | None = None
        try:
            self._events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            self._no_events = _unknown(error)

    def read(self) -> dict[str, Any]:
        count = pynvml.nvmlDeviceGetCount()
        handles = {index: _value(partial(self._handle, index)) for index in range(count)}
        self._drain()
        return {"gpus": [self._gpu(index, handle) for index, handle in handles.items()]}

    def _handle(self, index: int) -> Handle:
        if index not in self._handles:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            self._handles[index] = handle
            self._xids[index] = []
            self._subscribe(index, handle)
        return self._handles[index]

    def _subscribe(self, index: int, handle: Handle) -> None:
        if self._events is None:
            return
        try:
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._events)
        except pynvml.NVMLError as error:
            self._deaf[index] = _unknown(error)

    def _drain(self) -> None:
        """Take in the Xids that came since the last reading."""
        if self._events is None or not self._handles:
            return
        owners = {_address(handle): index for index, handle in self._handles.items()}
        for _ in range(_KEPT_XIDS):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    self._no_events = _unknown(error)
                return
            index = owners.get(_address(event.device))
            if index is not None:
                self._xids[index] = [*self._xids[index], int(event.eventData)][-_KEPT_XIDS:]

    def _gpu(self, index: int, handle: Handle) -> dict[str, Any]:
        def ask(name: str, *arguments: Any) -> Any:
            return handle if isinstance(handle, dict) else _value(partial(getattr(pynvml, name), handle, *arguments))

        def first(*calls: tuple[Any, ...]) -> Any:
            return handle if isinstance(handle, dict) else _first(handle, calls)

        memory = first(("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2), ("nvmlDeviceGetMemoryInfo",))
        reasons = first(("nvmlDeviceGetCurrentClocksEventReasons",), ("nvmlDeviceGetCurrentClocksThrottleReasons",))
        mode = ask("nvmlDeviceGetComputeMode")
        return {
            "index": index,
            "uuid": ask("nvmlDeviceGetUUID"),
            "name": ask("nvmlDeviceGetName"),
            "total_bytes": _part(memory, "total"),
            "used_bytes": _part(memory, "used"),
            "free_bytes": _part(memory, "free"),
            "utilisation_percent": _part(ask("nvmlDeviceGetUtilizationRates"), "gpu"),
            "temperature_celsius": first(("nvmlDeviceGetTemperatureV", 0), ("nvmlDeviceGetTemperature", 0)),
            "throttling": decode_reasons(reasons) if isinstance(reasons, int) else reasons,
            "ecc_uncorrected": ask("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE),
            "compute_mode": _COMPUTE_MODES.get(mode, str(mode)) if isinstance(mode, int) else mode,
            "xids": self._heard(index, handle),
            "processes": _processes(handle),
        }

    def _heard(self, index: int, handle: Handle) -> Any:
        if isinstance(handle, dict):
            return handle
        return self._xids[index] or self._no_events or self._deaf.get(index) or []


def decode_reasons(bits: int) -> list[str]:
    """What holds the clocks down, in words; a bit that this table does not know is named by its value."""
    names = [name for bit, name in _REASONS.items() if bits & bit]
    rest = bits & ~(_IDLE | sum(_REASONS))
    return [*names, hex(rest)] if rest else names


def _processes(handle: Handle) -> Any:
    """Compute and graphics processes as one list by pid; one that is in both counts once, with the larger figure."""
    if isinstance(handle, dict):
        return handle
    used: dict[int, int | None] = {}
    for kind in ("Compute", "Graphics"):
        name = f"nvmlDeviceGet{kind}RunningProcesses"
        found = _first(handle, ((f"{name}_v3",), (f"{name}_v2",)))
        if isinstance(found, dict):
            if kind == "Compute":
                return found
            continue  # a card for computing only has no graphics processes to tell about
        for process in found:
            sizes = [size for size in (used.get(process.pid), process.usedGpuMemory) if size is not None]
            used[process.pid] = max(sizes, default=None)
    no_size = {"type": "unknown", "reason": "the driver does not tell this process's share"}
    return [{"pid": pid, "used_bytes": no_size if size is None else size} for pid, size in sorted(used.items())]


def _first(handle: Handle, calls: tuple[tuple[Any, ...], ...]) -> Any:
    """The first of several ways to ask that driver and bindings know; newer ones come first."""
    answer: Any = None
    for name, *arguments in calls:
        if not hasattr(pynvml, name):
            continue
        answer = _value(partial(getattr(pynvml, name), handle, *arguments))
        if not isinstance(answer, dict):
            return answer
    return answer if answer is not None else {"type": "unknown", "reason": f"pynvml has no {calls[0][0]}"}


def _value(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except pynvml.NVMLError as error:
        return _unknown(error)


def _part(value: Any, name: str) -> Any:
    return value if isinstance(value, dict) else getattr(value, name)


def _unknown(error: Any) -> dict[str, str]:
    return {"type": "unknown", "reason": f"NVML: {error}"}


def _address(handle: Handle) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _die_with_parent() -> None:
    """A probe that hangs in the driver must not outlive a supervisor that was killed."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)


def main() -> int:
    _die_with_parent()
    try:
        probe = Probe()
        while True:
            sys.stdout.write(json.dumps(probe.read()) + "\n")
            sys.stdout.flush()
            if not sys.stdin.readline():
                return 0
    except pynvml.NVMLError as error:
        sys.stdout.write(json.dumps({"error": f"NVML: {error}"}) + "\n")
        return 1
    except BrokenPipeError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
