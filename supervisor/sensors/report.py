"""``sensors.json`` in the run directory: the newest snapshot and forecasts, for status and views."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from supervisor.protocol.atomic import STAGING_PREFIX
from supervisor.sensors.forecast import Forecast, Sample
from supervisor.sensors.snapshot import Snapshot


class MountForecast(msgspec.Struct, frozen=True):
    """``bytes`` and ``inodes``: when the mount will be full, None when it is not filling up."""

    mount: str
    bytes: Forecast | None
    inodes: Forecast | None

    @property
    def seconds(self) -> float | None:
        """Until the first of the two runs out."""
        return min((each.seconds for each in (self.bytes, self.inodes) if each is not None), default=None)


class MountFill(msgspec.Struct, frozen=True):
    """Free bytes of a mount over time, as the forecast sees them: monotonic seconds, our checkpoints as free."""

    mount: str
    samples: tuple[Sample, ...]


class SensorReport(msgspec.Struct, frozen=True):
    snapshot: Snapshot
    forecasts: tuple[MountForecast, ...]
    fill: tuple[MountFill, ...] = ()


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(SensorReport)


def write_report(path: Path, report: SensorReport) -> None:
    """Replace the file; not fsynced, since it is worth nothing after a power loss. Raises OSError."""
    staged = path.with_name(f"{STAGING_PREFIX}{path.name}")
    try:
        staged.write_bytes(_encoder.encode(report))
        os.replace(staged, path)
    except OSError:
        staged.unlink(missing_ok=True)
        raise


def read_report(path: Path) -> SensorReport | None:
    """The newest report, None when there is none or a power loss tore it."""
    try:
        return _decoder.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
