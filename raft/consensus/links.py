"""Takes the news of links: one opened, one closed, or a dial was refused.

Each node dials every other one, and sends on the link that it dialled. A closed link does not say why it closed. If the
leader's process was killed, a dial to it is refused at once, and waiting for the election timeout would only cost time.
If the network broke and works again, the leader lives: it dials again, and its heartbeat arrives first. So a follower
waits for two different times: see `Options.link_closed_delay_min_ms` and `link_refused_delay_min_ms`. In both cases it
asks for pre-votes, which a voter that hears the leader refuses (thesis 9.6, 4.2.3).
"""

from __future__ import annotations

from raftlog.raft.consensus import election, replication, snapshots
from raftlog.raft.consensus.progress import Mode
from raftlog.raft.consensus.roles import Follower, Leader
from raftlog.raft.consensus.state import State
from raftlog.raft.types import NodeId


def opened(state: State, peer: NodeId) -> None:
    """A link to or from `peer` opened. A leader sends it a heartbeat at once: the follower may be counting the time
    since the old link closed. Messages lost with that link are sent again."""
    role = state.role
    if isinstance(role, Leader) and (progress := role.progress.get(peer)) is not None:
        progress.is_waiting = False
        replication.heartbeat_to(state, role, peer, progress)


def closed(state: State, peer: NodeId) -> None:
    """The link from `peer` closed. A follower of it shortens its wait; a leader takes the messages in flight for
    lost."""
    role = state.role
    if isinstance(role, Leader):
        progress = role.progress.get(peer)
        if progress is not None and progress.mode is Mode.REPLICATE:
            progress.probe(progress.match)
            progress.is_waiting = True  # until a link opens, or the next heartbeat
        elif progress is not None:
            snapshots.on_link_closed(progress)
        if role.transfer is not None and role.transfer.to == peer:
            election.end_transfer(state, role, "gave up: its link closed")
    elif isinstance(role, Follower) and role.link_closed:
        role.kept = tuple(other for other in role.kept if other != peer)
    elif isinstance(role, Follower) and role.leader == peer:
        role.link_closed = True
        role.kept = tuple(state.recall.said)
        # The old link's close may arrive behind the new link's first heartbeat. Then the next heartbeat comes in time.
        options = state.options
        late_ms = max(0, 2 * options.heartbeat_ms - options.link_closed_delay_min_ms)
        delay_ms = late_ms + state.random(options.link_closed_delay_min_ms, options.link_closed_delay_max_ms)
        role.deadline_ms = min(role.deadline_ms, state.now.monotonic_ms + delay_ms)


def refused(state: State, peer: NodeId) -> None:
    """A dial to `peer` was refused: no process listens there. If it is the leader, and its link closed too, an
    election starts soon; the next heartbeat of that leader calls it off."""
    role = state.role
    if isinstance(role, Follower) and role.leader == peer and role.hasty_ms is None:
        options = state.options
        delay_ms = state.random(options.link_refused_delay_min_ms, options.link_refused_delay_max_ms)
        role.hasty_ms = state.now.monotonic_ms + delay_ms
