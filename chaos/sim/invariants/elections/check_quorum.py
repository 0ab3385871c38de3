"""Check-quorum: a leader that no majority answers steps down within an election timeout (thesis section 6.2)."""

from __future__ import annotations

from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.consensus.roles import Leader
from raftlog.raft.consensus.state import State
from raftlog.raft.options import Options
from raftlog.raft.quorum import agreed
from raftlog.raft.types import NodeId

PROPERTY = "check-quorum"
SECTION = "thesis 6.2"


class CheckQuorum:
    """When each leader's next heartbeat was due when it was last looked at: it changes with every tick."""

    def __init__(self) -> None:
        self._due: dict[NodeId, int] = {}

    def leads(self, state: State, role: Leader) -> None:
        """That node leads, and has had its tick. Raises InvariantBroken."""
        if self._due.get(state.node) == role.heartbeat_ms:
            return
        self._due[state.node] = role.heartbeat_ms
        now_ms = state.now.monotonic_ms
        contacts = {peer: progress.contact_ms for peer, progress in role.progress.items()}
        contacts[state.node] = now_ms
        heard_ms = max(agreed(state.configuration, contacts), role.quorum_since_ms)
        if now_ms - heard_ms > patience_ms(state.options):
            raise InvariantBroken(state.node, PROPERTY, SECTION, f"no majority was heard for {now_ms - heard_ms} ms")


def patience_ms(options: Options) -> int:
    """How long a leader that ticks in time may go on without a majority."""
    return options.election_timeout_max_ms + options.heartbeat_ms
