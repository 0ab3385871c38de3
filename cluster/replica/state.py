"""Holds everything that one replica knows: data, with one owner for each part.

The modules in parts/ and upkeep/ are functions on it. A replica is one Raft group on one node. The owner of a part is
the module that its docstring names. Only that module and the methods here assign to it; all others read.
`raft/consensus/state.py` has the same role for the consensus core.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field
from enum import Enum, auto
from random import Random

from raftlog.cluster.config.cluster_file import ClusterFile
from raftlog.cluster.config.settings import Settings
from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.disk.scrubber import Scrub
from raftlog.cluster.disk.syncer import Syncer
from raftlog.cluster.files.findings import Finding
from raftlog.cluster.protocol.batching import BatchWindow
from raftlog.cluster.protocol.damage_policy import Leadership
from raftlog.cluster.protocol.digest_points import DigestPoints
from raftlog.cluster.protocol.disk_reports import Handover, Reports, Rules, SyncTimes
from raftlog.cluster.protocol.proposals import Pending
from raftlog.cluster.protocol.step_times import StepTimes
from raftlog.cluster.protocol.waiters import Reads
from raftlog.cluster.replica.log.applier import Applier
from raftlog.cluster.replica.log.log_reader import LogReader
from raftlog.cluster.replica.log.peer_log import PeerLog
from raftlog.cluster.replica.ports import Driver, Links
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.line_limit import LineLimit
from raftlog.cluster.runtime.logging import Logger
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.progress import Hold
from raftlog.raft.options import Options
from raftlog.raft.ready import Fetch, SnapshotInstall, SnapshotWrite
from raftlog.raft.types import NOBODY, Entry, NodeId
from raftlog.raft.wal.retention import RetentionPolicy
from raftlog.raft.wal.snapshot_files import SNAPSHOTS, snapshot_folder
from raftlog.statemachine.machine import StateMachine

APPENDED_MAX = 8_192  # newest proposals whose time is remembered
UNSENT_MAX = 1_024  # frames with answers that wait for a link; the oldest goes first


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """Names the Raft group, the node and its disk. Never changes."""

    node: NodeId
    log_id: str
    incarnation: str
    boot: int  # counts the starts of this node
    shard: int = 0


class ReplicaEnd(Enum):
    """How a replica ended."""

    STOPPED = auto()
    REMOVED = auto()  # stopped, and no member any more
    FENCED = auto()  # its disk failed
    DIVERGED = auto()  # its state differs from the majority's
    DAMAGED = auto()  # its files are damaged, and a start repairs them
    UNKNOWN_VERSION = auto()  # the log needs a newer program
    FAILED = auto()  # a defect


@dataclass(slots=True)
class Lifecycle:
    """The stages of the replica's life: starting, stopping, ended. Owner: `shutdown`."""

    start_index: int  # the newest entry on the disk at the start: the replica is ready once it has applied this much
    started_at: float = field(default_factory=lambda: clock.monotonic())
    is_stopping: bool = False
    is_fenced: bool = False
    only_here: str = ""  # which committed entries its leader lacks: it serves stale reads alone
    is_over: bool = False  # it failed, or it was stopped
    ending: ReplicaEnd | None = None  # how it ended

    def end(self, ending: ReplicaEnd) -> None:
        """Sets how it ended. The first reason stays: a replica that failed and is stopped later has failed."""
        if not self.is_over:
            self.is_over, self.ending = True, ending


@dataclass(slots=True)
class Writes:
    """Requests that change something, until their outcome is known. Owner: `parts/writes`."""

    pending: Pending
    batching: BatchWindow = field(default_factory=BatchWindow)
    appended: list[tuple[int, float]] = field(default_factory=list)  # newest proposals: last index, and time
    unsent: deque[tuple[NodeId, bytes]] = field(default_factory=lambda: deque(maxlen=UNSENT_MAX))  # answers for peers
    steps: StepTimes | None = None  # while traces are on


@dataclass(slots=True)
class ClockEntries:
    """The clock entries of this leader. Owner: `upkeep/clock_entries`."""

    proposed: int = 0  # index of the newest clock entry


@dataclass(slots=True)
class ReadIndexes:
    """Linearizable reads, from the request to the read index. Owner: `parts/reads`."""

    rounds: Reads
    batching: BatchWindow = field(default_factory=BatchWindow)
    asked: list[tuple[NodeId, int]] = field(default_factory=list)  # rounds asked for by followers
    contexts: dict[int, tuple[NodeId, int]] = field(default_factory=dict)  # rounds at the core: peer, number
    context: int = 0  # newest number of a round at the core
    not_before: float = 0.0


@dataclass(slots=True)
class HeldFetch:
    """Entries that were read for applying, and wait until all earlier ones are applied. Owner: `parts/applying`."""

    held: tuple[Fetch, tuple[Entry, ...]] | None = None


@dataclass(slots=True)
class PeersServed:
    """Questions of peers about this node's log that are being answered. Owner: `parts/serving`. Log lines about refused
    messages of peers. Owner: `parts/link_events`."""

    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    count: Counter[NodeId] = field(default_factory=Counter)
    refused: LineLimit = field(default_factory=LineLimit)


@dataclass(slots=True)
class Membership:
    """Whether this disk is a member, what the links know, why changes were given up. Owner: `parts/members`."""

    cluster: ClusterFile | None  # the members to dial before the log names any
    was_member: bool = False  # a configuration named this node with this disk
    is_member: bool = False  # the configuration in force names it
    is_removed: bool = False  # a committed configuration names it no more
    followed: Configuration | None = None
    seen: tuple[int, NodeId, int] = (0, NOBODY, 0)
    strangers: tuple[Member, ...] = ()  # dialled, although the configuration does not name them, or not so
    given_up: dict[NodeId, str] = field(default_factory=dict)


@dataclass(slots=True)
class PointWatch:
    """The digest points of this replica and of its peers. Owner: `parts/digest_exchange`.

    Times are seconds of `clock.monotonic`.
    """

    points: DigestPoints
    agreed_at: float | None = None


@dataclass(slots=True)
class Snapshots:
    """Snapshots that are saved, sent, received and installed. Owner: `upkeep/snapshots`."""

    index: int  # the newest snapshot on this disk ends here; 0: there is none
    older: int = 0  # the snapshot before it ends here; 0: there is none, or it was saved before this start
    saving: asyncio.Task[None] | None = None
    jobs: deque[SnapshotWrite | SnapshotInstall] = field(default_factory=deque)
    receiving: asyncio.Task[None] | None = None
    received_bytes: int = 0
    is_damaged: bool = False  # the newest one on this disk is; a new one is saved soon

    @property
    def is_saving(self) -> bool:
        """Whether this replica's own state is being saved."""
        return self.saving is not None

    @property
    def is_receiving(self) -> bool:
        """Whether a piece is being written, or a snapshot installed."""
        return self.receiving is not None


@dataclass(slots=True)
class Retention:
    """The retention job and the files that it deleted. Owner: `upkeep/retention`."""

    policy: RetentionPolicy
    task: asyncio.Task[None] | None = None
    look_at: float = 0.0
    looks: int = 0
    deleted: int = 0  # segments since the start


@dataclass(slots=True)
class OlderLog:
    """The older log that is fetched from peers. Owner: `upkeep/backfill`."""

    task: asyncio.Task[None] | None = None
    not_before: float = 0.0
    avoided: dict[NodeId, float] = field(default_factory=dict)  # peers that gave wrong entries
    waits: str = ""  # why it waits, as logged last
    began: tuple[int, float] | None = None  # where the log began, and when
    segments: int = 0
    bytes: int = 0
    wrong: int = 0


@dataclass(slots=True)
class DiskSpace:
    """The work that frees space on a full disk. Owner: `upkeep/disk_space`."""

    trim_index: int  # at or after the newest entry that allowed files to be deleted
    let_go: tuple[int, int]  # the oldest index and the compacted revision, as of the last look
    takes_to: int = 0  # entries that begin at or before this index help to free space here (`DiskReport.takes_to`)
    look_at: float = 0.0
    save_at: float = 0.0
    save_pause_s: float = 0.0  # before the next snapshot; 0: none was tried since the last trim
    saved_over: int = 0  # the newest snapshot when the last one was begun here; still the newest: that one failed


@dataclass(slots=True)
class DiskView:
    """The reports about space and speed of all disks of the group. Owner: `parts/disk_exchange`."""

    rules: Rules
    times: SyncTimes = field(default_factory=SyncTimes)
    reports: Reports = field(default_factory=Reports)
    last_ms: dict[Handover, int] = field(default_factory=dict)  # the hand-overs of this process
    holds: dict[NodeId, Hold] = field(default_factory=dict)  # followers that are sent no entries, while this node leads
    takes_writes: bool = True  # as the leader: whether a majority has disk space
    majority_ms: int = 0  # the wall clock of a majority at the last look, several times a second; 0: not known
    knows_time: bool = False  # it was known once since the start
    unknown_s: float = 0.0  # since that monotonic time it is not known; 0: it is
    is_muted: bool = False  # this leader's disk hangs and no other voter took over: it sends nothing
    handed_over: tuple[Handover, int] | None = None  # newest hand-over of this process, and its time


@dataclass(slots=True)
class KnownDamage:
    """Damage that was found in this replica's files while it runs. Owner: `upkeep/damage`."""

    findings: list[Finding] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    is_stuck: bool = False  # entries that are to be applied cannot be read
    is_asked: bool = False  # a follower needs entries that this leader cannot read
    calm: tuple[Leadership, float] | None = None  # term and leader, and the time since which all links were up
    scrub: Scrub | None = None
    scrub_failures: int = 0  # rounds that ended early
    scrub_failure: str = ""  # why the newest such round ended early

    def snapshot_saved(self) -> None:
        """A new snapshot replaced the damaged one: forgets the findings. Scrubbing finds again any that remain."""
        self.findings = [each for each in self.findings if not each.file.startswith(SNAPSHOTS)]

    def is_known(self, snapshot_index: int) -> bool:
        """Whether damage is known in a file that this replica could need.

        An older snapshot is not needed. It only stays until one more is saved, which may take very long.
        """
        newest = snapshot_folder(snapshot_index)
        return any(not each.file.startswith(SNAPSHOTS) or each.file.startswith(newest) for each in self.findings)


@dataclass(slots=True)
class ReplicaState:
    """One replica. Belongs to the event loop."""

    identity: ReplicaIdentity
    settings: Settings
    options: Options
    driver: Driver
    core: RaftCore
    disk: Disk
    links: Links
    syncer: Syncer
    applier: Applier
    reader: LogReader
    peer_log: PeerLog
    metrics: Metrics
    logger: Logger
    random: Random  # for waits that must differ between nodes
    life: Lifecycle
    writes: Writes
    reads: ReadIndexes
    members: Membership
    watch: PointWatch
    snapshots: Snapshots
    retention: Retention
    disk_space: DiskSpace
    disks: DiskView
    clock: ClockEntries = field(default_factory=ClockEntries)
    fetches: HeldFetch = field(default_factory=HeldFetch)
    served: PeersServed = field(default_factory=PeersServed)
    backfill: OlderLog = field(default_factory=OlderLog)
    damage: KnownDamage = field(default_factory=KnownDamage)

    @property
    def name(self) -> str:
        """The name of this node in messages."""
        return f"node {self.identity.node}"

    @property
    def is_leader(self) -> bool:
        """Whether this replica believes that it leads."""
        return self.core.state.role.is_leader

    @property
    def machine(self) -> StateMachine:
        """The state machine. It changes whenever the caller awaits something."""
        return self.applier.machine

    @property
    def is_damage_known(self) -> bool:
        return self.damage.is_known(self.snapshots.index)
