"""Tracks readers that wait for an index: linearizable reads that need a read index, and long polls for new records.

`raftlog.cluster.replica.parts.reads` and the applier call it. Readers of one turn share one ReadIndex round; a follower
sends one frame to the leader for it. Waking readers costs time only for those that are due. A repeated round gets a new
number, so that a late answer cannot serve a younger reader (pitfall 33: a repeated read gets an old index).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Final

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.protocol.request import NEVER, Promise
from raftlog.raft.types import NOBODY, NodeId

SWEEP_AT: Final = 1_024  # with more readers that wait for an index than this, cancelled ones are removed each time


@dataclass(slots=True, eq=False)
class ReadWaiter:
    """One linearizable read; its future gets the index, once this node has applied it."""

    future: Promise[int]
    deadline: float


@dataclass(slots=True, eq=False)
class Round:
    """The readers that share a read index. `peer` is the node that was asked: this node itself, or the leader."""

    readers: list[ReadWaiter]
    peer: NodeId
    started: float


class IndexWaiters:
    """Readers that are answered when an index is applied, in a heap by that index."""

    __slots__ = ("_count", "_due", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, ReadWaiter]] = []
        self._count = 0
        self._due = NEVER  # no deadline is before

    def __len__(self) -> int:
        return len(self.heap)

    def add(self, index: int, reader: ReadWaiter) -> None:
        """The reader's future gets `index` once that is applied."""
        self._count += 1
        self._due = min(self._due, reader.deadline)
        heapq.heappush(self.heap, (index, self._count, reader))

    def applied(self, index: int) -> None:
        """Answers every reader that waits for `index` or less."""
        heap = self.heap
        while heap and heap[0][0] <= index:
            wanted, _, reader = heapq.heappop(heap)
            if not reader.future.done():
                reader.future.set_result(wanted)

    def expire(self, now: float, name: str) -> None:
        """Fails the readers past their deadline, and removes cancelled ones, if one is due or there are many.

        `name` is this node's, for the message.
        """
        if now < self._due and len(self.heap) <= SWEEP_AT:
            return
        message = f"{name}: the index of the read is not applied here within its deadline"
        self.heap = [waiter for waiter in self.heap if not _is_over(waiter[2], now, Code.DEADLINE, message)]
        heapq.heapify(self.heap)
        self._due = min((reader.deadline for _, _, reader in self.heap), default=NEVER)

    def fail_all(self, error: ApiError) -> None:
        """Fails all readers, because the node ends."""
        for _, _, reader in self.heap:
            if not reader.future.done():
                reader.future.set_exception(ApiError(error.code, error.message))
        self.heap.clear()


class Reads:
    """Linearizable reads of one node, from the request to the read index."""

    def __init__(self, boot: int = 0) -> None:
        """`boot` counts the starts of this node: an answer to an earlier process must not serve a reader of this
        one."""
        self.waiting: list[ReadWaiter] = []  # for the next round
        self._rounds: dict[int, Round] = {}
        self._number = boot << 32

    def __len__(self) -> int:
        """All readers that have no read index yet, in a round or not."""
        return len(self.waiting) + sum([len(each.readers) for each in self._rounds.values()])

    @property
    def is_empty(self) -> bool:
        """Whether no reader waits."""
        return not self.waiting and not self._rounds

    def may_start(self, now: float, patience_s: float) -> bool:
        """Whether readers wait, and no round is younger than `patience_s`. While one is, readers gather for the next.

        An older round may have been lost on the way, so it does not delay the next one.
        """
        for each in self._rounds.values():
            if now - each.started < patience_s:
                return False
        return bool(self.waiting)

    def start(self, peer: NodeId, now: float) -> int:
        """Puts all waiting readers into a round that `peer` is asked for. Returns the round's number."""
        self._number += 1
        self._rounds[self._number] = Round(self.waiting, peer, now)
        self.waiting = []
        return self._number

    def asked(self, number: int) -> NodeId:
        """The peer that was asked for that round; NOBODY if it is over."""
        found = self._rounds.get(number)
        return NOBODY if found is None else found.peer

    def take(self, number: int) -> list[ReadWaiter]:
        """The readers of that round, which is over; none if it was given up before."""
        done = self._rounds.pop(number, None)
        return [] if done is None else done.readers

    def again(self, number: int) -> None:
        """That round failed: its readers wait for another one."""
        self.waiting += self.take(number)

    def lost(self, peer: NodeId) -> None:
        """No answer will come from that peer any more: its rounds fail."""
        for number in [number for number, each in self._rounds.items() if each.peer == peer]:
            self.again(number)

    def overdue(self, own: NodeId, before: float) -> None:
        """The answer of a peer to a round that began before that time was lost: the round fails. Those of node `own`
        itself end with the core."""
        for number, each in list(self._rounds.items()):
            if each.peer != own and each.started < before:
                self.again(number)

    def expire(self, now: float, message: str, *, has_leader: bool) -> None:
        """Fails the readers past their deadline, and removes cancelled ones."""
        code = Code.DEADLINE if has_leader else Code.NO_LEADER
        self.waiting = [reader for reader in self.waiting if not _is_over(reader, now, code, message)]
        for number, each in list(self._rounds.items()):
            each.readers = [reader for reader in each.readers if not _is_over(reader, now, code, message)]
            if not each.readers:
                del self._rounds[number]

    def fail_all(self, error: ApiError) -> None:
        """Fails all readers, because the node ends."""
        for readers in (self.waiting, *(each.readers for each in self._rounds.values())):
            for reader in readers:
                if not reader.future.done():
                    reader.future.set_exception(ApiError(error.code, error.message))
        self.waiting = []
        self._rounds.clear()


def _is_over(reader: ReadWaiter, now: float, code: Code, message: str) -> bool:
    if reader.deadline <= now and not reader.future.done():
        reader.future.set_exception(ApiError(code, message))
    return reader.future.done()
