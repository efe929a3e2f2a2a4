"""The sensors of a run at work: snapshots while a trainer runs, alarms as events, ``sensors.json`` for the views."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.protocol.paths import RunPaths
from supervisor.sensors.disk import FULL_ERRORS
from supervisor.sensors.gpu import GpuSensor
from supervisor.sensors.mounts import touched_folders
from supervisor.sensors.observe import Sensors
from supervisor.sensors.report import SensorReport, write_report
from supervisor.sensors.snapshot import Snapshot
from supervisor.supervise.alarms import AlarmBook, alarms
from supervisor.supervise.journal import Journal


class Sensing:
    """``environment``: of the trainer, which decides where its caches lie.

    ``own_bytes`` and ``growth_left`` of the methods: what the checkpoints take up and what retention still lets
    them grow by.
    """

    def __init__(self, paths: RunPaths, journal: Journal, environment: Mapping[str, str]) -> None:
        self._paths = paths
        self._journal = journal
        self._sensors = Sensors(touched_folders(paths.root, environment), GpuSensor())
        self._book = AlarmBook()
        self._before: Snapshot | None = None

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """The first one of the present attempt and the newest ones, oldest first."""
        return self._sensors.snapshots

    def expect(self) -> None:
        """A trainer is about to be started or adopted."""
        self._sensors.expect()

    def begin(self, trainer_pid: int, own_bytes: int = 0, growth_left: int = 0) -> None:
        """A trainer has just been started."""
        self._before = None
        self._take_in(self._sensors.begin(trainer_pid, own_bytes), growth_left)

    def tick(self, own_bytes: int = 0, growth_left: int = 0, every: float | None = None) -> None:
        """Cheap; does something about every ten seconds, or ``every`` so many."""
        snapshot = self._sensors.tick(own_bytes, every)
        if snapshot is not None:
            self._take_in(snapshot, growth_left)

    def end(self, own_bytes: int = 0, growth_left: int = 0) -> None:
        """The trainer has ended."""
        self._take_in(self._sensors.end(own_bytes), growth_left)

    def close(self) -> None:
        self._sensors.close()

    def _take_in(self, snapshot: Snapshot, growth_left: int) -> None:
        forecasts = self._sensors.forecasts(growth_left)
        for alarm in self._book.new(alarms(self._before, snapshot, forecasts), snapshot.monotonic):
            self._journal.event(alarm.kind, alarm.message, **alarm.data)
        self._before = snapshot
        try:
            write_report(self._paths.sensors, SensorReport(snapshot, forecasts, self._sensors.fill()))
        except OSError as error:
            if error.errno not in FULL_ERRORS:
                raise
            # The journal tells about the full disk; old figures must not pass for new ones.
            self._paths.sensors.unlink(missing_ok=True)
