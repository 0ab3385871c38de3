"""Reads applied entries with their effects: from memory where they are new, else from the disk, else from a peer.

What the disk gives ends at what is both applied and written to the ledger. What is older than this disk's log, and may
be read all the same, is on the disk of a peer: such a read is passed on. A page is bounded, so that decoding never
holds up the event loop for long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

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
    decode_effects_header,
    effects_of,
)

DECODED_BYTES_MAX: Final = 512 << 10  # decoded in one go
TRIES: Final = 5
"""Of a slice that comes back empty because segments went or came meanwhile: that does not last."""


class Elsewhere(Protocol):
    """What peers have on their disks (`cluster.peer_log`). None: `is_wanted` says no. ApiError where nobody has it."""

    async def read(self, first: int, last: int, bytes_max: int, is_wanted: Callable[[], bool]) -> RawSlice | None: ...
    async def find_time(self, time_ms: int, is_wanted: Callable[[], bool]) -> int | None: ...


class LogReader:
    """The log of one node, for consumers."""

    def __init__(
        self, node: NodeId, disk: Disk, applier: Applier, damaged: Callable[[ReadDamaged], None], elsewhere: Elsewhere
    ) -> None:
        """`damaged` is told what the disk could not read."""
        self._node = node
        self._damaged = damaged
        self._disk = disk
        self._applier = applier
        self._elsewhere = elsewhere

    def check_oldest(self, index: int) -> None:
        """Raises ApiError compacted for an index below the oldest: the cluster's, whatever is on this disk."""
        if index < (oldest := self._applier.machine.oldest):
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
            if raw.first < self._disk.oldest:
                message = f"node {self._node}: what a peer gave of the log behind {raw.first} is damaged: {error}"
                raise ApiError(Code.INTERNAL, message) from error
            raise self._told(self._disk.damaged_at(raw.first, error)) from error

    async def raw(self, from_index: int, to_index: int, bytes_max: int) -> RawSlice:
        """Applied entries as they are on a disk, from the one that holds `from_index`. Raises ApiError."""
        self.check_oldest(from_index)
        return await self._raw(from_index, min(to_index, self._applier.applied, self._applier.written), bytes_max)

    async def find_time(self, time_ms: int) -> int:
        """First index of the first applied entry with that time or a later one, or one after the last applied."""
        machine, disk = self._applier.machine, self._disk
        found = min(await self.own_time(time_ms), self._applier.applied + 1)
        if found <= disk.oldest and self._is_away(machine.oldest):  # or an entry before it, elsewhere
            older = await self._elsewhere.find_time(time_ms, lambda: self._is_away(machine.oldest))
            found = await self.own_time(time_ms) if older is None else min(older, self._applier.applied + 1)
        return max(found, machine.oldest)

    # -- this disk, and only this one

    async def own(self, from_index: int, to_index: int, bytes_max: int) -> RawSlice:
        """As `raw`, from this disk: empty where it has none of it. Raises ApiError."""
        try:
            to_index = min(to_index, self._applier.applied, self._applier.written)
            return await self._disk.read_raw(from_index, to_index, bytes_max)
        except ReadDamaged as error:
            raise self._told(error) from error

    async def own_time(self, time_ms: int) -> int:
        """As `find_time`, of what this disk has. Raises ApiError."""
        try:
            return await self._disk.find_time(time_ms)
        except ReadDamaged as error:
            raise self._told(error) from error

    # -- this one or another

    def _is_away(self, index: int) -> bool:
        """Whether that index may be read, and is not on this disk."""
        return self._applier.machine.oldest <= index < self._disk.oldest

    async def _raw(self, from_index: int, to_index: int, bytes_max: int) -> RawSlice:
        raw = RawSlice(b"", b"", b"", 0, from_index, from_index)
        for _ in range(TRIES):
            while self._is_away(from_index):
                given = await self._elsewhere.read(from_index, to_index, bytes_max, lambda: self._is_away(from_index))
                if given is not None:
                    return given
            self.check_oldest(from_index)  # it may have been trimmed meanwhile
            raw = await self.own(from_index, to_index, bytes_max)
            if raw.next > raw.first or from_index > to_index:
                break
        return raw

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
        header = decode_effects_header(ledger, effects_position)
        effects = effects_of(header, ledger, effects_position)
        effects_position += EFFECTS_HEADER_SIZE + header.payload_bytes
        if effects.index != entry.index:
            raise Corrupt(f"effects of entry {effects.index} beside entry {entry.index}")
        found.append((entry, effects))
    return found
