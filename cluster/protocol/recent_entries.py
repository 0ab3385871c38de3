"""Keeps the newest applied entries with their effects in memory, for readers that follow closely; bounded in bytes."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from raftlog.raft.codec.block import decode_blocks
from raftlog.raft.types import Entry, EntryKind
from raftlog.statemachine.commands import Result
from raftlog.statemachine.effects import Effects, RequestEffect

_OVERHEAD: Final = 512  # bytes of the objects of one entry, beside its contents,
_REQUEST: Final = 200  # per request with an effect of its own,
_CHANGE: Final = 400  # and per key that it changed; also an estimate for the garbage collector's walk
_DROP: Final = 8  # an eighth is dropped at a time, so that the lists move seldom

Applied = tuple[Entry, Effects]


class Recent:
    """A run of consecutive applied entries, oldest dropped first."""

    __slots__ = ("_bytes", "_bytes_max", "_ends", "_pairs", "_sizes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._ends: list[int] = []
        self._pairs: list[Applied] = []
        self._sizes: list[int] = []

    @property
    def bytes(self) -> int:
        """Estimated bytes of memory that the entries take."""
        return self._bytes

    def add(self, entry: Entry, effects: Effects, effects_bytes: int, keep_after: int) -> None:
        """Adds the entry after the newest one. Drops nothing after `keep_after`: the disk does not have that yet."""
        requests = effects.requests
        size = entry.size + effects_bytes + _OVERHEAD + _REQUEST * len(requests)
        if requests:
            size += _CHANGE * sum([len(request.changes) for request in requests])
        self._ends.append(entry.index)
        self._pairs.append((entry, effects))
        self._sizes.append(size)
        self._bytes += size
        if self._bytes > self._bytes_max:
            self._drop(keep_after)

    def _drop(self, keep_after: int) -> None:
        target = self._bytes_max - self._bytes_max // _DROP
        droppable = bisect_left(self._ends, keep_after + 1)
        count = 0
        while count < droppable and self._bytes > target:
            self._bytes -= self._sizes[count]
            count += 1
        del self._ends[:count], self._pairs[:count], self._sizes[:count]

    def read(self, from_index: int, limit: int, bytes_max: int) -> list[Applied] | None:
        """Entries that contain or follow `from_index`, until `limit` records or `bytes_max` bytes; at least one if one
        exists. None: the first of them is not in memory any more."""
        position = bisect_left(self._ends, from_index)
        if position == len(self._ends):
            return []
        if self._pairs[position][0].first > from_index:
            return None
        found: list[Applied] = []
        size = 0
        for pair, length in zip(self._pairs[position:], self._sizes[position:], strict=True):
            size += length
            if found and size > bytes_max:
                break
            found.append(pair)
            if pair[0].index - from_index + 1 >= limit:
                break
        return found

    def effect_of(self, last: int) -> tuple[RequestEffect | None, int]:
        """The effect of the request whose last record has that index, and the term of its entry; for
        `Pending.settle_late`. Term 0: the entry is not in memory. No effect: no request ends there."""
        found = self.read(last, 1, 1)
        if not found:
            return None, 0
        entry, effects = found[0]
        if entry.kind is not EntryKind.COMMANDS:
            return None, entry.term
        end = entry.before
        for position, block in enumerate(decode_blocks(entry.data)):
            end += block.count
            if end == last:
                plain = RequestEffect(Result.APPLIED, effects.revision)
                return (plain if effects.is_plain else effects.requests[position]), entry.term
        return None, entry.term
