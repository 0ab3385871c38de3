"""Orders linearizable reads without a log entry: ReadIndex.

A read waits until a majority has answered a round that was opened after the read was registered. Then this node was
still the leader when the round was opened. The read must see the entries committed at that moment. One round serves
every read of one turn. No clock is involved: there are no leases. Thesis section 6.4.
"""

from __future__ import annotations

from raftlog.raft.consensus import replication
from raftlog.raft.consensus.roles import Leader, ReadRound
from raftlog.raft.consensus.state import State
from raftlog.raft.quorum import agreed
from raftlog.raft.ready import ReadReady
from raftlog.raft.refusals import NotLeader, ReadsFull


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
    """Open one round for all reads registered since the last.

    It waits for the first commit of this term. Only then does the commit index cover every acknowledged entry (thesis
    6.4 step 1; pitfall 32: a read before the term's first commit).
    """
    log = state.log
    if not role.reads_new or log.term_at(log.committed) != state.term:
        return
    role.round += 1
    role.reads_open.append(ReadRound(role.round, log.committed, tuple(role.reads_new)))
    role.reads_new.clear()
    replication.heartbeat(state, role)
    confirm(state, role)  # a single voter needs no other node


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
