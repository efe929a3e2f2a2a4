import pytest

from supervisor.diagnosis.diagnose import diagnose
from supervisor.diagnosis.values import Evidence
from supervisor.sensors.snapshot import HostReading, MountReading, Snapshot, Unknown

NO = Unknown("not asked")


def seen(*mounts: MountReading) -> tuple[Snapshot, ...]:
    return (Snapshot(0.0, 0.0, NO, mounts, HostReading(NO, NO, NO, NO, NO, NO), NO, NO),)


# proves SUP-6, SUP-13: on a disk without room a trainer can say nothing at all; the sensors know why
@pytest.mark.parametrize(
    ("mount", "code", "number", "kind"),
    [
        (MountReading("/d", ("run directory",), 8 << 20, 0, 9), 1, None, "disk_full"),
        (MountReading("/d", ("run directory",), 8 << 20, 5 << 20, 0), 1, None, "disk_full"),
        (MountReading("/d", ("run directory",), 8 << 20, 5 << 20, 9), 1, None, "unknown"),
        (MountReading("/d", ("temporary files",), 8 << 20, 0, 9), 1, None, "unknown"),
        (MountReading("/d", ("run directory",), 8 << 20, NO, NO), 1, None, "unknown"),
        (MountReading("/d", ("run directory",), 8 << 20, 0, 9), None, 9, "killed"),
        (MountReading("/d", ("run directory",), 8 << 20, 0, 9), 78, None, "config_error"),
    ],
)
def test_silence_on_a_full_disk(mount: MountReading, code: int | None, number: int | None, kind: str) -> None:
    found = diagnose(Evidence(None, code, number, "", None, snapshots=seen(mount)))
    assert found.kind == kind
    if kind == "disk_full":
        assert "/d has no" in found.explanation and found.helps[0] == "trim_retention"
