import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
from trainer import warm

if "AGAIN" in os.environ:
    print("afresh", os.getpid(), sys.argv[1:], "torch" in sys.modules)
    sys.exit(7)
os.environ["AGAIN"] = "1"
print("first", os.getpid(), flush=True)
warm._imported_with.extend({imported!r})
warm.start_afresh_if_imported_otherwise()
print("went on", flush=True)
"""


# proves SUP-12: imported for a local base and given a job with a hub model (or the reverse), the process starts afresh
@pytest.mark.parametrize(
    ("imported", "now", "afresh"),
    [(["1"], None, True), ([None], "1", True), (["1"], "1", False), ([None], None, False), ([], "1", False)],
)
def test_other_settings_than_at_import(
    tmp_path: Path, imported: list[str | None], now: str | None, afresh: bool
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(imported=imported))
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    if now is not None:
        environment["HF_HUB_OFFLINE"] = now
    found = subprocess.run(
        [sys.executable, "-P", str(script), "argument"], env=environment, capture_output=True, text=True, check=False
    )
    first, second = found.stdout.splitlines()
    pid = first.removeprefix("first ")
    assert second == (f"afresh {pid} ['argument'] False" if afresh else "went on"), found.stderr
    assert found.returncode == (7 if afresh else 0)
