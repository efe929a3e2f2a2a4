import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from trainer.data.corpus import ROWS_PER_SIGN, build_corpus
from trainer.data.render import Renderer
from trainer.data.sources import Source

STUCK = {
    "deadlock": "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "spin that holds the interpreter": "import itertools; sum(itertools.repeat(0))",
}


# proves SUP-8: where every thread stands is shown in a deadlock and while native code keeps the interpreter's lock
@pytest.mark.parametrize("what", list(STUCK))
def test_stacks_are_shown_when_nothing_else_works(tmp_path: Path, what: str) -> None:
    stacks = tmp_path / "stacks.txt"
    script = (
        f"from pathlib import Path\nfrom trainer.stacks import show_stacks\nshow_stacks(Path({str(stacks)!r}))\n"
        f"def stuck():\n    print('here', flush=True)\n    {STUCK[what]}\nstuck()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"here\n"
        deadline = time.monotonic() + 30
        while "in stuck" not in stacks.read_text() and time.monotonic() < deadline:
            process.send_signal(signal.SIGUSR1)
            time.sleep(0.05)
        assert "in stuck" in stacks.read_text()
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


# proves SUP-8: rendering many rows is not silence
def test_rendering_shows_signs_of_life(tmp_path: Path, smol_tokenizer: PreTrainedTokenizerBase) -> None:
    path = tmp_path / "rows.jsonl"
    count = 2 * ROWS_PER_SIGN + 10
    path.write_text("".join(json.dumps({"prompt": f"Say {n}", "completion": f"{n}."}) + "\n" for n in range(count)))
    signs: list[None] = []
    build_corpus(
        [Source("jsonl", path)], Renderer(smol_tokenizer), max_length=64, on_progress=lambda: signs.append(None)
    )
    assert len(signs) == 2
