"""How far behind the consumer groups are: in records, and in seconds.

The seconds are the age of the oldest user record that a group has not read. Its time stands in the log: once found it
never changes, so it is looked up once for each position.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cluster import clock
from cluster.apply import last_user_index, log_entry
from cluster.disk_errors import DiskError
from cluster.node_face import NodeFace
from cluster.wire import SHARD, ApiError, ConsumerStatus, Position
from raft.types import Entry, EntryKind
from statemachine.commands import Consumer
from statemachine.effects import Effects

_TIMES_MAX: Final = 4_096
"""Positions whose time is remembered; then all are forgotten."""
_SCAN_RECORDS: Final = 128
_SCAN_BYTES: Final = 64 << 10
_SCANS_MAX: Final = 8
"""Internal records that are passed over at most, in pages: beyond them the newest one's time is told."""


def position_of(log_id: str, next_: int) -> Position:
    """A position as it stands on the wire."""
    return Position(log_id, {SHARD: next_})


class Lags:
    """Looks them up, and remembers the times that it found."""

    __slots__ = ("_node", "_times")

    def __init__(self, node: NodeFace) -> None:
        self._node = node
        self._times: dict[int, int] = {}

    def records(self, group: Consumer) -> int:
        """Records that it has not read, up to the newest user record."""
        return max(0, self._node.last_user_index + 1 - group.next)

    async def status(self, name: bytes, group: Consumer) -> ConsumerStatus:
        """The group as it is told."""
        lag = self.records(group)
        seconds = 0.0 if lag == 0 else await self._seconds(group.next)
        return ConsumerStatus(
            name.decode(), position_of(self._node.log_id, group.next), group.generation,
            group.owner.decode("utf-8", "replace"), lag, seconds, group.time_ms,
        )  # fmt: skip

    async def statuses(self, groups: Iterable[tuple[bytes, Consumer]]) -> list[ConsumerStatus]:
        """Several of them, in their order."""
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
            except (ApiError, DiskError):  # trimmed or installed over meanwhile, damaged, or closed
                return None
        return None if time_ms is None else max(0.0, (clock.wall_ms() - time_ms) / 1_000)

    async def _find(self, position: int) -> int | None:
        """The time of the first user record from there on; None: there is no entry there."""
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
