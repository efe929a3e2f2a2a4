"""The GPUs as things to lend: which there are, and whether the memory of one that was given back is really free."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from supervisor.sensors.disk import human_bytes
from supervisor.sensors.gpu import DRIVER_HANGS, Gpus, GpuSensor
from supervisor.sensors.snapshot import GpuReading, Unknown

FRESH_SECONDS = 5.0
"""A reading that is older does not decide anything."""
BLIND_SECONDS = 120.0
"""How long a card is kept back whose memory nobody can see."""
SLACK_SHARE = 0.03
"""Of a card's memory: what may be used more than before where the driver does not tell by whom."""


class Before(msgspec.Struct, frozen=True):
    """A card when it was lent. ``pids``: who was on it, None where the driver does not tell."""

    used_bytes: int | None
    pids: tuple[int, ...] | None


class Cards:
    """Looks at the GPUs when asked to, without ever waiting for the driver."""

    def __init__(self, sensor: GpuSensor | None = None) -> None:
        self._sensor = sensor or GpuSensor()
        self._read_at: float | None = None
        self._latest: Gpus | None = None

    def look(self) -> None:
        """Have a reading made unless the newest is fresh; to be called again until :meth:`fresh`."""
        if self.fresh:
            return
        self._sensor.request()
        found = self._sensor.poll()
        if found is not None:
            self._latest, self._read_at = found, time.monotonic()

    def rest(self) -> None:
        """Nobody needs to know now: end the process that asks the driver."""
        self._sensor.close()

    @property
    def fresh(self) -> bool:
        return self._read_at is not None and time.monotonic() - self._read_at < FRESH_SECONDS

    @property
    def names(self) -> tuple[str, ...] | None:
        """UUIDs by index; None while not known. Without a driver there are none."""
        if self._latest is None:
            return None
        if isinstance(self._latest, Unknown):
            return None if self._latest.reason.startswith(DRIVER_HANGS) else ()
        return tuple(gpu.uuid for gpu in self._latest if isinstance(gpu.uuid, str))

    @property
    def unknown(self) -> str:
        """Why the names are not known."""
        return self._latest.reason if isinstance(self._latest, Unknown) else "they are being looked at"

    def before(self, names: tuple[str, ...]) -> str:
        """What to remember of cards that are lent, JSON."""
        return msgspec.json.encode({name: _before(gpu) for name in names if (gpu := self._card(name))}).decode()

    def still_held(self, name: str, before: str, waited: float) -> str:
        """Why a card that was given back ``waited`` seconds ago can't be lent again; empty when it can."""
        if not self.fresh:
            return "its memory is being looked at"
        known = msgspec.json.decode(before, type=dict[str, Before]).get(name)
        gpu = self._card(name)
        if gpu is None and not isinstance(self._latest, Unknown):
            return ""  # the card is gone, and with it what was on it
        if gpu is None:
            if waited >= BLIND_SECONDS:
                return ""
            return f"its memory cannot be seen ({self.unknown}); after {BLIND_SECONDS:.0f} s it is lent all the same"
        return held_memory(gpu, known, waited)

    def _card(self, name: str) -> GpuReading | None:
        if self._latest is None or isinstance(self._latest, Unknown):
            return None
        return next((gpu for gpu in self._latest if gpu.uuid == name), None)


def held_memory(gpu: GpuReading, before: Before | None, waited: float) -> str:
    """Why a card is not free of the one who held it and has ended; empty when it is. Pure.

    Whoever was there before, or can be seen alive, is a stranger whom the run itself knows how to wait for. A process
    on the card that is no process of this machine any more is the driver's memory of our dead.
    """
    if not isinstance(gpu.processes, Unknown):
        known = before.pids if before is not None and before.pids is not None else ()
        dead = [process for process in gpu.processes if isinstance(process.name, Unknown) and process.pid not in known]
        if not dead:
            return ""
        sizes = [process.used_bytes for process in dead if isinstance(process.used_bytes, int)]
        size = human_bytes(sum(sizes)) if sizes else "an unknown amount"
        advice = " Reboot the machine, or reset the card when nothing else uses it." if waited > 60 else ""
        return f"the driver still holds {size} for process {dead[0].pid}, which has ended.{advice}"
    if before is None or before.used_bytes is None or isinstance(gpu.used_bytes, Unknown) or waited >= BLIND_SECONDS:
        return "" if waited >= BLIND_SECONDS else "the driver does not tell who uses its memory"
    total = gpu.total_bytes if isinstance(gpu.total_bytes, int) else 0
    more = gpu.used_bytes - before.used_bytes
    if more <= total * SLACK_SHARE:
        return ""
    return f"{human_bytes(more)} more than before are in use, and the driver does not tell by whom"


def _before(gpu: GpuReading) -> Mapping[str, object]:
    pids = None if isinstance(gpu.processes, Unknown) else [process.pid for process in gpu.processes]
    return {"used_bytes": gpu.used_bytes if isinstance(gpu.used_bytes, int) else None, "pids": pids}
