"""All rounds are done: the nodes are told, those that are there and those that come back within a deadline."""

from __future__ import annotations

import msgspec

from trainer.federated.coordinator import POLL_SECONDS, Coordinator, State, write_state
from trainer.federated.rounds import Owing
from trainer.federated.wire import WireError

TELL_AGAIN_SECONDS = 60.0
"""A node that was told and says nothing is told again after this."""


def part(coordinator: Coordinator, state: State) -> State:
    """Call it after the last round. Raises OSError."""
    began = coordinator.clock()
    pending: dict[str, Owing] = {}
    while not state.ended:
        patience = began + coordinator.sections.rounds.deadline_seconds - coordinator.clock()
        if patience <= 0 or set(state.told) >= set(coordinator.keys):
            state = msgspec.structs.replace(state, ended=True)
            write_state(coordinator.folder, state)
            away = sorted(set(coordinator.keys) - set(state.told))
            coordinator.say(
                f"not told that it is over: {', '.join(away)}" if away else "all nodes know that it is over"
            )
            break
        try:
            known = _tell(coordinator, state, pending)
        except WireError as error:
            coordinator.say(f"nodes cannot be told just now: {error}")
            known = []
        if known:
            state = msgspec.structs.replace(state, told=tuple(sorted({*state.told, *known})))
            write_state(coordinator.folder, state)
            continue
        coordinator.sleep(min(POLL_SECONDS, max(0.0, patience)))
    return state


def _tell(coordinator: Coordinator, state: State, pending: dict[str, Owing]) -> list[str]:
    """Who has said since that it knows. ``pending``: whom that is asked of, by handle. Raises WireError."""
    now = coordinator.clock()
    waited_for = {each.node for each in pending.values() if now - each.since < TELL_AGAIN_SECONDS}
    for node in coordinator.wire.online():
        if node in coordinator.keys and node not in state.told and node not in waited_for:
            valid = float(coordinator.sections.rounds.deadline_seconds)
            pending[coordinator.wire.dismiss(node, state.round, valid)] = Owing(node, state.round, now)
    answers = coordinator.wire.collect(list(pending)) if pending else []
    told = [(pending.pop(answer.handle), answer) for answer in answers if answer.handle in pending]
    return [owing.node for owing, answer in told if not (answer.failed or answer.lost)]
