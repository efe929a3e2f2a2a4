"""Real messages of Flower's, also hostile ones, through what fetches them from its grid."""

import subprocess
from pathlib import Path

import pytest
from real_federation import need_flower  # type: ignore[import-not-found]

from trainer.federated import flower

PROGRAM = Path(__file__).with_name("hostile_messages.py")


# proves FED-1 (what one registered node sends ends nothing and costs nobody else's delta)
@pytest.mark.slow
@pytest.mark.flower
def test_hostile_messages_are_their_nodes_alone(tmp_path: Path) -> None:
    need_flower()
    python = flower.programs() / "python"
    answer = subprocess.run(
        [str(python), str(PROGRAM)], capture_output=True, text=True, check=False, timeout=1800, cwd=tmp_path
    )
    assert answer.returncode == 0, answer.stderr
    found = dict(line.split(": ", 1) for line in answer.stdout.splitlines() if ": " in line)
    assert found.pop("right") == "50 numbers, claim"
    assert found.pop("dead") == "lost the node could not answer: gone"
    assert found.pop("refusal") == "failed no \x1b[2J"
    assert set(found) == {"junk", "empty", "stype", "header", "shape", "double", "inflate", "none"}
    assert all(each.startswith("failed what it has sent cannot be read") for each in found.values()), found
