"""Computes the lag of consumer groups, in records and in seconds.

The routes and the metrics use it. The seconds are the age of the oldest unread user record. Its time stands in the log
and never changes, so it is looked up once for each position.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from raftlog.cluster.api.errors import ApiError
from raftlog.cluster.api.status import ConsumerStatus
from raftlog.cluster.api.values import SHARD, Position
from raftlog.cluster.files.errors import DiskError
from raftlog.cluster.records.entries import last_user_index, log_entry
from raftlog.cluster.replica.interface import NodeInterface
from raftlog.cluster.runtime import clock
from raftlog.raft.types import Entry, EntryKind
from raftlog.statemachine.commands import ConsumerGroup
from raftlog.statemachine.effects import Effects

_TIMES_MAX: Final = 4_096
"""Most positions whose time is remembered; then all are forgotten."""
_SCAN_RECORDS: Final = 128
_SCAN_BYTES: Final = 64 << 10
_SCANS_MAX: Final = 8
"""Most pages of internal records that are skipped. After them the time of the newest one counts."""


def position_of(log_id: str, next_: int) -> Position:
    return Position(log_id, {SHARD: next_})


class Lags:
    """Looks up the lags, and remembers the times that it found."""

    __slots__ = ("_node", "_times")

    def __init__(self, node: NodeInterface) -> None:
        self._node = node
        self._times: dict[int, int] = {}

    def records(self, group: ConsumerGroup) -> int:
        """Records from the group's position to the newest user record."""
        return max(0, self._node.last_user_index + 1 - group.next)

    async def status(self, name: bytes, group: ConsumerGroup) -> ConsumerStatus:
        lag = self.records(group)
        seconds = 0.0 if lag == 0 else await self._seconds(group.next)
        return ConsumerStatus(
            name.decode(),
            position_of(self._node.log_id, group.next),
            group.generation,
            group.owner.decode("utf-8", "replace"),
            lag,
            seconds,
            group.time_ms,
        )

    async def statuses(self, groups: Iterable[tuple[bytes, ConsumerGroup]]) -> list[ConsumerStatus]:
        return [await self.status(name, group) for name, group in groups]

    async def farthest(self, count: int) -> list[ConsumerStatus]:
        """The `count` groups that are the most records behind, by name."""
        rows = self._node.machine.consumers.rows()
        if len(rows) > count:
            rows = sorted(sorted(rows, key=lambda row: -self.records(row[1]))[:count])
        return await self.statuses(rows)

    async def _seconds(self, position: int) -> float | None:
        time_ms = self._times.get(position)
        if time_ms is None:
            try:
                time_ms = await self._find(position)
            except (ApiError, DiskError):  # trimmed, replaced by a snapshot, damaged, or closed meanwhile
                return None
        return None if time_ms is None else max(0.0, (clock.wall_ms() - time_ms) / 1_000)

    async def _find(self, position: int) -> int | None:
        """The time of the first user record from there on; None if there is no entry."""
        node, time_ms = self._node, None
        if node.is_fenced:
            return None
        index = max(position, node.oldest)
        for _ in range(_SCANS_MAX):
            for entry, effects in await node.read_log(index, _SCAN_RECORDS, _SCAN_BYTES):
                time_ms, index = entry.time_ms, entry.index + 1
                if _newest_user_index(entry, effects) >= position:
                    if len(self._times) >= _TIMES_MAX:
                        self._times.clear()
                    self._times[position] = time_ms
                    return time_ms
        return time_ms


def _newest_user_index(entry: Entry, effects: Effects) -> int:
    if entry.kind is not EntryKind.COMMANDS:
        return 0
    return entry.index if effects.is_plain else last_user_index(log_entry(entry), effects) or 0
