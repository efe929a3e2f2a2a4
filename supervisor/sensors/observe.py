"""All sensors together: a Snapshot now and then, without ever making the supervisor wait."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from supervisor.sensors.cgroup import MemoryCgroup, find_cgroup, read_cgroup
from supervisor.sensors.forecast import FillHistory, Sample
from supervisor.sensors.gpu import Gpus, GpuSensor
from supervisor.sensors.host import read_host
from supervisor.sensors.kernel_log import KernelLog
from supervisor.sensors.mounts import RUN_DIRECTORY, read_mounts
from supervisor.sensors.report import MountFill, MountForecast
from supervisor.sensors.snapshot import Snapshot, Unknown

SNAPSHOT_SECONDS = 10.0
KEPT_SNAPSHOTS = 12


class Sensors:
    """The sensors of one run, kept over its attempts. ``folders``: what the run touches, by use."""

    def __init__(self, folders: Mapping[str, Path], gpu: GpuSensor) -> None:
        self._folders = dict(folders)
        self._gpu = gpu
        self._kernel = KernelLog()
        self._pid: int | None = None
        self._cgroup: MemoryCgroup | Unknown = Unknown("no trainer is running")
        self._first: Snapshot | None = None
        self._last: deque[Snapshot] = deque(maxlen=KEPT_SNAPSHOTS - 1)
        self._fill: dict[str, tuple[FillHistory, FillHistory]] = {}
        self._own_bytes = 0
        self._asked = 0.0
        self._waiting = False

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """The first one of the present attempt and the newest ones, oldest first."""
        return () if self._first is None else (self._first, *self._last)

    def expect(self) -> None:
        """A trainer is about to be started: the kernel's words count from now on, it may die before :meth:`begin`."""
        self._kernel.restart()

    def begin(self, trainer_pid: int, own_bytes: int = 0) -> Snapshot:
        """An attempt has begun. The GPUs are only asked here; their first reading comes with the next snapshot."""
        self._pid = trainer_pid
        self._cgroup = find_cgroup(trainer_pid)
        self._last.clear()
        self._first = self._take(own_bytes, Unknown("the GPUs have not been read since the trainer started"))
        self._ask()
        return self._first

    def tick(self, own_bytes: int = 0, every: float | None = None) -> Snapshot | None:
        """A new snapshot when one is due (``every`` so many seconds) and the GPUs have answered.

        ``own_bytes``: see :meth:`forecasts`.
        """
        due = SNAPSHOT_SECONDS if every is None else min(every, SNAPSHOT_SECONDS)
        if not self._waiting and time.monotonic() - self._asked >= due:
            self._ask()
        if not self._waiting or (gpus := self._gpu.poll()) is None:
            return None
        self._waiting = False
        return self._keep(self._take(own_bytes, gpus))

    def end(self, own_bytes: int = 0) -> Snapshot:
        """The trainer has ended: what is left behind. Waits for the GPUs where there are some."""
        gpus = self._gpu.read() if self._gpu.present else self._gpu.poll()
        self._pid = None
        self._waiting = False
        return self._keep(self._take(own_bytes, Unknown("the GPUs have not answered yet") if gpus is None else gpus))

    def forecasts(self, growth_left: int = 0) -> tuple[MountForecast, ...]:
        """When each mount will be full.

        Checkpoints come and go by retention, so on the run directory's mount their bytes (``own_bytes`` of the
        snapshots) count as free, and ``growth_left``, what retention still lets them grow, as spoken for.
        """
        newest = self.snapshots[-1].mounts if self.snapshots else ()
        found = []
        for mount in newest:
            size, inodes = self._fill.get(mount.mount, (None, None))
            held = growth_left + self._own_bytes if RUN_DIRECTORY in mount.uses else 0
            found.append(
                MountForecast(
                    mount.mount,
                    size.forecast(held) if size is not None else None,
                    inodes.forecast() if inodes is not None else None,
                )
            )
        return tuple(found)

    def fill(self) -> tuple[MountFill, ...]:
        """Free bytes of each mount since the supervisor began."""
        return tuple(MountFill(mount, size.over_time()) for mount, (size, _) in self._fill.items())

    def close(self) -> None:
        self._gpu.close()
        self._kernel.close()

    def _ask(self) -> None:
        self._asked = time.monotonic()
        self._waiting = True
        self._gpu.request()

    def _keep(self, snapshot: Snapshot) -> Snapshot:
        if self._first is None:
            self._first = snapshot
        else:
            self._last.append(snapshot)
        return snapshot

    def _take(self, own_bytes: int, gpus: Gpus) -> Snapshot:
        self._own_bytes = own_bytes
        cgroup = self._cgroup if isinstance(self._cgroup, Unknown) else read_cgroup(self._cgroup)
        snapshot = Snapshot(
            time=time.time(),
            monotonic=time.monotonic(),
            gpus=gpus,
            mounts=read_mounts(self._folders),
            host=read_host(self._pid),
            cgroup=cgroup,
            kernel=self._kernel.read(),
        )
        self._sample(snapshot)
        return snapshot

    def _sample(self, snapshot: Snapshot) -> None:
        for mount in snapshot.mounts:
            size, inodes = self._fill.setdefault(mount.mount, (FillHistory(), FillHistory()))
            if not isinstance(mount.free_bytes, Unknown):
                ours = self._own_bytes if RUN_DIRECTORY in mount.uses else 0
                size.add(Sample(snapshot.monotonic, mount.free_bytes + ours))
            if not isinstance(mount.free_inodes, Unknown):
                inodes.add(Sample(snapshot.monotonic, mount.free_inodes))
