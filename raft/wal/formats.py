"""Names and bytes of the files beside the entries: segment headers, .idx and .ledger, hard state, snapshots.

Entries, marks and .idx rows are in `raftlog.raft.codec`, effects in `raftlog.statemachine.effects`; docs/formats.md has
them all with golden bytes. All integers are little-endian; everything has a version and a CRC32C. Bytes that fail their
check raise `Corrupt`, intact ones of an unknown version `UnknownVersion`, files of another log `ForeignFile`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

import msgpack

from raftlog.raft.codec.checks import INDEX_MAX, Corrupt, UnknownVersion, crc32c
from raftlog.raft.types import NEVER_REPLACED, HardState, Mark, ReplacedEnd, TermRun

LOG_FOLDER: Final = "log"
HARD_STATE: Final = "hard_state"


def segment_name(first: int) -> str:
    """The file of the segment whose first record has that index."""
    return f"{LOG_FOLDER}/{first:020d}.seg"


def index_name(first: int) -> str:
    """The .idx beside it."""
    return f"{LOG_FOLDER}/{first:020d}.idx"


def ledger_name(first: int) -> str:
    """The .ledger beside it."""
    return f"{LOG_FOLDER}/{first:020d}.ledger"


def segment_firsts(names: Iterable[str]) -> list[int]:
    """The first index of each segment among these names of one folder, sorted."""
    stems = [name[:-4] for name in names if name.endswith(".seg")]
    return sorted(int(stem) for stem in stems if stem.isdigit())


def spare_name(number: int) -> str:
    """A segment file made ahead: it gets its name when it is used."""
    return f"{LOG_FOLDER}/spare-{number}"


FORMAT_VERSION: Final = 1
"""Of every structure in this file, and of identity.json."""

_CRC: Final = Struct("<I")


class ForeignFile(ValueError):
    """An intact file that belongs to another log or shard, or stands in another file's place."""


def _seal(head: bytes) -> bytes:
    return head + _CRC.pack(crc32c(head))


def _open(what: str, magic: bytes, buffer: bytes, size: int) -> None:
    """Checks length, magic, CRC and version of the `size` bytes at the start of `buffer`."""
    if len(buffer) < size:
        raise Corrupt(f"{what} cut short: {len(buffer)} of {size} bytes")
    if buffer[:4] != magic:
        raise Corrupt(f"no {what} here: magic is {buffer[:4]!r}")
    if _CRC.unpack_from(buffer, size - 4)[0] != crc32c(buffer[: size - 4]):
        raise Corrupt(f"{what} fails its CRC")
    if buffer[4] != FORMAT_VERSION:
        raise UnknownVersion(f"{what} of version {buffer[4]}: this code knows {FORMAT_VERSION}")


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """Which log a file belongs to: in the header of every file."""

    log_id: bytes  # 16 bytes
    shard: int = 0

    def check(self, what: str, log_id: bytes, shard: int) -> None:
        """Raises ForeignFile where a file names another log or shard."""
        if log_id != self.log_id or shard != self.shard:
            raise ForeignFile(
                f"{what} belongs to log {log_id.hex()} shard {shard}, "
                f"this is log {self.log_id.hex()} shard {self.shard}"
            )


# ---------------------------------------------------------------------------------------------------------------
# Segment header: everything before this segment was synced when it was made, so it is a durable mark as well.

SEGMENT_MAGIC: Final = b"RLSG"
# magic, version, log id, shard, first index, term, time_ms, clock_ms and header CRC of the entry before, file size, 0
_SEGMENT: Final = Struct("<4sB3x16sIQQqQIIQ")
SEGMENT_HEADER_SIZE: Final = _SEGMENT.size + _CRC.size
SEGMENT_BYTES_LIMIT: Final = (1 << 32) - 1
"""Positions in .idx rows are 32 bits wide: a segment file must stay below 4 GiB (pitfall 70: 32-bit file positions)."""


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The start of a segment file: the end of the entry before its first, and how large it was made."""

    previous: Mark
    size: int

    @property
    def first(self) -> int:
        """Index of the first record of the segment."""
        return self.previous.index + 1


def encode_segment_header(log: LogIdentity, header: SegmentHeader) -> bytes:
    """The first SEGMENT_HEADER_SIZE bytes of a segment file."""
    mark = header.previous
    return _seal(
        _SEGMENT.pack(
            SEGMENT_MAGIC,
            FORMAT_VERSION,
            log.log_id,
            log.shard,
            header.first,
            mark.term,
            mark.time_ms,
            mark.clock_ms,
            mark.header_crc,
            header.size,
            0,
        )
    )


def decode_segment_header(log: LogIdentity, buffer: bytes) -> SegmentHeader:
    """The header at the start of a segment file. Raises Corrupt, UnknownVersion or ForeignFile."""
    _open("segment header", SEGMENT_MAGIC, buffer, SEGMENT_HEADER_SIZE)
    _, _, log_id, shard, first, term, time_ms, clock_ms, crc, size, reserved = _SEGMENT.unpack_from(buffer)
    log.check("segment", log_id, shard)
    if reserved:
        raise UnknownVersion(f"segment header with reserved bits {reserved:#x}")
    if not 1 <= first <= INDEX_MAX or size < SEGMENT_HEADER_SIZE:
        raise Corrupt(f"segment header names first index {first} and size {size}")
    return SegmentHeader(Mark(first - 1, term, crc, time_ms, clock_ms), size)


# ---------------------------------------------------------------------------------------------------------------
# .idx and .ledger: the same header; then rows, or effects; then a footer once the segment is sealed and complete.

INDEX_MAGIC: Final = b"RLIX"
LEDGER_MAGIC: Final = b"RLLG"
# magic, version, log id, shard, first index, header CRC of the entry before, 0
_SIDE: Final = Struct("<4sB3x16sIQI20x")
SIDE_HEADER_SIZE: Final = _SIDE.size + _CRC.size  # 64


def encode_side_header(log: LogIdentity, magic: bytes, previous: Mark) -> bytes:
    """The first SIDE_HEADER_SIZE bytes of the .idx or .ledger (by `magic`) of the segment that follows `previous`."""
    return _seal(_SIDE.pack(magic, FORMAT_VERSION, log.log_id, log.shard, previous.index + 1, previous.header_crc))


def check_side_header(log: LogIdentity, magic: bytes, previous: Mark, buffer: bytes) -> None:
    """Raises Corrupt, UnknownVersion or ForeignFile unless `buffer` starts as `encode_side_header` would."""
    what = "index header" if magic == INDEX_MAGIC else "ledger header"
    _open(what, magic, buffer, SIDE_HEADER_SIZE)
    _, _, log_id, shard, first, crc = _SIDE.unpack_from(buffer)
    log.check(what, log_id, shard)
    if (first, crc) != (previous.index + 1, previous.header_crc):
        raise ForeignFile(
            f"{what} is of a segment that starts at {first}, not {previous.index + 1}, or of other entries"
        )


INDEX_FOOTER_MAGIC: Final = b"RLIF"
# magic, version, term runs, configuration entries, CRC of all rows, end position in the segment, time_ms of the first
# entry, last entry: index, term, header CRC, time_ms, clock_ms; then runs, then indexes; then the CRC of it all
_FOOTER: Final = Struct("<4sB3xIIIIqQQIqQ")
_RUN: Final = Struct("<QQ")  # first index, term
_INDEX: Final = Struct("<Q")


@dataclass(frozen=True, slots=True)
class Summary:
    """What a restart must know of a sealed segment: the footer of its .idx."""

    last: Mark
    end: int  # position after its last entry, and the mark behind it if there is one
    time_first_ms: int
    runs: tuple[TermRun, ...]  # of its entries
    configurations: tuple[int, ...]  # indexes of its configuration entries


def encode_index_footer(summary: Summary, rows_crc: int) -> bytes:
    """The footer that follows the rows of a sealed segment's .idx."""
    last = summary.last
    head = _FOOTER.pack(
        INDEX_FOOTER_MAGIC,
        FORMAT_VERSION,
        len(summary.runs),
        len(summary.configurations),
        rows_crc,
        summary.end,
        summary.time_first_ms,
        last.index,
        last.term,
        last.header_crc,
        last.time_ms,
        last.clock_ms,
    )
    runs = [_RUN.pack(run.first, run.term) for run in summary.runs]
    return _seal(b"".join([head, *runs, *map(_INDEX.pack, summary.configurations)]))


def decode_index_footer(buffer: bytes) -> tuple[Summary, int]:
    """The footer, and the CRC that it names for the rows. Raises Corrupt or UnknownVersion."""
    if len(buffer) < _FOOTER.size + _CRC.size:
        raise Corrupt(f"index footer cut short: {len(buffer)} bytes")
    _open("index footer", INDEX_FOOTER_MAGIC, buffer, len(buffer))
    _, _, runs, others, rows_crc, end, first_ms, index, term, crc, time_ms, clock_ms = _FOOTER.unpack_from(buffer)
    middle = _FOOTER.size + runs * _RUN.size
    if len(buffer) != middle + others * _INDEX.size + _CRC.size:
        raise Corrupt(f"index footer names {runs} term runs and {others} configurations in {len(buffer)} bytes")
    terms = tuple(TermRun(*_RUN.unpack_from(buffer, _FOOTER.size + _RUN.size * i)) for i in range(runs))
    configurations = tuple(_INDEX.unpack_from(buffer, middle + _INDEX.size * i)[0] for i in range(others))
    return Summary(Mark(index, term, crc, time_ms, clock_ms), end, first_ms, terms, configurations), rows_crc


FRAME_MAGIC: Final = b"RLFX"
FRAME_VERSION: Final = 1
# A ledger's frames begin with a header that `raftlog.statemachine.effects` defines. The log needs these fields of it:
# magic, version, index of the entry, payload bytes, payload CRC; then the CRC of these bytes. A test keeps both equal.
_FRAME: Final = Struct("<4sB3xQ12xII")
FRAME_HEADER_SIZE: Final = _FRAME.size + _CRC.size  # 40
FRAME_LENGTH_BYTES: Final = range(28, 32)
"""Where in it the payload bytes stand."""


def decode_frame_header(buffer: bytes, offset: int = 0) -> tuple[int, int, int]:
    """Index, payload length and payload CRC of the effects at `offset`. Raises Corrupt or UnknownVersion."""
    if len(buffer) - offset < FRAME_HEADER_SIZE:
        raise Corrupt("effects header cut short")
    magic, version, index, size, crc = _FRAME.unpack_from(buffer, offset)
    own = _CRC.unpack_from(buffer, offset + _FRAME.size)[0]
    if magic != FRAME_MAGIC or own != crc32c(buffer[offset : offset + _FRAME.size]):
        raise Corrupt("effects header fails its CRC")
    if version != FRAME_VERSION:
        raise UnknownVersion(f"effects of entry {index} of version {version}: this code knows {FRAME_VERSION}")
    return index, size, crc


def intact_frame(buffer: bytes, offset: int, index: int) -> bytes:
    """The whole effects of the entry that ends at `index`, from `offset` on. Raises Corrupt or UnknownVersion."""
    found, size, crc = decode_frame_header(buffer, offset)
    frame = buffer[offset : offset + FRAME_HEADER_SIZE + size]
    payload = frame[FRAME_HEADER_SIZE:]
    if found != index or len(payload) != size or crc32c(payload) != crc:
        raise Corrupt(f"the effects beside entry {index} are damaged, or those of another one")
    return frame


def bare_frames(buffer: bytes, offset: int, most: int) -> int:
    """How many frames without a payload lie side by side from `offset` on, at most `most`.

    All `most` heads must lie in the buffer.
    """
    end = offset + most * FRAME_HEADER_SIZE
    for byte in FRAME_LENGTH_BYTES:
        column = buffer[offset + byte : end : FRAME_HEADER_SIZE]
        if column != bytes(len(column)):  # to look for the first one that is not 0 would take several times as long
            most = min(most, len(column) - len(column.lstrip(b"\0")))
    return most


def peek_frame(buffer: bytes, offset: int) -> tuple[int, int]:
    """Index and whole size of the frame at `offset`, no CRC checked; (0, 0) where there is none."""
    magic, _, index, size, _ = _FRAME.unpack_from(buffer, offset)
    return (index, FRAME_HEADER_SIZE + size) if magic == FRAME_MAGIC else (0, 0)


LEDGER_FOOTER_MAGIC: Final = b"RLLF"
# magic, version, samples, index of the last entry, end of the effects in the file; then the CRC of samples and this
_LEDGER_FOOTER: Final = Struct("<4sB3xIQQ")
LEDGER_FOOTER_SIZE: Final = _LEDGER_FOOTER.size + _CRC.size


@dataclass(frozen=True, slots=True)
class LedgerFooter:
    """Says that a sealed segment's ledger is complete and was synced; its samples find an entry's effects fast."""

    last: int
    end: int
    samples: array[int]  # index, position of its effects, index, position, …; sorted


def encode_ledger_footer(footer: LedgerFooter) -> bytes:
    """What follows the effects of a complete ledger: samples, then the fixed part at the very end of the file."""
    head = _LEDGER_FOOTER.pack(LEDGER_FOOTER_MAGIC, FORMAT_VERSION, len(footer.samples) // 2, footer.last, footer.end)
    return _seal(footer.samples.tobytes() + head)


def decode_ledger_footer(buffer: bytes, file_size: int) -> LedgerFooter:
    """The footer that ends a ledger of `file_size` bytes, from its last bytes. Raises Corrupt or UnknownVersion.

    Too few bytes raise Corrupt too: `ledger_footer_bytes` says how many are wanted.
    """
    size = ledger_footer_bytes(buffer)
    if len(buffer) < size:
        raise Corrupt(f"ledger footer cut short: {len(buffer)} of {size} bytes")
    whole = buffer[-size:]
    if _CRC.unpack_from(whole, size - 4)[0] != crc32c(whole[:-4]):
        raise Corrupt("ledger footer fails its CRC")
    _, version, _, last, end = _LEDGER_FOOTER.unpack_from(whole, size - LEDGER_FOOTER_SIZE)
    if version != FORMAT_VERSION:
        raise UnknownVersion(f"ledger footer of version {version}: this code knows {FORMAT_VERSION}")
    if end + size != file_size:
        raise Corrupt(f"ledger footer of {end} bytes of effects ends a file of {file_size} bytes")
    samples = array("Q")
    samples.frombytes(whole[: size - LEDGER_FOOTER_SIZE])
    return LedgerFooter(last, end, samples)


def ledger_footer_bytes(buffer: bytes) -> int:
    """How long the footer is that ends with `buffer` (at least LEDGER_FOOTER_SIZE bytes). Raises Corrupt."""
    if len(buffer) < LEDGER_FOOTER_SIZE:
        raise Corrupt("no ledger footer: the file is too short")
    magic, _, samples, _, _ = _LEDGER_FOOTER.unpack_from(buffer, len(buffer) - LEDGER_FOOTER_SIZE)
    if magic != LEDGER_FOOTER_MAGIC:
        raise Corrupt(f"no ledger footer here: magic is {magic!r}")
    return LEDGER_FOOTER_SIZE + 16 * int(samples)


# ---------------------------------------------------------------------------------------------------------------
# Hard state: two slots, each in a block of its own, so that a torn write leaves the other one whole.

HARD_STATE_MAGIC: Final = b"RLHS"
HARD_STATE_SLOT: Final = 4_096  # a block of the file system: slots never share one
HARD_STATE_BYTES: Final = 2 * HARD_STATE_SLOT
# magic, version, log id, shard, sequence, term, vote, boot, cut, floor and repair, and the three of ReplacedEnd
_SLOT: Final = Struct("<4sB3x16sIQQQQQQQQQ")
SLOT_SIZE: Final = _SLOT.size + _CRC.size


@dataclass(frozen=True, slots=True)
class Slot:
    """One write of the hard state. `cut`: a cut of the log after that index is under way (0: none).

    `floor`: the log was damaged, and this node neither votes nor campaigns until it holds an entry of that term or a
    later one (0: no floor). `is_mending`: the damaged part is being cut away, and the node has promised nothing since
    then (`raftlog.raft.wal.repair`). `replaced`: the newest part of the log that a leader replaced.
    """

    sequence: int
    state: HardState
    cut: int = 0
    is_mending: bool = False
    replaced: ReplacedEnd = NEVER_REPLACED

    @property
    def floor(self) -> int:
        return self.state.floor


def encode_slot(log: LogIdentity, slot: Slot) -> bytes:
    """The bytes at the start of either slot."""
    state = slot.state
    return _seal(
        _SLOT.pack(
            HARD_STATE_MAGIC,
            FORMAT_VERSION,
            log.log_id,
            log.shard,
            slot.sequence,
            state.term,
            state.vote,
            state.boot,
            slot.cut,
            slot.floor << 1 | slot.is_mending,
            *slot.replaced,
        )
    )


def decode_slot(log: LogIdentity, buffer: bytes) -> Slot:
    """One slot. Raises Corrupt, UnknownVersion or ForeignFile."""
    _open("hard state slot", HARD_STATE_MAGIC, buffer, SLOT_SIZE)
    _, _, log_id, shard, sequence, term, vote, boot, cut, mend, *replaced = _SLOT.unpack_from(buffer)
    log.check("hard state", log_id, shard)
    floor, is_mending = mend >> 1, bool(mend & 1)
    if is_mending and not (floor and cut):
        raise UnknownVersion(f"hard state slot of term {term} with the floor {mend:#x} and the cut {cut}")
    return Slot(sequence, HardState(term, vote, boot, floor), cut, is_mending, ReplacedEnd(*replaced))


# ---------------------------------------------------------------------------------------------------------------
# Snapshots: a meta file, and a chunk file whose chunks are chained by their CRCs.

SNAPSHOT_MAGIC: Final = b"RLSN"
_META: Final = Struct("<4sB3xI")  # magic, version, length of the msgpack array that follows; then the CRC of it all
_CHUNK: Final = Struct("<II")  # length, CRC of the chunk, begun with the CRC of the chunk before (the first: with 0)
CHUNK_HEADER_SIZE: Final = _CHUNK.size
CHUNK_BYTES_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """What a snapshot is: the state after the entry of `mark`, in `chunks` chunks of together `size` bytes."""

    mark: Mark
    configuration: bytes  # raftlog.raft.codec.configuration.encode_configuration
    configuration_index: int
    chunks: int
    size: int
    last_crc: int  # of the last chunk: chained, so it covers them all, and their order


def encode_snapshot_meta(log: LogIdentity, meta: SnapshotMeta) -> bytes:
    """The whole meta file."""
    mark = meta.mark
    packed: bytes = msgpack.packb(
        [
            log.log_id,
            log.shard,
            mark.index,
            mark.term,
            mark.header_crc,
            mark.time_ms,
            mark.clock_ms,
            meta.configuration,
            meta.configuration_index,
            meta.chunks,
            meta.size,
            meta.last_crc,
        ],
        use_bin_type=True,
    )
    return _seal(_META.pack(SNAPSHOT_MAGIC, FORMAT_VERSION, len(packed)) + packed)


def decode_snapshot_meta(log: LogIdentity, buffer: bytes) -> SnapshotMeta:
    """The whole meta file read back. Raises Corrupt, UnknownVersion or ForeignFile."""
    _open("snapshot meta", SNAPSHOT_MAGIC, buffer, len(buffer))
    try:
        log_id, shard, *rest = msgpack.unpackb(buffer[_META.size : -_CRC.size], raw=False, use_list=False)
        index, term, crc, time_ms, clock_ms, configuration, configuration_index, chunks, size, last_crc = rest
    except Exception as error:
        raise Corrupt(f"snapshot meta: {error}") from error
    log.check("snapshot", log_id, shard)
    mark = Mark(index, term, crc, time_ms, clock_ms)
    return SnapshotMeta(mark, configuration, configuration_index, chunks, size, last_crc)


def encode_chunk(chunk: bytes, previous_crc: int) -> tuple[bytes, int]:
    """A chunk's header, and its CRC, which the next one begins with."""
    crc = crc32c(chunk, previous_crc)
    return _CHUNK.pack(len(chunk), crc), crc


def decode_chunk_header(buffer: bytes) -> tuple[int, int]:
    """Length and CRC of the chunk that follows. Raises Corrupt."""
    if len(buffer) < _CHUNK.size:
        raise Corrupt("snapshot chunk header cut short")
    length, crc = _CHUNK.unpack_from(buffer)
    if length > CHUNK_BYTES_MAX:
        raise Corrupt(f"snapshot chunk of {length} bytes: the limit is {CHUNK_BYTES_MAX}")
    return length, crc


def term_runs(parts: Sequence[Sequence[TermRun]]) -> tuple[TermRun, ...]:
    """The runs of consecutive segments joined: a run that only goes on is dropped."""
    runs: list[TermRun] = []
    for part in parts:
        for run in part:
            if not runs or runs[-1].term != run.term:
                runs.append(run)
    return tuple(runs)
