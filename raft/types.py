"""Defines the nouns of the log: entries, their kinds, the hard state, marks and clocks.

No value changes after it is made. Positions that the core compares (match, commit, applied, snapshot) are always ends
of entries; see `Entry.index`. Raft paper, figure 2; thesis section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

NodeId = int
"""A member's number, 1 to 2**31 - 1. It is an identity, never an address."""

NOBODY: NodeId = 0
"""No node: no vote given, no leader known."""


class EntryKind(IntEnum):
    """What an entry's data is. Numbers are on disk for ever; 0 is invalid so that zeroed bytes are never an entry."""

    NOOP = 1  # empty data; the first entry of a leader's term
    CONFIGURATION = 2  # data: `raftlog.raft.codec.configuration.encode_configuration`
    CLOCK = 3  # empty data; carries the cluster clock forward on an idle log
    COMMANDS = 4  # data: a row of request blocks


class Now(NamedTuple):
    """The two clocks as read once per turn of the driver."""

    monotonic_ms: int  # never goes backward within a process; drives every timeout and the cluster clock
    wall_ms: int  # Unix time; only for people, Spark and retention


@dataclass(slots=True, unsafe_hash=True)
class Mark:
    """The end of an entry: its index, its term, and the CRC32C of its header (the chain that the next one names).

    `clock_ms` and `time_ms` are the entry's, so that a log whose older entries are not in memory goes on from them.
    """

    index: int = 0
    term: int = 0
    header_crc: int = 0
    time_ms: int = 0
    clock_ms: int = 0


GENESIS = Mark()
"""The end before the first entry of any log."""


@dataclass(slots=True)
class Entry:
    """One element of the log: `count` records that share a term, committed or lost together.

    `index` is the index of its *last* record; its first is `first`. `header` is the encoded entry header
    (`raftlog.raft.codec.entry.HEADER_SIZE` bytes) that the leader sealed once: the same bytes go to disk, peers and
    consumers. Only `raftlog.raft.codec.entry` makes entries, and no code changes one.
    """

    index: int
    term: int
    kind: EntryKind
    count: int
    time_ms: int
    clock_ms: int
    header: bytes
    data: bytes
    before: int  # index of the end of the entry before this one (its prevLogIndex)
    size: int  # bytes on the wire and in a segment: header and data
    mark: Mark  # its end
    previous_crc: int  # the header CRC of the entry before, as this one names it

    @property
    def first(self) -> int:
        """Index of the entry's first record."""
        return self.before + 1


NEW_DISK: Final = (1 << 53) - 1
"""The floor of a data folder that `raftlog format` made for a log that may exist already. No term reaches it, because
messages carry no larger number: only a leader, or all voters, lift it (`raftlog.raft.consensus.recall`)."""


@dataclass(frozen=True, slots=True)
class HardState:
    """What must be on disk before any promise made in it is sent (figure 2: currentTerm, votedFor)."""

    term: int = 0
    vote: NodeId = NOBODY
    boot: int = 0  # how often this node was started; part of the peer hello
    floor: int = 0  # not 0: no vote before an entry of this term or later is here, or a leader lifts it


class ReplacedEnd(NamedTuple):
    """The newest end of a log of which a leader replaced what came after `after`.

    Up to (`held_term`, `held_index`) the disk had kept its promises then. Those of them that can be committed are in
    the log up to `after`: the leader had them all, and its log is equal up to there (docs/decisions/0017, no. 13).
    """

    held_term: int = 0
    held_index: int = 0
    after: int = 0

    def kept(self, last: Mark) -> tuple[int, int]:
        """Term and index up to which a log that ends with `last` keeps its promises for sure."""
        held = (self.held_term, self.held_index) if last.index >= self.after else (0, 0)
        return max(held, (last.term, last.index))


NEVER_REPLACED: Final = ReplacedEnd()


@dataclass(frozen=True, slots=True)
class TermRun:
    """Entries from `first` on (a record index) have `term`, until the next run. Sorted by both."""

    first: int
    term: int


@dataclass(frozen=True, slots=True)
class LogStart:
    """What a starting node has on disk, all of it synced.

    `tail` are the newest entries, as many as the driver had at hand; it may be empty. `first` is the oldest index on
    disk. `snapshot` is the end of the entry up to which state was restored (GENESIS without one). `base` is the end
    before `first` if the disk has it (a segment's header does). Without it, even a follower that ends exactly there
    needs a snapshot.
    """

    first: int
    runs: tuple[TermRun, ...]
    last: Mark
    tail: tuple[Entry, ...] = ()
    snapshot: Mark = GENESIS
    base: Mark | None = None
