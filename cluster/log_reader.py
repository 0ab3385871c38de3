"""Reads applied entries with their effects: from memory where they are new, else from the disk.

What the disk gives ends at what is both applied and written to the ledger. A page is bounded, so that decoding never
holds up the event loop for long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cluster.applier import Applier
from cluster.disk import Disk
from cluster.disk_errors import ReadDamaged
from cluster.recent import Applied
from cluster.wire import ApiError, Code
from raft.codec import MARK_MAGIC, MARK_SIZE, Corrupt, UnknownVersion, decode_entry
from raft.storage_read import RawSlice
from raft.types import NodeId
from statemachine.effects import (
    EFFECTS_HEADER_SIZE,
    CorruptEffects,
    UnknownEffects,
    decode_effects,
    decode_effects_header,
)

DECODED_BYTES_MAX: Final = 512 << 10  # decoded in one go


class LogReader:
    """The log of one node, for consumers."""

    def __init__(self, node: NodeId, disk: Disk, applier: Applier, damaged: Callable[[ReadDamaged], None]) -> None:
        """`damaged` is told what the disk could not read."""
        self._node = node
        self._damaged = damaged
        self._disk = disk
        self._applier = applier

    def check_oldest(self, index: int) -> None:
        """Raises ApiError compacted for an index below the oldest: first the cluster's, then what this node has."""
        for oldest in (self._applier.machine.oldest, self._disk.oldest):
            if index < oldest:
                raise compacted(self._node, index, oldest)

    async def entries(self, from_index: int, limit: int, bytes_max: int) -> list[Applied]:
        """Whole applied entries that contain or follow `from_index`, about `limit` records and `bytes_max`; at least
        one if there is any. Raises ApiError."""
        self.check_oldest(from_index)
        if from_index > self._applier.applied:
            return []
        found = self._applier.recent.read(from_index, limit, bytes_max)
        if found:
            return found
        to = min(from_index + limit - 1, self._applier.applied, self._applier.written)
        raw = await self._raw(from_index, to, min(bytes_max, DECODED_BYTES_MAX))
        try:
            return decode_slice(raw)
        except (Corrupt, UnknownVersion, CorruptEffects, UnknownEffects) as error:
            raise self._told(self._disk.damaged_at(raw.first, error)) from error

    async def raw(self, from_index: int, to_index: int, bytes_max: int) -> RawSlice:
        """Applied entries as they are on disk, from the one that holds `from_index`. Raises ApiError."""
        self.check_oldest(from_index)
        return await self._raw(from_index, min(to_index, self._applier.applied, self._applier.written), bytes_max)

    async def find_time(self, time_ms: int) -> int:
        """First index of the first applied entry with that time or a later one, or one after the last applied."""
        try:
            found = min(await self._disk.find_time(time_ms), self._applier.applied + 1)
        except ReadDamaged as error:
            raise self._told(error) from error
        return max(found, self._applier.machine.oldest)

    async def _raw(self, from_index: int, to_index: int, bytes_max: int) -> RawSlice:
        try:
            return await self._disk.read_raw(from_index, to_index, bytes_max)
        except ReadDamaged as error:
            raise self._told(error) from error

    def _told(self, error: ReadDamaged) -> ApiError:
        self._damaged(error)
        return ApiError(Code.INTERNAL, f"node {self._node}: {error}")


def compacted(node: NodeId, index: int, oldest: int) -> ApiError:
    """What a reader below the oldest index is told. Whoever needs the state reads the keys: that of any index from
    `snapshot` on leaves no gap before what can be read."""
    return ApiError(
        Code.COMPACTED,
        f"node {node}: index {index} is gone, the oldest is {oldest}: read on from there, or read the keys first (the "
        f"state of index {oldest - 1} or later) and go on behind it",
        oldest=oldest,
        snapshot=oldest - 1,
    )


def decode_slice(raw: RawSlice) -> list[Applied]:
    """The entries of a raw slice with their effects, every CRC checked. Raises Corrupt or UnknownVersion."""
    found: list[Applied] = []
    segment, ledger = raw.segment, raw.ledger
    position = effects_position = 0
    while position < len(segment):
        if segment[position : position + 4] == MARK_MAGIC:
            position += MARK_SIZE
            continue
        entry = decode_entry(segment, position)
        position += entry.size
        effects = decode_effects(ledger, effects_position)
        effects_position += EFFECTS_HEADER_SIZE + decode_effects_header(ledger, effects_position).payload_bytes
        if effects.index != entry.index:
            raise Corrupt(f"effects of entry {effects.index} beside entry {entry.index}")
        found.append((entry, effects))
    return found
