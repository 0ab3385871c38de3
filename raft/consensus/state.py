"""Holds the whole state of one node, and the transitions between roles.

Data and the `become_…` functions; what triggers them is in `election`, `replication` and `core`. Raft paper figures 2
and 4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from raftlog.raft.codec.checks import INDEX_MAX
from raftlog.raft.configuration import Configuration
from raftlog.raft.consensus.log import Log
from raftlog.raft.consensus.progress import FollowerProgress
from raftlog.raft.consensus.roles import Candidate, Follower, Leader, PreCandidate, Role
from raftlog.raft.events import (
    BecameCandidate,
    BecameFollower,
    BecameLeader,
    BecamePreCandidate,
    ChangeGivenUp,
    Event,
    LogDiffers,
    MessageIgnored,
    TransferEnded,
)
from raftlog.raft.hello import Start
from raftlog.raft.messages import Message
from raftlog.raft.options import Options
from raftlog.raft.ready import Fetch, ReadFailed, ReadReady, SnapshotFetch, SnapshotInstall, SnapshotWrite
from raftlog.raft.types import NOBODY, Entry, EntryKind, NodeId, Now

TERM_JUMP_MAX: Final = 1_000_000_000
"""Most terms between two messages that a node believes: a node that begins ten terms a second for three years comes so
far. A forged message must not raise the term to its maximum, above which no node could be elected."""

INDEX_FAR: Final = INDEX_MAX // 2
"""Highest index that a peer's entry or snapshot may have: a million records a second for 142 years. A log whose last
index is the highest one takes no entry any more, so no node could lead."""

IMPOSSIBLE: Final = "impossible: "
"""Begins the reason for dropping a message that no honest node sends. The simulator fails where it meets one."""

BEYOND: Final = f"no node has begun {TERM_JUMP_MAX} terms that this node has not heard of"

CHAIN_REJECTIONS_MAX: Final = 5
"""Messages of one leader, in one term, that a follower rejects because its own entry before them has another header.
Then the two logs differ, and asking again is no help: `LogDiffers`. A leader asks at least once per heartbeat."""


@dataclass(slots=True)
class Outbox:
    """What the next Ready will carry, beside what the log itself knows."""

    messages: list[Message] = field(default_factory=list)
    after_sync: list[Message] = field(default_factory=list)
    hard_state: bool = False  # term or vote changed
    fetched: list[Entry] = field(default_factory=list)  # committed entries that came back from disk
    reads: list[ReadReady] = field(default_factory=list)
    reads_failed: list[ReadFailed] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    snapshot_fetches: list[SnapshotFetch] = field(default_factory=list)
    snapshot_writes: list[SnapshotWrite] = field(default_factory=list)
    snapshot_install: SnapshotInstall | None = None
    events: list[Event] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether it asks for nothing."""
        return not (
            self.messages
            or self.after_sync
            or self.hard_state
            or self.fetched
            or self.reads
            or self.reads_failed
            or self.fetches
            or self.events
            or self.snapshot_fetches
            or self.snapshot_writes
            or self.snapshot_install
        )


@dataclass(slots=True)
class Download:
    """A snapshot that the leader of `leader_term` sends this node."""

    sender: NodeId
    leader_term: int
    index: int
    term: int  # of the entry at `index`
    total: int
    offset: int = 0  # everything before it is written aside
    ahead: int = 0  # everything before it came
    writes: deque[SnapshotWrite] = field(default_factory=deque)  # of what lies between: asked for, not yet done
    is_installing: bool = False  # all of it is there; it is being checked and put in force


@dataclass(slots=True)
class Memory:
    """What this node remembers of one disk's promises (`raftlog.raft.consensus.recall`): those before its newest
    process, and since."""

    run: int = 0  # of the newest process met; 0: none that said it
    run_before: int = 0  # of the process that was met before that one
    term: int = 0  # newest term in which an earlier process promised something
    acked: tuple[int, int] = (0, 0)  # newest entry that an earlier process acknowledged to its leader: term, index
    term_now: int = 0  # the same of the newest process
    acked_now: tuple[int, int] = (0, 0)
    led: tuple[int, int] = (0, 0)  # newest entry that this node acknowledged to that disk's process as its leader

    def begin(self, run: int) -> bool:
        """A process of that disk is met; whether it is a new one. Earlier promises are then from before it."""
        if run == self.run:
            return False
        self.run_before, self.run = self.run, run
        self.term, self.acked = max(self.term, self.term_now), max(self.acked, self.acked_now)
        self.term_now, self.acked_now = 0, (0, 0)
        return True

    def note(self, term: int, index: int) -> None:
        """It promised something in that term; with `index`, that it holds the entry of that term there."""
        self.term_now = max(self.term_now, term)
        if index:
            self.acked_now = max(self.acked_now, (term, index))

    def lost_by(self, run: int) -> Memory:
        """What a process that runs beside the newest one, or on an older copy of the disk, may lack: the promises of
        the newest process, and those before it, unless it is the process that made them."""
        term, acked = self.term_now, self.acked_now
        if run != self.run_before:
            term, acked = max(self.term, term), max(self.acked, acked)
        return Memory(run=self.run, term=term, acked=acked, led=self.led)

    def is_kept_by(self, start: Start) -> bool:
        """Whether a disk that a process found so has everything that was promised before it."""
        return self.acked <= (start.last_term, start.last_index) and self.term <= start.term


@dataclass(slots=True)
class RecallState:
    """The promises of this disk and of its peers, as far as any node remembers them. Owner: `recall`.

    Runs name processes, as their hellos say. Pairs of numbers are term and index of an entry.
    """

    run: int = 0  # of this process; 0: it asks no peer about its promises
    started_ms: int = 0  # monotonic
    # Heals: until an entry of this term or a later one is durable here it has no vote (`raftlog.raft.wal.repair`).
    floor: int = 0
    kept: tuple[int, int] = (0, 0)  # an entry up to which this disk surely kept its promises
    kept_term: int = 0  # newest term of which it surely remembers whether it voted
    reported: tuple[int, int] | None = None  # newest entry that this disk acknowledged and lost, by peers' reports
    said: dict[NodeId, tuple[str, int]] = field(default_factory=dict)  # connected nodes: disk, known version
    starts: dict[NodeId, Start] = field(default_factory=dict)  # what connected processes found when they started
    led: dict[NodeId, tuple[int, int]] = field(default_factory=dict)  # what connected peers acknowledged to this disk
    recalled: dict[NodeId, int] = field(
        default_factory=dict
    )  # when peers last reported what they remember of this disk
    refused: dict[NodeId, tuple[str, int]] = field(default_factory=dict)  # disk and run of a peer's older copy
    memories: dict[tuple[NodeId, str], Memory] = field(default_factory=dict)  # by node and incarnation of its disk
    ask_ms: int = 0  # when to ask again

    def run_of(self, peer: NodeId) -> int:
        """The run of the connected process of that peer; 0: unknown."""
        start = self.starts.get(peer)
        return 0 if start is None else start.run


@dataclass(slots=True)
class ApplyRead:
    """Committed entries that are read from disk to be applied."""

    fetch: Fetch | None = None  # asked
    retry_ms: int | None = None  # the disk could not deliver them: ask again then


@dataclass(slots=True)
class State:
    """One node. Only the functions of this package change it, in one thread."""

    node: NodeId
    options: Options
    random: Callable[[int, int], int]
    now: Now
    term: int
    vote: NodeId
    boot: int
    durable_term: int  # a term whose hard state is certainly on disk: replies of that term may leave at once
    log: Log
    configurations: list[tuple[int, Configuration]]  # (index, value): newest last; older ones for roll-back
    role: Role
    applying: ApplyRead = field(default_factory=ApplyRead)
    receiving: Download | None = None
    incarnation: str = ""  # of this disk; empty: whatever the configuration names
    knows: int = 1  # newest cluster version that this program knows
    recall: RecallState = field(default_factory=RecallState)
    is_stalled: bool = False  # the driver says that this node's disk hangs: nothing that it promises can leave
    shard: int = 0  # of this Raft group, of several on the same nodes
    is_touched: bool = True  # an input came since `ready` was asked last
    out: Outbox = field(default_factory=Outbox)

    @property
    def configuration(self) -> Configuration:
        """The one in force: the newest in the log, committed or not (thesis 4.1)."""
        return self.configurations[-1][1]

    @property
    def may_campaign(self) -> bool:
        """Whether this node, with this disk, is a voter, or may still be needed as one.

        It may be the only node that has the configuration without it, until that one is known to be committed (thesis
        4.2.2).

        A disk that the configuration does not name lost the promises of the named disk. It must not vote for itself
        (pitfall 46: a wiped disk that votes under its old number). Nor must a log that lost entries, until it has them
        again (pitfall 66: a damaged node that wins an election). A node whose disk hangs could not begin its term.
        """
        if self.recall.floor or self.is_stalled:
            return False
        for index, configuration in reversed(self.configurations):
            member = configuration.member(self.node)
            if configuration.is_voter(self.node) and member is not None:
                return self.incarnation in {"", member.incarnation}
            if index <= self.log.committed:
                break
        return False

    def has_removed(self, node: NodeId, incarnation: str) -> bool:
        """Whether a committed configuration removed that disk, and no newer one names it again."""
        for index, each in reversed(self.configurations):
            if not each.has_removed(node, incarnation):
                return False
            if index <= self.log.committed:
                break
        return True

    @property
    def leader(self) -> NodeId:
        """The leader of this term, as far as known."""
        if isinstance(self.role, Follower):
            return self.role.leader
        return self.node if isinstance(self.role, Leader) else NOBODY

    @property
    def is_installing(self) -> bool:
        """Whether a snapshot is about to take the place of the log: until then nothing is appended or applied."""
        return self.receiving is not None and self.receiving.is_installing

    def draw_timeout(self) -> int:
        """A fresh election timeout (raft paper section 5.2; drawn each time; pitfall 12: equal election timeouts)."""
        return self.random(self.options.election_timeout_min_ms, self.options.election_timeout_max_ms)


def become_follower(state: State, term: int, leader: NodeId, reason: str) -> None:
    """Follow `leader` (or no leader) in `term`. The vote is forgotten only with its term (pitfall 3: a vote cleared
    within its term)."""
    assert term >= state.term, (term, state.term)
    if isinstance(state.role, Leader):
        _leave_leadership(state, state.role, term)
    if term > state.term:
        state.term = term
        state.vote = NOBODY
        state.out.hard_state = True
    now_ms, timeout_ms = state.now.monotonic_ms, state.draw_timeout()
    state.role = Follower(leader, now_ms, timeout_ms, now_ms + timeout_ms)
    state.out.events.append(BecameFollower(term, leader, reason))


def hear_leader(state: State, leader: NodeId) -> None:
    """A message of the leader of the current term arrived. If a committed configuration removed that leader, this node
    waits no longer for it: its key must not hold up the election of the next one."""
    role, now_ms = state.role, state.now.monotonic_ms
    assert not isinstance(role, Leader), f"node {leader} and this one both lead term {state.term}"
    if isinstance(role, Follower) and role.leader == leader:
        if state.has_removed(leader, ""):
            return
        role.contact_ms = now_ms
        role.deadline_ms = now_ms + role.timeout_ms
        role.link_closed = False
        role.hasty_ms = None
    else:
        become_follower(state, state.term, leader, "heard from the leader")


def become_pre_candidate(state: State, reason: str, *, link_closed: bool) -> None:
    """Start to ask for pre-votes. Term and vote stay as they are (pitfall 7: a pre-vote that changes state).

    The old leader is forgotten (pitfall 8: deadlock of pre-vote and check-quorum).
    """
    deadline_ms = state.now.monotonic_ms + state.draw_timeout()
    state.role = PreCandidate({state.node: True}, deadline_ms, link_closed)
    state.out.events.append(BecamePreCandidate(state.term, reason))


def become_candidate(state: State, reason: str) -> None:
    """A new term, with the own vote in it (figure 2, Candidates)."""
    state.term += 1
    state.vote = state.node
    state.out.hard_state = True
    state.role = Candidate({state.node: True}, state.now.monotonic_ms + state.draw_timeout())
    state.out.events.append(BecameCandidate(state.term, reason))


def become_leader(state: State) -> None:
    """Lead the current term; its first entry is a no-op (thesis 6.4: nothing of older terms commits by counting)."""
    assert isinstance(state.role, Candidate), state.role
    now_ms, log = state.now.monotonic_ms, state.log
    state.role = Leader(
        progress={
            peer: FollowerProgress(
                sent=log.last.index, contact_ms=now_ms, heal_at=log.last.index + 1, run=state.recall.run_of(peer)
            )
            for peer in state.configuration.peers(state.node)
        },
        heartbeat_ms=now_ms + state.options.heartbeat_ms,
        quorum_since_ms=now_ms,
        uncommitted_bytes=log.bytes_between(log.committed, log.last.index),
    )
    entry = log.append_own(state.term, EntryKind.NOOP, 1, b"", state.now)
    state.role.uncommitted_bytes += entry.size
    state.out.events.append(BecameLeader(state.term, entry.index))


def _leave_leadership(state: State, role: Leader, term: int) -> None:
    """Waiting reads must be asked again; proposed entries may still be committed by other leaders (pitfall 30: pending
    proposals reported as failed). What a change of the members was still to do must be said again."""
    failed = [ReadFailed(context) for opened in role.reads_open for context in opened.contexts]
    state.out.reads_failed += failed
    state.out.reads_failed += [ReadFailed(context) for context in role.reads_new]
    if role.transfer is not None:
        reason = "another term began" if term > state.term else "leadership was lost"
        state.out.events.append(TransferEnded(role.transfer.to, reason))
    waiting = list(role.catch_ups)
    if role.next_change is not None:
        waiting += [member.node for member in role.next_change.members]
    state.out.events += [ChangeGivenUp(node, "leadership was lost: say it again") for node in waiting]


def is_beyond(state: State, *terms: int) -> bool:
    """Whether a peer names a term that cannot be true (`BEYOND`). Each number of a peer that may raise this node's term
    or its floor is asked here first."""
    return max(terms) > state.term + TERM_JUMP_MAX


def deny(state: State, message: Message, reason: str) -> None:
    """Drop a message that no honest node sends: it would break an invariant."""
    ignore(state, message, IMPOSSIBLE + reason)


def ignore(state: State, message: Message, reason: str) -> None:
    """Drop a message that cannot be believed, visibly."""
    state.out.events.append(MessageIgnored(message.sender, type(message).__name__, reason))


def note_difference(state: State, index: int) -> None:
    """The committed entry at `index` is another one at this leader: no snapshot of it may replace this log."""
    role = state.role
    assert isinstance(role, Follower), role
    role.differs_at = role.differs_at or index


def reject_difference(state: State, message: Message, event: LogDiffers, what: str) -> None:
    """Escalates, once, where the entry of `event` differs from the leader's: no message of this leader can follow it.

    The follower does not cut its entry in favour of the leader's, even above the commit index. The leader may be the
    damaged one, and this follower's copy may be needed for the majority that commits the entry. It may also be the last
    copy of entries that were acknowledged.
    """
    role = state.role
    assert isinstance(role, Follower), role  # of the message's sender, which it just heard
    if role.differs_at != event.index:
        role.differs_at, role.rejections = event.index, 0
    role.rejections += 1
    if role.rejections <= CHAIN_REJECTIONS_MAX:
        ignore(state, message, what)
    if role.rejections == CHAIN_REJECTIONS_MAX:
        state.out.events.append(event)
