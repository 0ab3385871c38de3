"""A bench for cores: single ones fed by hand, and small clusters joined in memory.

Nothing here is random and no time passes by itself: a test says what happens, in which order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from raftlog.raft.codec.checks import crc32c
from raftlog.raft.codec.configuration import encode_configuration
from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.consensus.core import CoreStart, RaftCore
from raftlog.raft.consensus.invariants import check_log, check_state
from raftlog.raft.consensus.progress import FollowerProgress
from raftlog.raft.consensus.roles import Leader, RoleName
from raftlog.raft.events import Event
from raftlog.raft.messages import (
    AppendEntries,
    AppendEntriesReply,
    InstallSnapshot,
    Message,
    RequestVote,
    RequestVoteReply,
)
from raftlog.raft.options import Options
from raftlog.raft.ready import Fetch, ReadFailed, ReadReady, Ready, SyncQueue
from raftlog.raft.types import GENESIS, Entry, EntryKind, HardState, LogStart, Mark, NodeId, Now, TermRun

WALL_MS = 1_700_000_000_000


def at(ms: int) -> Now:
    """Both clocks, `ms` after the start."""
    return Now(ms, WALL_MS + ms)


def configuration(nodes: int, *, learners: Sequence[int] = ()) -> Configuration:
    """Nodes 1 to `nodes`; those named are learners."""
    members = tuple(
        Member(node, f"{node:032x}", f"127.0.0.1:{node}", f"http://n{node}") for node in range(1, nodes + 1)
    )
    voters = tuple(member.node for member in members if member.node not in learners)
    return Configuration(members, voters, (), tuple(learners))


def extend(previous: Mark, *entries: int | tuple[int, int], data: bytes = b"x", clock_ms: int = 0) -> list[Entry]:
    """Entries after `previous`, each given as its term or as (term, count)."""
    made: list[Entry] = []
    for each in entries:
        term, count = each if isinstance(each, tuple) else (each, 1)
        entry = seal_entry(
            previous, term=term, kind=EntryKind.COMMANDS, count=count, time_ms=0, clock_ms=clock_ms, data=data
        )
        made.append(entry)
        previous = entry.mark
    return made


def configuration_entry(previous: Mark, members: Configuration, term: int) -> Entry:
    """A configuration after `previous`."""
    return seal_entry(
        previous,
        term=term,
        kind=EntryKind.CONFIGURATION,
        count=1,
        time_ms=0,
        clock_ms=0,
        data=encode_configuration(members),
    )


def log_of(members: Configuration, *entries: int | tuple[int, int], data: bytes = b"x") -> list[Entry]:
    """A log: the configuration at index 1 in term 1, then entries as in `extend`."""
    first = configuration_entry(GENESIS, members, 1)
    return [first, *extend(first.mark, *entries, data=data)]


def log_start(entries: Sequence[Entry], tail: int | None = None) -> LogStart:
    """What a node with these entries on disk starts from, the last `tail` of them in memory (None: all)."""
    runs: list[TermRun] = []
    for entry in entries:
        if not runs or runs[-1].term != entry.term:
            runs.append(TermRun(entry.first, entry.term))
    kept = entries if tail is None else entries[len(entries) - tail :]
    return LogStart(1, tuple(runs), entries[-1].mark, tuple(kept))


def core_start(
    hard_state: HardState,
    log: LogStart,
    members: Configuration,
    commit: int = 1,
    *,
    incarnation: str = "",
    kept: tuple[int, int] = (0, 0),
) -> CoreStart:
    """What is on a disk whose log has these members at index 1, and of which everything committed is applied."""
    return CoreStart(
        hard_state=hard_state,
        log=log,
        configuration=members,
        configuration_index=1,
        commit=commit,
        applied=commit,
        incarnation=incarnation,
        floor=hard_state.floor,
        kept=kept,
    )


def make_core(
    node: NodeId = 1,
    nodes: int = 3,
    *entries: int | tuple[int, int],
    term: int | None = None,
    vote: NodeId = 0,
    commit: int = 1,
    tail: int | None = None,
    options: Options | None = None,
    random: Callable[[int, int], int] = lambda low, high: low,
    members: Configuration | None = None,
    now_ms: int = 0,
    knows: int = 1,
) -> RaftCore:
    """A core that starts with these entries durable."""
    members = members or configuration(nodes)
    log = log_of(members, *entries)
    hard_state = HardState(log[-1].term if term is None else term, vote, 1)
    return RaftCore(
        node,
        options or Options(),
        core_start(hard_state, log_start(log, tail), members, commit),
        random=random,
        now=at(now_ms),
        knows=knows,
    )


def compacted_core(options: Options | None = None) -> RaftCore:
    """Node 1 of three, whose log of eleven entries in term 1 begins at 8, behind a snapshot."""
    entries = log_of(configuration(3), *[1] * 10)
    return RaftCore(
        1,
        options or Options(),
        core_start(
            HardState(1),
            LogStart(8, (TermRun(8, 1),), entries[-1].mark, tuple(entries[7:]), entries[6].mark),
            configuration(3),
            commit=7,
        ),
        random=lambda low, high: low,
        now=at(0),
    )


def start_core(
    node: NodeId,
    options: Options,
    hard_state: HardState,
    disk: Sequence[Entry],
    *,
    members: Configuration,
    commit: int = 1,
    tail: int | None = None,
    now_ms: int = 0,
    run: int = 0,
    kept: tuple[int, int] = (0, 0),
) -> RaftCore:
    """A core that starts from these durable entries; node n draws its timeouts n * 10 ms above the least."""
    return RaftCore(
        node,
        options,
        core_start(hard_state, log_start(disk, tail), members, commit, incarnation=f"{node:032x}", kept=kept),
        random=lambda low, high: min(low + node * 10, high),
        now=at(now_ms),
        run=run,
    )


@dataclass(slots=True)
class Drained:
    """Everything a core wanted, gathered over its Readies."""

    messages: list[Message] = field(default_factory=list)
    after_sync: list[Message] = field(default_factory=list)
    hard_state: HardState | None = None
    cut_after: int | None = None
    entries: list[Entry] = field(default_factory=list)
    committed: list[Entry] = field(default_factory=list)
    reads: list[ReadReady] = field(default_factory=list)
    reads_failed: list[ReadFailed] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def to(self, node: NodeId) -> list[Message]:
        """What goes to that node, after syncs too."""
        return [message for message in [*self.messages, *self.after_sync] if message.to == node]


def next_ready(core: RaftCore) -> Ready | None:
    """The next Ready. A core that says that it has none gives none: the server does not ask it then."""
    is_touched = core.state.is_touched
    ready = core.ready()
    assert ready is None or is_touched, f"is_touched was False, and then came {ready}"
    return ready


def drain(core: RaftCore, now_ms: int = 0, *, sync: bool = True, apply: bool = True) -> Drained:
    """Take every Ready; with `sync` the disk is done at once, with `apply` so is the state machine."""
    out = Drained()
    while (ready := next_ready(core)) is not None:
        out.messages += ready.messages
        out.after_sync += ready.messages_after_sync
        out.hard_state = ready.hard_state or out.hard_state
        out.cut_after = ready.cut_after if ready.cut_after is not None else out.cut_after
        out.entries += ready.entries
        out.committed += ready.committed
        out.reads += ready.reads
        out.reads_failed += ready.reads_failed
        out.fetches += ready.fetches
        out.events += ready.events
        if sync and ready.entries:
            core.persisted(ready.entries[-1].term, ready.entries[-1].index, at(now_ms))
        if apply and ready.committed:
            core.applied(ready.committed[-1].index)
        check_state(core.state)
    check_log(core.state.log)
    return out


def append_entries(
    entries: Iterable[Entry] = (),
    *,
    prev: tuple[int, int],
    term: int,
    sender: NodeId = 2,
    to: NodeId = 1,
    commit: int = 1,
    round: int = 0,
    shard: int = 0,
) -> AppendEntries:
    """An AppendEntries; `prev` is (index, term)."""
    return AppendEntries(
        shard=shard,
        sender=sender,
        to=to,
        term=term,
        prev_index=prev[0],
        prev_term=prev[1],
        commit=commit,
        round=round,
        entries=tuple(entries),
    )


def chunk(
    data: bytes = b"abcdef",
    *,
    offset: int = 0,
    total: int = 6,
    sender: NodeId = 2,
    to: NodeId = 1,
    term: int = 1,
    index: int = 8,
    last_term: int = 1,
) -> InstallSnapshot:
    """A chunk of a snapshot."""
    return InstallSnapshot(
        sender=sender,
        to=to,
        term=term,
        snapshot_index=index,
        snapshot_term=last_term,
        offset=offset,
        total=total,
        crc=crc32c(data),
        done=offset + len(data) == total,
        data=data,
    )


def append(
    core: RaftCore,
    entries: Iterable[Entry] = (),
    *,
    prev: tuple[int, int],
    term: int,
    sender: NodeId = 2,
    commit: int = 0,
    round: int = 0,
    now_ms: int = 0,
) -> AppendEntriesReply:
    """Feed an AppendEntries, and give the one reply (its promises are synced first)."""
    message = append_entries(
        entries, prev=prev, term=term, sender=sender, to=core.state.node, commit=commit, round=round
    )
    core.step(message, at(now_ms))
    replies = [reply for reply in drain(core, now_ms).to(sender) if isinstance(reply, AppendEntriesReply)]
    assert len(replies) == 1, replies
    return replies[0]


def reply(
    core: RaftCore,
    sender: NodeId,
    *,
    match: int,
    success: bool = True,
    prev: int = 0,
    round: int = 0,
    hint: tuple[int, int] = (0, 0),
    term: int | None = None,
    now_ms: int = 0,
) -> None:
    """Feed a leader a follower's answer."""
    core.step(
        AppendEntriesReply(
            sender=sender,
            to=core.state.node,
            term=core.state.term if term is None else term,
            success=success,
            match=match,
            prev_index=prev,
            round=round,
            hint_index=hint[0],
            hint_term=hint[1],
        ),
        at(now_ms),
    )


def vote_request(
    sender: NodeId,
    to: NodeId,
    term: int,
    last: tuple[int, int],
    *,
    pre: bool = False,
    transfer: bool = False,
    link_closed: bool = False,
) -> RequestVote:
    """A RequestVote; `last` is (index, term)."""
    return RequestVote(
        sender=sender,
        to=to,
        term=term,
        last_index=last[0],
        last_term=last[1],
        pre=pre,
        transfer=transfer,
        link_closed=link_closed,
    )


def lead(core: RaftCore, *, now_ms: int | None = None) -> Drained:
    """Make a core the leader of its next term: time out, and have every other voter grant everything."""
    now_ms = core.next_deadline_ms() if now_ms is None else now_ms
    core.tick(at(now_ms))
    for _ in range(2):
        out = drain(core, now_ms)
        for request in [each for each in [*out.messages, *out.after_sync] if isinstance(each, RequestVote)]:
            core.step(
                RequestVoteReply(
                    sender=request.to,
                    to=core.state.node,
                    term=min(core.state.term, request.term),
                    request_term=request.term,
                    granted=True,
                    pre=request.pre,
                ),
                at(now_ms),
            )
    assert isinstance(core.state.role, Leader), core.state.role
    return drain(core, now_ms)


def progress(core: RaftCore, peer: NodeId) -> FollowerProgress:
    """The leader's view of that follower."""
    role = core.state.role
    assert isinstance(role, Leader)
    return role.progress[peer]


def appends(out: Drained, to: NodeId) -> list[AppendEntries]:
    """The AppendEntries to one follower."""
    return [message for message in out.to(to) if isinstance(message, AppendEntries)]


def granted(core: RaftCore, message: RequestVote, now_ms: int = 0) -> bool:
    """Step a vote request and give the one reply's word."""
    core.step(message, at(now_ms))
    out = drain(core, now_ms)
    replies = [each for each in [*out.messages, *out.after_sync] if isinstance(each, RequestVoteReply)]
    assert len(replies) == 1, replies
    return replies[0].granted


class Lab:
    """A cluster in memory: messages wait in `wire` until `settle` delivers them, in order, lost only by `cuts`."""

    def __init__(
        self,
        nodes: int = 3,
        logs: dict[NodeId, Sequence[int | tuple[int, int]]] | None = None,
        *,
        options: Options | None = None,
    ) -> None:
        self.members = configuration(nodes)
        self.options = options or Options()
        self.now_ms = 0
        self.wire: list[Message] = []
        self.cuts: dict[tuple[NodeId, NodeId], bool] = {}
        self.applied: dict[NodeId, list[Entry]] = {node: [] for node in self.members.voters}
        self.reads: dict[int, int] = {}
        self.events: dict[NodeId, list[Event]] = {node: [] for node in self.members.voters}
        self.disks: dict[NodeId, list[Entry]] = {}
        self.hard_states: dict[NodeId, HardState] = {}
        self.cores: dict[NodeId, RaftCore] = {}
        self.queues: dict[NodeId, SyncQueue] = {}
        self.delivered = 0
        self.inside_is_nothing = False  # whether a disk refuses to read from inside an entry
        for node in self.members.voters:
            self.disks[node] = log_of(self.members, *(logs or {}).get(node, ()))
            self.hard_states[node] = HardState(max(entry.term for entry in self.disks[node]))
            self.start(node)

    def start(self, node: NodeId, *, tail: int | None = None) -> RaftCore:
        """(Re)start a node from its durable files; node n draws its timeouts n * 10 ms above the least."""
        self.applied[node] = []
        self.queues[node] = SyncQueue()
        self.cores[node] = start_core(
            node,
            self.options,
            self.hard_states[node],
            self.disks[node],
            members=self.members,
            tail=tail,
            now_ms=self.now_ms,
        )
        return self.cores[node]

    def stop(self, node: NodeId) -> None:
        """Kill a node: its unsynced writes are lost."""
        del self.cores[node]

    def isolate(self, *nodes: NodeId) -> None:
        """Cut these nodes off from the others, both ways (the others among themselves stay joined)."""
        for a in self.members.voters:
            for b in self.members.voters:
                if (a in nodes) != (b in nodes):
                    self.cuts[a, b] = True

    def heal(self) -> None:
        """No cuts any more."""
        self.cuts.clear()

    def work(self, node: NodeId) -> bool:
        """Carry out one node's Readies, disk included; whether there was anything."""
        core, did = self.cores[node], False
        while (ready := next_ready(core)) is not None:
            did = True
            self.carry_out(node, core, ready)
            check_state(core.state)
        return did

    def carry_out(self, node: NodeId, core: RaftCore, ready: Ready) -> None:
        """One Ready: its messages, its disk, what it reads back, and what it commits."""
        self.events[node] += ready.events
        self.wire += ready.messages
        self.queues[node].add(ready)
        batch = self.queues[node].take()
        self.hard_states[node] = batch.hard_state or self.hard_states[node]
        if batch.cut_after is not None:
            self.disks[node] = [entry for entry in self.disks[node] if entry.index <= batch.cut_after]
        self.disks[node] += batch.entries
        self.wire += batch.messages
        if batch.last is not None:
            core.persisted(batch.last.term, batch.last.index, at(self.now_ms))
        for fetch in ready.fetches:
            entries = [entry for entry in self.disks[node] if fetch.after < entry.index <= fetch.to]
            if self.inside_is_nothing and entries and entries[0].before != fetch.after:
                entries = []
            core.fetched(fetch, tuple(entries[:3]), at(self.now_ms))
        self.applied[node] += ready.committed
        if ready.committed:
            core.applied(ready.committed[-1].index)
        for read in ready.reads:
            self.reads[read.context] = read.index

    def settle(self) -> int:
        """Carry out and deliver until nothing moves; how many messages arrived."""
        before = self.delivered
        while True:
            for node in list(self.cores):
                self.work(node)
            if not self.wire:
                return self.delivered - before
            message = self.wire.pop(0)
            if (message.sender, message.to) not in self.cuts and message.to in self.cores:
                self.delivered += 1
                self.cores[message.to].step(message, at(self.now_ms))

    def run(self, ms: int) -> None:
        """Let time pass: every node ticks when it wants to, and everything settles in between."""
        end_ms = self.now_ms + ms
        self.settle()
        while (due_ms := min(core.next_deadline_ms() for core in self.cores.values())) <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            for core in list(self.cores.values()):
                core.tick(at(self.now_ms))
                self.settle()
        self.now_ms = end_ms

    def elect(self, node: NodeId) -> RaftCore:
        """Make `node` the leader: its time-out comes first."""
        core = self.cores[node]
        self.now_ms = max(self.now_ms, core.next_deadline_ms())
        core.tick(at(self.now_ms))
        self.settle()
        assert core.status().role is RoleName.LEADER, core.status()
        return core

    def leaders(self) -> list[NodeId]:
        """The nodes that believe to lead."""
        return [node for node, core in self.cores.items() if core.status().role is RoleName.LEADER]

    def propose(self, node: NodeId, count: int = 1, data: bytes = b"x") -> int:
        """Append at that leader; the entry's index."""
        return self.cores[node].propose(EntryKind.COMMANDS, count, data, at(self.now_ms)).last

    def terms(self, node: NodeId) -> list[int]:
        """The terms of the entries on that node's disk."""
        return [entry.term for entry in self.disks[node]]
