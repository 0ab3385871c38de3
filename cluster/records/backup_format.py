"""Encodes and decodes a backup: a state snapshot in checked parts, with the identity of its log and its digest.

    head     log id, shard, index and term; revision and digest of the state; the node that made it, and the time
    parts    as in the `chunks` of a snapshot: length, CRC begun with the CRC of the part before (the first: the head's)
    end      a part of no bytes; then, with its length before it, the `meta` of the snapshot; size and CRC of the whole

The HTTP route of backups, the client and the offline tools use it. The same bytes travel over HTTP and are in the
file, and each receiver checks them part by part. Layout: docs/formats.md. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from raftlog.raft.codec.checks import Corrupt, UnknownVersion, crc32c
from raftlog.raft.codec.configuration import decode_configuration, encode_configuration
from raftlog.raft.configuration import Configuration
from raftlog.raft.types import Mark
from raftlog.raft.wal.formats import (
    CHUNK_HEADER_SIZE,
    LogIdentity,
    SnapshotMeta,
    decode_chunk_header,
    decode_snapshot_meta,
    encode_chunk,
    encode_snapshot_meta,
)
from raftlog.statemachine.digest import SetDigest

MAGIC: Final = b"RLBK"
VERSION: Final = 1
PART_BYTES_MAX: Final = 1 << 20
"""Most bytes of a part: a frame of the state machine (128 KiB) or the node's own few bytes. A longer one is damage."""

META_BYTES_MAX: Final = 1 << 20
# magic, version, log id, shard, node, index, term, revision, count, xor, sum low, sum high, made_ms; then the CRC of it
_HEAD: Final = Struct("<4sB3x16sIIQQQQQQQq")
_CRC: Final = Struct("<I")
_END: Final = Struct("<QI")  # bytes before this field, their CRC
HEAD_SIZE: Final = _HEAD.size + _CRC.size


class BackupDamaged(ValueError):
    """A backup is torn or was altered. The message names the byte."""

    exit_code = 7  # of the command line
    hint = "Take another copy of this backup, or another backup."


class NoBackup(BackupDamaged):
    """The bytes do not begin like a backup."""


@dataclass(frozen=True, slots=True)
class BackupHead:
    """The facts that a backup states before its state."""

    log_id: str
    node: int  # the node that made it
    index: int  # the state after the entry that ends here
    term: int  # of that entry
    revision: int
    digest: SetDigest  # of the live keys
    made_ms: int  # that node's wall clock
    shard: int = 0


@dataclass(frozen=True, slots=True)
class BackupEnd:
    """The facts that a backup states after its state. Present once everything was checked."""

    mark: Mark
    configuration: Configuration  # in force at the mark
    configuration_index: int
    parts: int
    state_bytes: int  # of the parts, without their headers
    size: int  # of the whole backup


class BackupEncoder:
    """Makes a backup piece by piece: `begin`, `part` for each, `end`."""

    __slots__ = ("_all_crc", "_crc", "_log", "_parts", "_size", "_state_bytes")

    def __init__(self) -> None:
        self._log = LogIdentity(bytes(16))
        self._crc = self._all_crc = self._parts = self._size = self._state_bytes = 0

    def begin(self, head: BackupHead) -> bytes:
        """The bytes of the head."""
        self._log = LogIdentity(bytes.fromhex(head.log_id), head.shard)
        packed = _HEAD.pack(
            MAGIC,
            VERSION,
            self._log.log_id,
            head.shard,
            head.node,
            head.index,
            head.term,
            head.revision,
            *head.digest,
            head.made_ms,
        )
        self._crc = crc32c(packed)
        return self._covered(packed + _CRC.pack(self._crc))

    def part(self, part: bytes) -> bytes:
        """The bytes of one more part of the state. Raises ValueError for a part that no reader would accept."""
        if not 0 < len(part) <= PART_BYTES_MAX:
            raise ValueError(f"a part of {len(part)} bytes: it must have 1 to {PART_BYTES_MAX}")
        header, self._crc = encode_chunk(part, self._crc)
        self._parts += 1
        self._state_bytes += len(part)
        return self._covered(header + part)

    def end(self, mark: Mark, configuration: Configuration, configuration_index: int) -> bytes:
        """The bytes that follow the last part."""
        header, _ = encode_chunk(b"", self._crc)
        meta = encode_snapshot_meta(
            self._log,
            SnapshotMeta(
                mark,
                encode_configuration(configuration),
                configuration_index,
                self._parts,
                self._state_bytes,
                self._crc,
            ),
        )
        end = self._covered(header + _CRC.pack(len(meta)) + meta)
        return end + _END.pack(self._size, self._all_crc)

    def _covered(self, data: bytes) -> bytes:
        self._size += len(data)
        self._all_crc = crc32c(data, self._all_crc)
        return data


class BackupDecoder:
    """Takes the bytes of a backup in slices of any size, checks them, and returns its parts; then `finish`.

    Holds at most one part. `head` is set once the head came, `end` once everything came; `parts`
    counts those that came.
    """

    __slots__ = (
        "_all_crc",
        "_buffer",
        "_crc",
        "_is_behind_parts",
        "_position",
        "_state_bytes",
        "end",
        "head",
        "parts",
    )

    def __init__(self) -> None:
        self.head: BackupHead | None = None
        self.end: BackupEnd | None = None
        self._buffer = bytearray()
        self._position = 0  # position of the buffer's start in the backup
        self._crc = self._all_crc = self.parts = self._state_bytes = 0
        self._is_behind_parts = False

    def feed(self, data: bytes) -> list[bytes]:
        """The parts that are complete now. Raises BackupDamaged, or UnknownVersion for a backup of a newer raftlog."""
        self._buffer += data
        found: list[bytes] = []
        try:
            if self.head is None and not self._take_head():
                return found
            while not self._is_behind_parts and (part := self._take_part()) is not None:
                if part:
                    found.append(part)
            if self._is_behind_parts:
                self._take_end()
        except Corrupt as error:
            raise self._damaged(str(error)) from error
        return found

    def finish(self) -> tuple[BackupHead, BackupEnd]:
        """The head and end of the complete backup. Raises BackupDamaged if the end has not come."""
        if self.head is None or self.end is None:
            length = self._position + len(self._buffer)
            raise BackupDamaged(f"cut short: it ends after {length} bytes, in {self._where()}")
        return self.head, self.end

    def _where(self) -> str:
        if self.head is None:
            return "its head"
        return "what follows the parts" if self._is_behind_parts else f"part {self.parts + 1}"

    def _take_head(self) -> bool:
        if bytes(self._buffer[:4]) != MAGIC[: len(self._buffer)]:
            raise NoBackup(f"it begins with {bytes(self._buffer[:4])!r}, not as a backup does")
        if len(self._buffer) < HEAD_SIZE:
            return False
        data = bytes(self._buffer[:HEAD_SIZE])
        _, version, log_id, shard, node, index, term, revision, *digest, made_ms = _HEAD.unpack_from(data)
        (crc,) = _CRC.unpack_from(data, _HEAD.size)
        if crc != crc32c(data[: _HEAD.size]):
            raise Corrupt("its head fails its CRC")
        if version != VERSION:
            raise UnknownVersion(f"a backup of version {version}: this code knows {VERSION}; use a newer raftlog")
        self.head = BackupHead(log_id.hex(), node, index, term, revision, SetDigest(*digest), made_ms, shard)
        self._crc = crc
        self._taken(HEAD_SIZE)
        return True

    def _take_part(self) -> bytes | None:
        """The next part. b"" for the end of the parts, None while the part is not complete."""
        if len(self._buffer) < CHUNK_HEADER_SIZE:
            return None
        length, wanted = decode_chunk_header(bytes(self._buffer[:CHUNK_HEADER_SIZE]))
        if length > PART_BYTES_MAX:
            raise Corrupt(f"part {self.parts + 1} claims {length} bytes, {PART_BYTES_MAX} is the most")
        size = CHUNK_HEADER_SIZE + length
        if len(self._buffer) < size:
            return None
        part = bytes(self._buffer[CHUNK_HEADER_SIZE:size])
        crc = crc32c(part, self._crc)
        if crc != wanted:
            raise Corrupt(f"part {self.parts + 1} fails its CRC")
        self._crc = crc
        self._taken(size)
        if part:
            self.parts += 1
            self._state_bytes += length
        else:
            self._is_behind_parts = True
        return part

    def _take_end(self) -> None:
        head, buffer = self.head, self._buffer
        assert head is not None, "the parts come behind it"
        if self.end is not None and buffer:
            raise Corrupt("bytes behind the end")
        if self.end is not None or len(buffer) < _CRC.size:
            return
        (length,) = _CRC.unpack_from(buffer)
        if length > META_BYTES_MAX:
            raise Corrupt(f"a meta of {length} bytes: {META_BYTES_MAX} is the most")
        size = _CRC.size + length
        if len(buffer) < size + _END.size:
            return
        before, crc = _END.unpack_from(buffer, size)
        if (before, crc) != (self._position + size, crc32c(bytes(buffer[:size]), self._all_crc)):
            raise Corrupt("size or CRC of the whole backup are not those that it names")
        meta = decode_snapshot_meta(
            LogIdentity(bytes.fromhex(head.log_id), head.shard), bytes(buffer[_CRC.size : size])
        )
        named = (meta.mark.index, meta.mark.term, meta.chunks, meta.size, meta.last_crc)
        if named != (head.index, head.term, self.parts, self._state_bytes, self._crc):
            raise Corrupt("what follows the parts is of another backup")
        configuration = decode_configuration(meta.configuration)
        if len(buffer) > size + _END.size:
            raise Corrupt("bytes behind the end")
        self.end = BackupEnd(
            meta.mark, configuration, meta.configuration_index, meta.chunks, meta.size, before + _END.size
        )
        self._taken(size + _END.size)

    def _taken(self, size: int) -> None:
        self._all_crc = crc32c(bytes(self._buffer[:size]), self._all_crc)
        self._position += size
        del self._buffer[:size]

    def _damaged(self, what: str) -> BackupDamaged:
        return BackupDamaged(f"damaged at byte {self._position}: {what}")
