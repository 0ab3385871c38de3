"""Decides for one node: the driver feeds RaftCore inputs, takes its Ready, carries it out, and reports the end.

No clock, no chance of its own, no disk, no network: the same code runs in the server and in the simulator.
The order in which a Ready is carried out is in `raftlog.raft.ready`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raftlog.raft import versions
from raftlog.raft.changes import MemberChange
from raftlog.raft.configuration import Configuration
from raftlog.raft.consensus import (
    election,
    hearing,
    links,
    membership,
    reads,
    recall,
    reconfiguration,
    replication,
    snapshots,
)
from raftlog.raft.consensus.log import Log
from raftlog.raft.consensus.progress import Hold
from raftlog.raft.consensus.roles import Follower, Leader
from raftlog.raft.consensus.state import BEYOND, Outbox, RecallState, State, become_follower, deny, ignore, is_beyond
from raftlog.raft.consensus.status import CoreStatus, status_of
from raftlog.raft.hello import Start
from raftlog.raft.messages import (
    AppendEntries,
    AppendEntriesReply,
    InstallSnapshot,
    InstallSnapshotReply,
    Message,
    Recall,
    RecallReply,
    RequestVote,
    RequestVoteReply,
    TimeoutNow,
)
from raftlog.raft.options import Options
from raftlog.raft.ready import Fetch, Ready, SnapshotFetch, SnapshotWrite
from raftlog.raft.refusals import Busy, NotLeader, TransferInProgress
from raftlog.raft.types import NOBODY, Entry, EntryKind, HardState, LogStart, Mark, NodeId, Now


@dataclass(frozen=True, slots=True)
class Proposal:
    """Where a proposal was put. Later it is committed at that index with that term, or it never will be."""

    term: int
    first: int  # its first record
    last: int  # its last record: the entry's index


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreStart:
    """What a starting node has on its disk. `hard_state` and `log` are durable."""

    hard_state: HardState
    log: LogStart
    # The newest in the log, committed or not (or the snapshot's, or an empty one at index 0 on a node that is to join).
    configuration: Configuration
    configuration_index: int
    # Those before it, oldest first, back to the one in force at `applied`: the newest may still be cut away.
    earlier: tuple[tuple[int, Configuration], ...] = ()
    commit: int  # known to be committed, at least the snapshot
    applied: int  # the state machine holds everything up to there
    incarnation: str = ""  # a node that the configuration names with another one never campaigns; drivers give it
    # Not 0: the log was damaged. The node neither votes nor campaigns until an entry of that term or a later one is
    # durable (`raftlog.raft.wal.repair`).
    floor: int = 0
    kept: tuple[int, int] = (0, 0)  # see `ReplacedEnd.kept`


class RaftCore:
    """One node's consensus. Not thread-safe: one task owns it.

    After any input, take `ready()` until it is None.
    """

    __slots__ = ("state",)

    def __init__(
        self,
        node: NodeId,
        options: Options,
        start: CoreStart,
        *,
        random: Callable[[int, int], int],
        now: Now,
        knows: int = 1,
        run: int = 0,
        shard: int = 0,
    ) -> None:
        """`random(low, high)` includes both bounds. `knows` is the newest cluster version that this program knows
        (`raftlog.raft.versions`), `shard` names this Raft group among those of the same nodes, `run` what this
        process's hello says of it: then peers are asked what they remember of this disk's promises
        (`raftlog.raft.consensus.recall`). Raises UnknownVersion for a newer configuration.
        """
        hard_state, log = start.hard_state, start.log
        configurations = [*start.earlier, (start.configuration_index, start.configuration)]
        for _, each in configurations:
            versions.check(each, knows)
        role = Follower(NOBODY, now.monotonic_ms, 0, now.monotonic_ms)
        self.state = State(
            node=node,
            options=options,
            random=random,
            now=now,
            term=hard_state.term,
            vote=hard_state.vote,
            boot=hard_state.boot,
            durable_term=hard_state.term,
            log=Log(log, committed=start.commit, applied=start.applied, now_ms=now.monotonic_ms),
            configurations=configurations,
            role=role,
            incarnation=start.incarnation,
            knows=knows,
            recall=RecallState(
                run=run,
                started_ms=now.monotonic_ms,
                floor=start.floor if log.last.term < start.floor else 0,
                kept=max(start.kept, (log.last.term, log.last.index)),
                kept_term=hard_state.term,
            ),
            shard=shard,
        )
        assert hard_state.term >= log.last.term, (
            "the log has a term above the hard state's (pitfall 2: an entry before its term)"
        )
        self.state.log.trim(options)
        become_follower(self.state, hard_state.term, NOBODY, "started")

    # -- inputs ------------------------------------------------------------------------------------------------

    def tick(self, now: Now) -> None:
        """Run the timers that are due at `now`; see `next_deadline_ms`. Process waiting messages first (pitfall 14:
        stale timers fire after a stall).
        """
        state = self._state_at(now)
        if state.applying.retry_ms is not None and now.monotonic_ms >= state.applying.retry_ms:
            state.applying.retry_ms = None
        election.tick(state)
        recall.tick(state)

    def step(self, message: Message, now: Now, disk: str = "") -> None:
        """Take a peer's message, which a connection of the disk with that incarnation brought; "": any disk's. No
        message raises an exception: what this node cannot believe it refuses (`MessageIgnored`)."""
        state = self._state_at(now)
        if message.to != state.node or message.shard != state.shard or message.sender in {NOBODY, state.node}:
            reason = f"it is from node {message.sender} for node {message.to}, shard {message.shard}"
            ignore(state, message, reason)
        elif reason := hearing.refusal_of(state, message, disk):
            ignore(state, message, reason)
        elif isinstance(message, Recall):
            recall.on_recall(state, message)
        elif isinstance(message, RecallReply):
            recall.on_reply(state, message)
        elif _meet_term(state, message):
            _dispatch(state, message)

    def refusal(self, peer: NodeId, disk: str, now: Now) -> str:
        """Why this node takes no request or report of that disk now; "": it does."""
        self.state.now = now
        return hearing.refusal(self.state, peer, disk)

    def propose(self, kind: EntryKind, count: int, data: bytes, now: Now) -> Proposal:
        """Append one entry of `count` records. Raises NotLeader, Busy or TransferInProgress: then nothing happened."""
        role = self._leading(now)
        state = self.state
        if role.uncommitted_bytes and role.uncommitted_bytes + len(data) > state.options.uncommitted_bytes_max:
            raise Busy(f"{role.uncommitted_bytes} bytes wait for their commit")
        assert kind is EntryKind.COMMANDS or (kind is EntryKind.CLOCK and count == 1 and not data), kind
        entry = state.log.append_own(state.term, kind, count, data, now)
        role.uncommitted_bytes += entry.size
        return Proposal(entry.term, entry.before + 1, entry.index)

    def propose_configuration(self, change: MemberChange, now: Now) -> int:
        """Begin to change the members; the index of the configuration that begins it, or of the one in force where
        the change is under way already. The rest follows by itself, see
        `raftlog.raft.consensus.reconfiguration`.

        Raises NotLeader, TransferInProgress or ConfigurationRefused: then nothing happened.
        """
        role = self._leading(now)
        return membership.propose(self.state, role, change)

    def _state_at(self, now: Now) -> State:
        """The state, at the time of an input that `ready` may answer."""
        state = self.state
        state.now, state.is_touched = now, True
        return state

    def _leading(self, now: Now) -> Leader:
        """The role of a leader that takes something new. Raises NotLeader or TransferInProgress."""
        state, role = self.state, self.state.role
        state.now, state.is_touched = now, True  # as in `_state_at`: each write comes here, and a call is too dear
        if not isinstance(role, Leader):
            raise NotLeader(state.leader)
        if role.transfer is not None:
            raise TransferInProgress(role.transfer.to)
        return role

    def read(self, context: int, now: Now) -> None:
        """Register a linearizable read: a ReadReady or a ReadFailed with `context` follows. Raises NotLeader or
        ReadsFull."""
        reads.register(self._state_at(now), context)

    def transfer(self, to: NodeId, now: Now) -> NodeId:
        """Hand leadership to `to`, or to the most caught-up voter (NOBODY); returns the chosen node. A TransferEnded
        event reports the end. Raises NotLeader, TransferInProgress or CannotTransfer.
        """
        return election.transfer(self._state_at(now), to)

    def hold(self, holds: Mapping[NodeId, Hold]) -> None:
        """Which followers take no entries now because their disks are full, as the driver of a leader knows it: all of
        them, each time. A leader forgets it with its leadership, and of a follower whose progress begins again."""
        state, role = self.state, self.state.role
        state.is_touched = True
        if isinstance(role, Leader):
            for peer, progress in role.progress.items():
                progress.hold = holds.get(peer)
            election.held(state, role)

    def link_opened(self, peer: NodeId, incarnation: str, knows: int, now: Now, start: Start | None = None) -> None:
        """`peer` connected, with that disk: which cluster version it knows, what its process found at its start."""
        state = self._state_at(now)
        state.recall.said[peer] = (incarnation, knows)
        recall.link_opened(state, peer, incarnation, start)
        links.opened(state, peer)

    def hello_refused(self, peer: NodeId, incarnation: str, now: Now, start: Start | None = None) -> None:
        """A process of `peer` connected, with that disk and that start, and this node's host refused it."""
        recall.refused(self._state_at(now), peer, incarnation, start)

    def link_closed(self, peer: NodeId, now: Now) -> None:
        """The connection that `peer` made closed."""
        state = self._state_at(now)
        state.recall.said.pop(peer, None)
        recall.link_closed(state, peer)
        links.closed(state, peer)

    def link_dialled(self, peer: NodeId, now: Now, *, is_bulk: bool = False) -> None:
        """This node's own connection to `peer` is made. What the one before carried may be lost: chunks of snapshots go
        by the bulk one, all other messages by the other."""
        state = self._state_at(now)
        if is_bulk:
            snapshots.on_bulk_opened(state, peer)
        else:
            links.opened(state, peer)
            recall.warn(state, peer)

    def link_refused(self, peer: NodeId, now: Now) -> None:
        """This node dialled `peer`, and no process listens there. Say so again after each dial that is refused."""
        links.refused(self._state_at(now), peer)

    def compact(self, mark: Mark, keep_after: int | None = None) -> None:
        """A snapshot up to `mark` is durable, so followers can get the state from there.

        `keep_after` is the end of an entry not behind the newest snapshot. The core no longer asks the disk for entries
        up to there, so the driver may remove them. A snapshot that a newer installed one has overtaken is ignored.
        """
        log = self.state.log
        if mark.index < log.snapshot.index:
            return
        assert mark.index <= log.applied, (mark, log.applied)
        assert log.term_at(mark.index) == mark.term, mark
        if mark.index > log.snapshot.index:
            self.state.is_touched = True  # a follower may get it
            log.snapshot = mark
            log.trim(self.state.options)
        if keep_after is not None:
            self.state.is_touched = True
            log.compact(keep_after)

    def snapshot_chunk(self, fetch: SnapshotFetch, total: int, data: bytes, now: Now) -> None:
        """What a SnapshotFetch brought, of a snapshot of `total` bytes; b"" if it cannot be read any more."""
        state = self._state_at(now)
        if isinstance(state.role, Leader):
            snapshots.on_chunk(state, state.role, fetch, total, data)

    def snapshot_written(self, write: SnapshotWrite, now: Now) -> None:
        """That chunk is written aside."""
        snapshots.on_written(self._state_at(now), write)

    def snapshot_failed(self, now: Now) -> None:
        """The snapshot that this node receives could not be written, or is none: the log stays as it is."""
        snapshots.on_failed(self._state_at(now))

    def installed(self, mark: Mark, configuration: Configuration, configuration_index: int, now: Now) -> None:
        """The snapshot of the last SnapshotInstall is durable, the log on disk begins after it, and its state is
        loaded. The arguments are what its header says. Raises UnknownVersion."""
        state = self._state_at(now)
        versions.check(configuration, state.knows)
        snapshots.on_installed(state, mark, configuration, configuration_index)
        recall.may_lift(state)

    def persisted(self, term: int, index: int, now: Now) -> None:
        """The entry (term, index) and all before it are durable."""
        state, log = self.state, self.state.log
        state.now = now
        if log.acknowledge(term, index):
            if term == state.term:
                state.durable_term = term  # the hard state went to the disk before the term's entries
            if isinstance(state.role, Leader):
                replication.advance_commit(state, state.role)
            if state.recall.floor:
                recall.may_lift(state)
            log.trim(state.options)
            if log.given < log.committed or not state.out.is_empty:
                state.is_touched = True  # most syncs of followers give `ready` nothing

    def fetched(self, fetch: Fetch, entries: tuple[Entry, ...], now: Now) -> None:
        """What a Fetch brought; () if the disk could not deliver."""
        state = self._state_at(now)
        if fetch.peer != NOBODY:
            if isinstance(state.role, Leader):
                replication.on_fetched(state, state.role, fetch, entries)
        elif fetch == state.applying.fetch:
            state.applying.fetch = None
            log = state.log
            if entries and entries[0].before == log.given and log.term_at(entries[-1].index) == entries[-1].term:
                assert entries[-1].index <= fetch.to, (entries[-1].index, fetch)
                log.give(entries[-1].index, sum([entry.size for entry in entries]))
                state.out.fetched += entries
            else:
                state.applying.retry_ms = now.monotonic_ms + state.options.heartbeat_ms

    def applied(self, index: int) -> None:
        """The state machine holds everything up to `index`, the end of an entry that a Ready gave out."""
        log = self.state.log
        log.apply(index)
        if log.given < log.committed:
            self.state.is_touched = True  # less waits to be applied now: there is room for more
        if len(self.state.configurations) > 1:
            membership.forget(self.state)
        log.trim(self.state.options)

    # -- outputs -----------------------------------------------------------------------------------------------

    def ready(self) -> Ready | None:
        """The work since the last Ready, or None. While `state.is_touched` is false, it would be None."""
        state = self.state
        log, out, role = state.log, state.out, state.role
        if isinstance(role, Leader):
            members = state.configurations[-1][1]
            if (
                len(role.progress) != len(members.members) - 1
                or members.version < state.knows
                or members.outgoing
                or role.catch_ups
                or role.next_change is not None
            ):
                reconfiguration.advance(state, role)
                role = state.role
        if isinstance(role, Leader):
            if role.reads_new:
                reads.open_round(state, role)
            replication.replicate(state, role)
            if role.transfer is not None:
                election.advance_transfer(state, role)
            if out.messages and state.durable_term < state.term:
                # The only voter leads by its own vote, which may not be durable yet. After a crash it could lead this
                # term again with other entries, and a learner would hold some of both.
                out.after_sync[:0], out.messages = out.messages, []
        committed: tuple[Entry, ...] = ()
        if state.receiving is not None:
            snapshots.forget_overtaken(state)
        if log.given < log.committed and (state.receiving is None or not state.receiving.is_installing):
            if log.given < log.tail.start.index:
                replication.fetch_committed(state)
            committed = log.take_committed(state.options.apply_bytes_max)
        if out.fetched:
            committed = (*out.fetched, *committed)
        state.is_touched = bool(out.events)  # an event may have a second step, for example after a follower's new mode
        if not committed and log.handed == log.last.index and out.is_empty:
            return None
        entries: tuple[Entry, ...] = ()
        cut_after = log.cut_after
        if cut_after is not None or log.handed != log.last.index:
            cut_after, entries = log.take_unpersisted()
        state.out = Outbox()
        return Ready(
            tuple(out.messages),
            HardState(state.term, state.vote, state.boot, state.recall.floor) if out.hard_state else None,
            cut_after,
            entries,
            tuple(out.after_sync),
            committed,
            tuple(out.reads),
            tuple(out.reads_failed),
            tuple(out.fetches),
            tuple(out.snapshot_fetches),
            tuple(out.snapshot_writes),
            out.snapshot_install,
            tuple(out.events),
        )

    def next_deadline_ms(self) -> int:
        """The earliest monotonic time at which `tick` has something to do."""
        state = self.state
        others = (election.next_deadline_ms(state), state.applying.retry_ms, recall.next_deadline_ms(state))
        return min([each for each in others if each is not None])

    def status(self) -> CoreStatus:
        """A frozen picture of this node."""
        return status_of(self.state)


def _meet_term(state: State, message: Message) -> bool:
    """Settle which of the two terms is newer (raft paper section 5.1); whether the message is to be looked at."""
    is_from_leader = isinstance(message, AppendEntries | InstallSnapshot)
    if message.term == state.term:
        if is_from_leader and state.leader not in {NOBODY, message.sender}:
            deny(state, message, f"node {state.leader} leads that term")
            return False
        if is_left := election.leaves_term(state, message):
            _enlighten(state, message)
        return not is_left
    if isinstance(message, RequestVote) and message.pre:
        return True  # the term in it is a question (pitfall 7: a pre-vote that changes state)
    if isinstance(message, RequestVoteReply) and message.pre and message.term < state.term:
        # a voter that is behind: it may never campaign itself, and so never learn this term (pitfall 8: deadlock of
        # pre-vote and check-quorum)
        return True
    if message.term < state.term:
        _enlighten(state, message)
        return False
    if is_beyond(state, message.term):
        ignore(state, message, BEYOND)
        return False
    if isinstance(message, RequestVote) and election.is_bound(state, message):
        ignore(state, message, "this node still hears its leader")
        return False
    leader = message.sender if is_from_leader or isinstance(message, TimeoutNow) else NOBODY
    become_follower(state, message.term, leader, f"node {message.sender} is in a newer term")
    return True


def _enlighten(state: State, message: Message) -> None:
    """Send the current term to the sender of an older one, if it would not learn it otherwise (pitfall 8: deadlock of
    pre-vote and check-quorum)."""
    if isinstance(message, RequestVote):
        election.refuse_vote(state, message)
    elif isinstance(message, InstallSnapshot):
        snapshots.refuse(state, message)
    elif isinstance(message, AppendEntries):
        replication.refuse(state, message)


def _dispatch(state: State, message: Message) -> None:
    match message:
        case AppendEntries():
            replication.on_append(state, message)
        case AppendEntriesReply():
            if isinstance(state.role, Leader):
                replication.on_append_reply(state, state.role, message)
                reads.confirm(state, state.role)
        case RequestVote():
            election.on_request_vote(state, message)
        case RequestVoteReply():
            election.on_vote_reply(state, message)
        case TimeoutNow():
            election.on_timeout_now(state, message)
        case InstallSnapshot():
            snapshots.on_install(state, message)
        case InstallSnapshotReply():
            if isinstance(state.role, Leader):
                snapshots.on_reply(state, state.role, message)
