"""A node doesn't wait for ever for a coordinator that is gone, nor in silence for one that refuses it."""

import re
import socket
import threading
import time
from pathlib import Path

from trainer.federated.front import Front
from trainer.federated.identity import init
from trainer.federated.reach import LONGEST_SECONDS, PROBE_SECONDS, Reach, distrust


# proves FED-1 (a node whose coordinator stays away ends after a stated time, and not before)
def test_a_coordinator_is_given_up_after_a_stated_time_without_it() -> None:
    now = [1000.0]
    with socket.create_server(("127.0.0.1", 0)) as server:
        reach = Reach("127.0.0.1", server.getsockname()[1], clock=lambda: now[0])
        now[0] += LONGEST_SECONDS + 1
        assert not reach.lost(), "it answers"
    now[0] += PROBE_SECONDS
    assert not reach.lost()
    now[0] += LONGEST_SECONDS - PROBE_SECONDS
    assert not reach.lost()
    now[0] += 1
    assert reach.lost()


# proves FED-1 (a box that is refused for its clock, or has another federation's keys, says so; a little off is no harm)
def test_a_clock_that_is_refused_and_a_strange_certificate_are_named(tmp_path: Path) -> None:
    mine, other = (
        init(tmp_path / name, "lan", "127.0.0.1", 9443, ["node1"], "train.yaml").parent for name in ("mine", "other")
    )
    keys = mine / "coordinator"
    behind = ("127.0.0.1", 9)
    with Front(("127.0.0.1", 0), keys / "front.pem", keys / "front.key", behind, keys / "authority.pem") as front:
        threading.Thread(target=front.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

        def said(folder: Path, seconds: float) -> str | None:
            port = int(front.server_address[1])
            return distrust("127.0.0.1", port, folder / "node1/authority.pem", lambda: time.time() + seconds)

        assert [said(mine, seconds) for seconds in (0, 1, -200)] == [None, None, None]
        for seconds, word in ((60, "ahead of"), (-400, "behind")):
            found = re.search(rf"clock is (\d+) seconds {word} the coordinator's", said(mine, seconds) or "")
            assert found and abs(int(found[1]) - abs(seconds)) <= 5
        assert "certificate is not accepted" in (said(other, 0) or "")
        front.shutdown()
    assert said(mine, 60) is None, "nobody answers"
