"""Reads applied entries with their effects: new ones from memory, older ones from the disk, else from a peer.

The HTTP routes call it for log reads. A read from the disk ends at the newest entry that is both applied and written to
the ledger. This disk may lack readable entries that are older than its log; `LogReader` then asks a peer. A page is
bounded, so that decoding never blocks the event loop for long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.files.errors import DiskError, DiskFenced, NoSpace, ReadDamaged
from raftlog.cluster.replica.log.applier import Applied, Applier
from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.types import NodeId
from raftlog.raft.wal.reading import RawSlice, entries_in
from raftlog.statemachine.effects import (
    EFFECTS_HEADER_SIZE,
    CorruptEffects,
    UnknownEffects,
    decode_effects_header,
    effects_of,
)

DECODED_BYTES_MAX: Final = 512 << 10  # bytes of entries decoded without a pause
TRIES: Final = 5
"""Times that an empty slice is read again. A slice is empty when segments were deleted or added meanwhile."""


class Elsewhere(Protocol):
    """Reads from the disks of peers (`raftlog.cluster.replica.log.peer_log`).

    Returns None once `is_wanted` returns False. Raises ApiError if no peer has the entries.
    """

    async def read(self, first: int, last: int, bytes_max: int, is_wanted: Callable[[], bool]) -> RawSlice | None: ...
    async def find_time(self, time_ms: int, is_wanted: Callable[[], bool]) -> int | None: ...


class LogReader:
    """Reads the log of one node for clients."""

    def __init__(
        self, node: NodeId, disk: Disk, applier: Applier, damaged: Callable[[ReadDamaged], None], elsewhere: Elsewhere
    ) -> None:
        """`damaged` is called with damage that a read met on the disk."""
        self._node = node
        self._damaged = damaged
        self._disk = disk
        self._applier = applier
        self._elsewhere = elsewhere

    def check_oldest(self, index: int) -> None:
        """Raises ApiError compacted for an index below the oldest index of the cluster. This disk does not matter."""
        if index < (oldest := self._applier.machine.oldest):
            raise compacted(self._node, index, oldest)

    async def entries(self, from_index: int, limit: int, bytes_max: int) -> list[Applied]:
        """Whole applied entries that contain or follow `from_index`, about `limit` records and `bytes_max` bytes.

        At least one entry if one exists. Raises ApiError.
        """
        self.check_oldest(from_index)
        if from_index > self._applier.applied:
            return []
        found = self._applier.recent.read(from_index, limit, bytes_max)
        if found:
            return found
        to = min(from_index + limit - 1, self._applier.applied, self._applier.ledger.written)
        raw = await self._raw(from_index, to, min(bytes_max, DECODED_BYTES_MAX))
        try:
            return decode_slice(raw)
        except (Corrupt, UnknownVersion, CorruptEffects, UnknownEffects) as error:
            if raw.first < self._disk.oldest:
                message = f"node {self._node}: what a peer gave of the log behind {raw.first} is damaged: {error}"
                raise ApiError(Code.INTERNAL, message) from error
            raise self._told(self._disk.damaged_at(raw.first, error)) from error

    async def raw(self, from_index: int, to_index: int, bytes_max: int) -> RawSlice:
        """Applied entries as the bytes on a disk, from the entry that holds `from_index`. Raises ApiError."""
        self.check_oldest(from_index)
        return await self._raw(
            from_index, min(to_index, self._applier.applied, self._applier.ledger.written), bytes_max
        )

    async def find_time(self, time_ms: int) -> int:
        """First index of the first applied entry with that time or a later one, else last applied index + 1."""
        applier, disk = self._applier, self._disk
        while True:
            begins = disk.oldest
            found = min(await self.own_time(time_ms), applier.applied + 1)
            if disk.oldest != begins:
                continue  # a snapshot was installed meanwhile, or older segments came back
            # the state machine only now: an installed snapshot brings another one, with another oldest index
            if found > begins or not self._is_away(applier.machine.oldest):
                return max(found, applier.machine.oldest)
            # an older entry, on a peer's disk, may match
            older = await self._elsewhere.find_time(time_ms, lambda: self._is_away(applier.machine.oldest))
            if older is not None:
                return max(min(older, applier.applied + 1), applier.machine.oldest)

    # -- this disk, and only this one

    async def own(self, from_index: int, to_index: int, bytes_max: int) -> RawSlice:
        """As `raw`, from this disk only; empty if this disk has none of it. Raises ApiError."""
        try:
            to_index = min(to_index, self._applier.applied, self._applier.ledger.written)
            return await self._disk.read_raw(from_index, to_index, bytes_max)
        except DiskError as error:
            raise self._told(error) from error

    async def own_time(self, time_ms: int) -> int:
        """As `find_time`, from this disk only. Raises ApiError."""
        try:
            return await self._disk.find_time(time_ms)
        except DiskError as error:
            raise self._told(error) from error

    # -- this disk or a peer's

    def _is_away(self, index: int) -> bool:
        """Whether that index is readable and not on this disk."""
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

    def _told(self, error: DiskError) -> ApiError:
        """The error for a reader. Rows and effects that wait in memory are written before they are read, so a disk that
        takes no writes stops a reader too."""
        if isinstance(error, NoSpace):
            return ApiError(Code.DISK_FULL, f"node {self._node} has no room on its disk: {error}; ask another node")
        if isinstance(error, DiskFenced):
            return ApiError(Code.FENCED, f"node {self._node}: {error}; ask another node")
        if isinstance(error, ReadDamaged):
            self._damaged(error)
        return ApiError(Code.INTERNAL, f"node {self._node}: {error}")


def compacted(node: NodeId, index: int, oldest: int) -> ApiError:
    """The error for a reader below the oldest index.

    A reader that needs the state reads the keys as of any index from `snapshot` on. It then reads on without a gap.
    """
    return ApiError(
        Code.COMPACTED,
        f"node {node}: index {index} is gone, the oldest is {oldest}: read on from there, or read the keys first (the "
        f"state of index {oldest - 1} or later) and go on behind it",
        oldest=oldest,
        snapshot=oldest - 1,
    )


def decode_slice(raw: RawSlice) -> list[Applied]:
    """Decodes a raw slice into entries with their effects, and checks every CRC. Raises Corrupt or UnknownVersion."""
    found: list[Applied] = []
    ledger = raw.ledger
    effects_position = 0
    for entry in entries_in(raw.segment):
        header = decode_effects_header(ledger, effects_position)
        effects = effects_of(header, ledger, effects_position)
        effects_position += EFFECTS_HEADER_SIZE + header.payload_bytes
        if effects.index != entry.index:
            raise Corrupt(f"effects of entry {effects.index} beside entry {entry.index}")
        found.append((entry, effects))
    return found
