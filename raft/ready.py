"""Defines Ready, and the order in which a driver carries it out; the server and the simulator share it.

The core fills a `Ready`. The driver sends `messages` at once and hands the rest to a `SyncQueue`. It carries out one
`SyncBatch` at a time: persist, then promise. etcd-io/raft's Ready; thesis section 10.2.1 (the leader may write to its
disk in parallel with replicating).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from raftlog.raft.events import Event
from raftlog.raft.messages import AppendEntriesReply, Message
from raftlog.raft.types import Entry, HardState, NodeId


@dataclass(frozen=True, slots=True)
class Fetch:
    """Entries wanted from disk: after the end `after`, up to the end `to`, at most about `bytes_max`.

    With `bytes_max` 1 the question is where entries end: `after` may lie inside one, which is then to come first.
    `peer` is the follower they are for, or NOBODY when committed entries below the tail are wanted for apply.
    The driver answers with `RaftCore.fetched(fetch, entries)`: at least one whole entry, consecutive, or () when the
    disk could not deliver.
    """

    peer: NodeId
    after: int
    to: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class SnapshotFetch:
    """A piece of the snapshot (index, term) wanted from disk, for the follower `peer`: at most `bytes_max` bytes from
    `offset` on.

    The driver answers with `RaftCore.snapshot_chunk(fetch, total, data, now)`: the size of the whole snapshot and the
    bytes from `offset` on. `data` is b"" if the snapshot cannot be read any more.
    """

    peer: NodeId
    index: int
    term: int
    offset: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class SnapshotWrite:
    """A checked piece of a snapshot that a leader sends, to be written aside at `offset` (0 begins again: data
    written aside before goes). The driver answers with `RaftCore.snapshot_written(write, now)`, or with
    `snapshot_failed(now)`. It need not be durable before the install."""

    index: int
    term: int
    offset: int
    total: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SnapshotInstall:
    """Every byte of the snapshot (index, term) is written aside.

    Check it, make it durable and the newest one, drop the whole log on disk, and load its state. The order is in
    `raftlog.raft.consensus.snapshots`.
    """

    index: int
    term: int


@dataclass(frozen=True, slots=True)
class ReadReady:
    """The read registered as `context` may be answered from a state that has applied `index`."""

    context: int
    index: int


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """The read registered as `context` got no answer: leadership was lost before its round. Ask again."""

    context: int


class Ready(NamedTuple):
    """Everything the core wants done since the last one. Order: see the fields, top to bottom.

    `messages` may leave at once. `hard_state`, then `cut_after`, then `entries` must be durable before
    `messages_after_sync` may leave and before `persisted` is called.
    """

    messages: tuple[Message, ...] = ()
    hard_state: HardState | None = None
    cut_after: int | None = None  # drop everything on disk after this end of an entry, then append
    entries: tuple[Entry, ...] = ()
    messages_after_sync: tuple[Message, ...] = ()
    committed: tuple[Entry, ...] = ()  # apply in order; then call `applied(index)`
    reads: tuple[ReadReady, ...] = ()
    reads_failed: tuple[ReadFailed, ...] = ()
    fetches: tuple[Fetch, ...] = ()
    snapshot_fetches: tuple[SnapshotFetch, ...] = ()
    snapshot_writes: tuple[SnapshotWrite, ...] = ()
    snapshot_install: SnapshotInstall | None = None
    events: tuple[Event, ...] = ()


class SyncBatch(NamedTuple):
    """One trip to the disk: write `hard_state` and sync it, cut, append, sync; then send `messages`.

    At the end call the core's `persisted(term, index)` if `last` is not None.
    """

    hard_state: HardState | None
    cut_after: int | None
    entries: tuple[Entry, ...]
    messages: tuple[Message, ...]

    @property
    def last(self) -> Entry | None:
        """The newest entry this batch makes durable, or None."""
        return self.entries[-1] if self.entries else None


def acknowledges_after(message: Message, index: int) -> bool:
    """Whether `message` acknowledges an entry after `index`."""
    return isinstance(message, AppendEntriesReply) and message.success and message.match > index


def without_void_promises(messages: list[Message], cut_after: int) -> list[Message]:
    """`messages` that wait for a sync, less the acknowledgements of entries that were cut before they got there.

    They answer a leader of an older term and would promise what never reached the disk.
    """
    return [message for message in messages if not acknowledges_after(message, cut_after)]


class SyncQueue:
    """Gathers the durable part of Readies while a sync is under way, and gives it out as one batch.

    A cut that falls on entries still waiting here drops them from the queue. The cut itself reaches the disk only if
    the disk already has some of the cut entries. A batch that found no disk space comes back (`put_back`); meanwhile
    the hard state goes before it (`take_promises`).
    """

    __slots__ = ("_cut_after", "_entries", "_hard_state", "_messages")

    def __init__(self) -> None:
        self._hard_state: HardState | None = None
        self._cut_after: int | None = None
        self._entries: list[Entry] = []
        self._messages: list[Message] = []

    def add(self, ready: Ready) -> None:
        """Queue the durable part of `ready`, behind the parts that wait already."""
        if ready.hard_state is not None:
            self._hard_state = ready.hard_state
        if ready.cut_after is not None:
            self._messages = without_void_promises(self._messages, ready.cut_after)
            while self._entries and self._entries[-1].index > ready.cut_after:
                self._entries.pop()
            if self._cut_after is None:
                # The disk may hold more than the cut even when entries wait here: they follow the cut point.
                self._cut_after = ready.cut_after if not self._entries else None
            else:
                self._cut_after = min(self._cut_after, ready.cut_after)
        self._entries.extend(ready.entries)
        self._messages.extend(ready.messages_after_sync)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to carry out."""
        return self._hard_state is None and self._cut_after is None and not self._entries and not self._messages

    def put_back(self, batch: SyncBatch) -> None:
        """Queue a batch again that found no disk space, in front of the parts that came after it."""
        later = self.take()
        self._hard_state, self._cut_after = batch.hard_state, batch.cut_after
        self._entries, self._messages = list(batch.entries), list(batch.messages)
        self.add(Ready((), later.hard_state, later.cut_after, later.entries, later.messages))

    def take_first(self) -> SyncBatch:
        """Everything queued up to the first entry: a batch of many may need more disk space than there is. The messages
        stay, and leave with the next batch or with `take_promises`."""
        batch = SyncBatch(self._hard_state, self._cut_after, tuple(self._entries[:1]), ())
        self._hard_state = self._cut_after = None
        del self._entries[:1]
        return batch

    def take_promises(self) -> SyncBatch:
        """The hard state, and the messages that need no more: the entries, the cut and the acknowledgements of waiting
        entries stay. docs/decisions/0028 shows why a hard state may overtake entries."""
        durable = self._entries[0].before if self._cut_after is None and self._entries else self._cut_after
        waiting: dict[NodeId, Message] = {}  # the newest to each node: they wait for long, and more come
        messages: list[Message] = []
        for message in self._messages:
            if durable is not None and acknowledges_after(message, durable):
                waiting[message.to] = message
            else:
                messages.append(message)
        batch = SyncBatch(self._hard_state, None, (), tuple(messages))
        self._hard_state, self._messages = None, list(waiting.values())
        return batch

    def take(self) -> SyncBatch:
        """Everything queued, as one batch; the queue is empty afterwards."""
        batch = SyncBatch(self._hard_state, self._cut_after, tuple(self._entries), tuple(self._messages))
        self._hard_state = self._cut_after = None
        self._entries, self._messages = [], []
        return batch
