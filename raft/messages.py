"""Defines the messages that peers exchange: one frozen dataclass each, with a shared header.

Names are the paper's (figure 2, thesis 3.10, 6.4, 9.6). `shard` names the Raft group, of several that share nodes and
links. Each answer repeats fields of its request, so that a late answer is distinguished from a current one (pitfall 20:
a late reply moves the progress).
"""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.raft.types import Entry, NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What every message carries. `term` is the sender's current term, except in a pre-vote request (its next)."""

    sender: NodeId
    to: NodeId
    term: int
    shard: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestVote(Header):
    """A (pre-)candidate asks for a vote. With `pre`, `term` is the term it *would* campaign in (thesis 9.6)."""

    last_index: int
    last_term: int
    pre: bool = False
    transfer: bool = False  # the leader asked for this campaign (TimeoutNow): overrides vote stickiness (thesis 4.2.3)
    # the candidate's link to the leader closed; a voter that saw the same may grant a pre-vote
    link_closed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestVoteReply(Header):
    """The answer. `request_term` echoes the request's term (pitfall 8: deadlock of pre-vote and check-quorum)."""

    request_term: int
    granted: bool
    pre: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendEntries(Header):
    """Entries after (prev_index, prev_term), possibly none; also the heartbeat and the read round."""

    prev_index: int
    prev_term: int
    commit: int  # leader's commit; the follower takes min(commit, last entry this message proved)
    round: int  # newest round of the term; echoed: a quorum of echoes confirms the reads registered at or before it
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendEntriesReply(Header):
    """The answer, sent only after what it promises is durable.

    On success `match` is the end of the entries that this message proved: prev + its entries, never the follower's own
    last index (pitfall 17: a follower reports its own last index). On a mismatch `match` is 0. Then (hint_index,
    hint_term) is the last end of an entry at or below prev_index in the follower's log whose term is not above
    prev_term. The leader steps back to it or below.
    """

    success: bool
    match: int
    prev_index: int  # echoed
    round: int  # echoed
    hint_index: int = 0
    hint_term: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallSnapshot(Header):
    """One chunk of the snapshot up to (snapshot_index, snapshot_term) of `total` bytes; `done` with its last byte."""

    snapshot_index: int
    snapshot_term: int
    offset: int
    total: int
    crc: int  # CRC32C of the chunk
    done: bool
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallSnapshotReply(Header):
    """How much of the snapshot is written at the follower: all of it when it is in force there, or was not needed.

    Where it is not `accepted`, `offset` is where the leader is to go on: what came before it is not there.
    """

    snapshot_index: int
    snapshot_term: int
    offset: int
    accepted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutNow(Header):
    """The leader asks a caught-up follower to campaign at once (thesis 3.10). `last_index` is the leader's."""

    last_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall(Header):
    """A process asks what a peer remembers of its disk's promises, and a leader whether it has everything again.

    Its `term` settles nothing (`raftlog.raft.consensus.recall`), nor does that of the answer.
    """

    run: int  # of the process that asks, as in its hello
    floor: int  # not 0: it is healing


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallReply(Header):
    """The answer. With `is_lost`, a leader informs a follower that lost acknowledged entries while it ran."""

    run: int  # echoed
    promised_term: int  # newest term in which an earlier process of that disk promised something; 0: none
    acked_term: int  # newest entry that such a process acknowledged to the leader of the entry's term: its term, index
    acked_index: int
    # newest entry that the sender acknowledged to such a process as its leader, which may count itself; or that the
    # sender knows to be committed, perhaps with that disk
    led_term: int
    led_index: int
    healed_index: int  # not 0: the sender leads, and the node has all it can have promised, once this much is durable
    is_alone: bool  # the sender's configuration has fewer than three voters on a side with that node
    is_lost: bool


Message = (
    RequestVote
    | RequestVoteReply
    | AppendEntries
    | AppendEntriesReply
    | InstallSnapshot
    | InstallSnapshotReply
    | TimeoutNow
    | Recall
    | RecallReply
)


def is_promise(message: Message) -> bool:
    """Whether the message is only to be believed from the disk that the receiver's configuration names: a vote or an
    acknowledgement.

    Requests are accepted from any disk: a candidate is a voter by its own log, and a leader has won. A node that slept
    through the replacement of its leader's disk could else never hear of it.
    """
    return isinstance(message, RequestVoteReply | AppendEntriesReply | InstallSnapshotReply)
