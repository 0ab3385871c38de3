"""Defines what happened inside the core, as values: the driver turns them into log lines and metrics.

The core itself never logs. Each event is one frozen dataclass; the node binds its own name and the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.raft.types import NodeId


@dataclass(frozen=True, slots=True)
class BecameFollower:
    """A step down, or a new term or leader seen. `reason` is one phrase."""

    term: int
    leader: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class BecamePreCandidate:
    """Asks whether an election could be won, without touching the term (thesis 9.6)."""

    term: int
    reason: str  # "election timeout", "leader's link closed"


@dataclass(frozen=True, slots=True)
class BecameCandidate:
    """Campaigns in a new term."""

    term: int
    reason: str


@dataclass(frozen=True, slots=True)
class BecameLeader:
    """Won the election of `term`; its no-op is at `index`."""

    term: int
    index: int


@dataclass(frozen=True, slots=True)
class ConflictTruncated:
    """Uncommitted entries after `kept` up to `lost` were replaced by the leader's (figure 2, AppendEntries step 3)."""

    kept: int
    lost: int
    term: int


@dataclass(frozen=True, slots=True)
class FollowerProbing:
    """The leader fell back to probing that follower, at `index`."""

    follower: NodeId
    index: int


@dataclass(frozen=True, slots=True)
class FollowerNeedsSnapshot:
    """What that follower needs, from `index` on, is older than this node's log."""

    follower: NodeId
    index: int


@dataclass(frozen=True, slots=True)
class SnapshotStarted:
    """The leader begins to send that follower its snapshot up to `index`."""

    follower: NodeId
    index: int


@dataclass(frozen=True, slots=True)
class SnapshotSent:
    """That follower has everything up to `index`: the snapshot is in force there, or was not needed."""

    follower: NodeId
    index: int


@dataclass(frozen=True, slots=True)
class SnapshotInstalled:
    """A leader's snapshot up to `index` took the place of this node's log and state."""

    index: int
    term: int  # of the entry there


@dataclass(frozen=True, slots=True)
class Healed:
    """The log lost entries to damage, and has them again up to `index`: this node votes from now on."""

    index: int


@dataclass(frozen=True, slots=True)
class PromisesLost:
    """A node's disk lacks promised entries: it was rolled back or cloned, or it lied about a sync.

    If it is another node, that node is informed, and goes under a floor.
    """

    peer: NodeId  # whose disk
    acked_term: int  # newest entry that it acknowledged to its leader, as this node or the reporting one remembers
    acked_index: int
    promised_term: int  # newest term in which it promised something
    last_index: int  # of what it has
    last_term: int


@dataclass(frozen=True, slots=True)
class AcknowledgedLost:
    """That follower acknowledged the entries up to `match`, and rejects them: its log lost them while it ran."""

    follower: NodeId
    match: int
    hint: int  # up to here its log may be whole


@dataclass(frozen=True, slots=True)
class WentUnderFloor:
    """This node's disk lost promises that `told_by` remembers, so it has no vote.

    It gets the vote back when it holds an entry of the term `floor` or later, or when its leader confirms that it has
    every entry again.
    """

    floor: int
    told_by: NodeId
    acked_index: int
    acked_term: int
    promised_term: int
    last_index: int


@dataclass(frozen=True, slots=True)
class LogDiffers:
    """The entry at `index` is another one in the leader's log, although it has the same term, or is committed here. One
    of the two logs is damaged, or of another history. The follower does not know which, so it cuts nothing and takes
    no entry of that leader: its driver ends it, or has it serve nothing more."""

    leader: NodeId
    index: int
    here: int  # header CRC-32C of this follower's entry; 0: not in memory
    there: int  # that of the leader's; 0: not known


@dataclass(frozen=True, slots=True)
class TransferStarted:
    """Leadership is being handed to that node."""

    to: NodeId


@dataclass(frozen=True, slots=True)
class TransferEnded:
    """The hand-over was given up, or done (then a BecameFollower follows)."""

    to: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class ConfigurationChanged:
    """This leader appended a configuration at `index`; it is in force. `outgoing` is not empty while it is joint."""

    index: int
    voters: tuple[NodeId, ...]
    outgoing: tuple[NodeId, ...]
    learners: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class VersionRaised:
    """This leader raised the cluster version with the configuration that it appended at `index`."""

    index: int
    version: int


@dataclass(frozen=True, slots=True)
class ChangeGivenUp:
    """The rest of a change of members is given up; its appended part stays."""

    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class MessageIgnored:
    """A message that cannot be believed: wrong addressee, shard, impossible positions. Counted, and shown."""

    sender: NodeId
    kind: str
    reason: str


Event = (
    BecameFollower
    | BecamePreCandidate
    | BecameCandidate
    | BecameLeader
    | ConflictTruncated
    | FollowerProbing
    | FollowerNeedsSnapshot
    | SnapshotStarted
    | SnapshotSent
    | SnapshotInstalled
    | Healed
    | PromisesLost
    | AcknowledgedLost
    | WentUnderFloor
    | LogDiffers
    | TransferStarted
    | TransferEnded
    | ConfigurationChanged
    | VersionRaised
    | ChangeGivenUp
    | MessageIgnored
)
