"""Waiting for an index: linearizable reads that need a read index, and long polls that need a newer record.

Readers of one turn share one ReadIndex round, on a follower one frame to the leader. Whoever waits is woken in time
proportional to those who are due, never to all who wait. A round is asked for anew under a new number only, so that
a late answer cannot serve a younger reader (pitfall 33).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from cluster.requests import Promise
from cluster.wire import ApiError, Code
from raft.types import NodeId


@dataclass(slots=True, eq=False)
class Reader:
    """One linearizable read; its future gets the index, once this node has applied it."""

    future: Promise[int]
    deadline: float


@dataclass(slots=True, eq=False)
class Round:
    """The readers that share a read index; `peer` is who was asked (this node itself, or the leader)."""

    readers: list[Reader]
    peer: NodeId
    started: float


class IndexWaiters:
    """Futures that are done when an index is applied, in a heap by that index."""

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Promise[int], int]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, index: int, future: Promise[int], result: int) -> None:
        """`future` gets `result` once `index` is applied."""
        self._count += 1
        heapq.heappush(self._heap, (index, self._count, future, result))

    def applied(self, index: int) -> None:
        """Wakes everyone who waits for `index` or less."""
        heap = self._heap
        while heap and heap[0][0] <= index:
            _, _, future, result = heapq.heappop(heap)
            if not future.done():
                future.set_result(result)

    def sweep(self) -> None:
        """Forgets those who went away, when they are many."""
        alive = [waiter for waiter in self._heap if not waiter[2].done()]
        if len(alive) < len(self._heap):
            heapq.heapify(alive)
            self._heap = alive

    def fail_all(self, error: ApiError) -> None:
        """The end."""
        for _, _, future, _ in self._heap:
            if not future.done():
                future.set_exception(ApiError(error.code, error.message))
        self._heap.clear()


class Reads:
    """Linearizable reads of one node, from the request to the read index."""

    def __init__(self, boot: int = 0) -> None:
        """`boot` counts the starts of this node: an answer to the process before must not serve a reader of this."""
        self.waiting: list[Reader] = []  # for the next round
        self._rounds: dict[int, Round] = {}
        self._number = boot << 32

    def __len__(self) -> int:
        """Readers that wait, in a round or for one."""
        return len(self.waiting) + sum([len(each.readers) for each in self._rounds.values()])

    @property
    def is_empty(self) -> bool:
        """Whether nobody waits."""
        return not self.waiting and not self._rounds

    def may_start(self, now: float, patience_s: float) -> bool:
        """Whether somebody waits, and no round is younger than `patience_s`: readers meanwhile gather for the next.

        An older round may have been lost on the way, so it holds up nobody.
        """
        return bool(self.waiting) and all(now - each.started >= patience_s for each in self._rounds.values())

    def start(self, peer: NodeId, now: float) -> int:
        """All who wait now share a round, asked of `peer`: its number."""
        self._number += 1
        self._rounds[self._number] = Round(self.waiting, peer, now)
        self.waiting = []
        return self._number

    def take(self, number: int) -> list[Reader]:
        """The readers of that round, which is over; none, if it was given up before."""
        done = self._rounds.pop(number, None)
        return done.readers if done is not None else []

    def again(self, number: int) -> None:
        """That round came to nothing: its readers wait for another."""
        self.waiting += self.take(number)

    def lost(self, peer: NodeId) -> None:
        """Nothing will be heard from that peer: its rounds come to nothing."""
        for number in [number for number, each in self._rounds.items() if each.peer == peer]:
            self.again(number)

    def expire(self, now: float, message: str, *, has_leader: bool) -> None:
        """Fails the readers past their deadline, and forgets those who went away."""
        code = Code.DEADLINE if has_leader else Code.NO_LEADER
        self.waiting = [reader for reader in self.waiting if not _is_over(reader, now, code, message)]
        for number, each in list(self._rounds.items()):
            each.readers = [reader for reader in each.readers if not _is_over(reader, now, code, message)]
            if not each.readers:
                del self._rounds[number]

    def fail_all(self, error: ApiError) -> None:
        """The end."""
        for readers in (self.waiting, *(each.readers for each in self._rounds.values())):
            for reader in readers:
                if not reader.future.done():
                    reader.future.set_exception(ApiError(error.code, error.message))
        self.waiting = []
        self._rounds.clear()


def _is_over(reader: Reader, now: float, code: Code, message: str) -> bool:
    if reader.deadline <= now and not reader.future.done():
        reader.future.set_exception(ApiError(code, message))
    return reader.future.done()
