"""A node doesn't wait for ever for a coordinator that is gone."""

import socket

from trainer.federated.reach import LONGEST_SECONDS, PROBE_SECONDS, Reach


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
