"""ReadIndex: linearizable reads without a log entry.

A read waits until a majority has answered a round that was opened after the read was registered: then this node was
still the leader, and what was committed when the round was opened is what the read must see. One round serves every
read of one turn. No clock is involved: there are no leases. Thesis section 6.4.
"""

from __future__ import annotations

from raft import replication
from raft.quorum import agreed
from raft.ready import ReadReady
from raft.refusals import NotLeader, ReadsFull
from raft.roles import Leader, ReadRound
from raft.state import State


def register(state: State, context: int) -> None:
    """Take a read; its round is opened by the next Ready. Raises NotLeader or ReadsFull."""
    role = state.role
    if not isinstance(role, Leader):
        raise NotLeader(state.leader)
    if role.reads_count >= state.options.reads_pending_max:
        raise ReadsFull(f"{role.reads_count} reads wait for their round")
    role.reads_new.append(context)
    role.reads_count += 1


def open_round(state: State, role: Leader) -> None:
    """Open one round for all reads registered since the last; not before the first commit of this term, because only
    then is the commit index known to cover everything acknowledged (thesis 6.4 step 1; pitfall 32)."""
    log = state.log
    if not role.reads_new or log.term_at(log.committed) != state.term:
        return
    role.round += 1
    role.reads_open.append(ReadRound(role.round, log.committed, tuple(role.reads_new)))
    role.reads_new.clear()
    replication.heartbeat(state, role)
    confirm(state, role)  # a single voter needs nobody else


def confirm(state: State, role: Leader) -> None:
    """Let go the reads whose round a majority has answered (pitfall 34: the same quorum as for commit)."""
    if not role.reads_open:
        return
    rounds = {peer: progress.round for peer, progress in role.progress.items()}
    rounds[state.node] = role.round
    confirmed = agreed(state.configuration, rounds)
    while role.reads_open and role.reads_open[0].round <= confirmed:
        opened = role.reads_open.popleft()
        role.reads_count -= len(opened.contexts)
        state.out.reads += [ReadReady(context, opened.read_index) for context in opened.contexts]
