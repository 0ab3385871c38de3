"""Encodes questions about the log on a peer's disk, and their answers, as frames of the bulk link; pure.

`raftlog.cluster.replica.log.peer_log` asks, `raftlog.cluster.replica.parts.serving` answers. A node that was built
from a snapshot lacks the log before it. It forwards reads to its peers, and fetches the missing entries in the
background; both ask the same questions. The frames have the kind of read indexes with a word in front, so that they
need no kind of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple, TypeGuard

from raftlog.raft.codec.checks import INDEX_MAX, Corrupt
from raftlog.raft.codec.frame import FRAME_READ, FRAME_READ_REPLY, Frame, encode_frame
from raftlog.raft.codec.index_rows import IDX_ROW
from raftlog.raft.types import GENESIS, Mark
from raftlog.raft.wal.reading import RawSlice

SLICE_BYTES_MAX: Final = 128 << 10
"""Most bytes of a segment in one answer, unless one entry is larger. With rows and effects: about a snapshot piece."""

_TAG: Final = "log"


class QuestionKind(StrEnum):
    """The kind of question."""

    STATE = "state"  # only the marks that every answer has
    PIECE = "piece"  # which segment holds the index `first`
    SLICE = "slice"  # entries from the one that holds `first` to the one that holds `last`
    TIME = "time"  # the first index of the first entry of the time `first` (milliseconds) or later


class Question(NamedTuple):
    """A question. Its number comes back with the answer."""

    number: int
    what: QuestionKind
    first: int = 0
    last: int = 0
    bytes_max: int = 0


class PeerLogReply(NamedTuple):
    """An answer. If `reason` is not empty, it says why the peer gave no entries, and only the three marks count."""

    number: int
    reason: str
    oldest: int  # the first index that may be read, as far as that node has applied the log
    begins: int  # the first index on its disk
    applied: int
    first: int = 0  # PIECE: first index of the segment; TIME: found index
    before: Mark = GENESIS  # PIECE: the end before it
    slice: RawSlice | None = None  # SLICE


def is_about_log(frame: Frame) -> bool:
    """Whether that frame is a question or answer about the log, and not a read index."""
    return frame.kind in (FRAME_READ, FRAME_READ_REPLY) and frame.header[:1] == (_TAG,)


def encode_question(question: Question) -> bytes:
    """The frame for a peer."""
    number, what, first, last, bytes_max = question
    return encode_frame(FRAME_READ, [_TAG, number, str(what), first, last, bytes_max])


def decode_question(frame: Frame) -> Question:
    """The question of such a frame. Raises Corrupt."""
    match frame.header:
        case (_, int(number), str(what), int(first), int(last), int(bytes_max)):
            pass
        case _:
            raise Corrupt(f"question about the log with the header {frame.header!r:.200}")
    if what not in QuestionKind.__members__.values() or not _are_numbers((number, first, last, bytes_max)):
        raise Corrupt(f"question about the log with the header {frame.header!r:.200}")
    return Question(number, QuestionKind(what), first, last, bytes_max)


def encode_log_reply(had: PeerLogReply) -> bytes:
    """The frame for the peer that asked."""
    raw = had.slice or RawSlice(b"", b"", b"", 0, 0, 0)
    before = had.before
    header = [
        _TAG,
        had.number,
        had.reason,
        [had.oldest, had.begins, had.applied],
        had.first,
        [before.index, before.term, before.header_crc, before.time_ms, before.clock_ms],
        [raw.first, raw.next, raw.base, len(raw.rows), len(raw.segment)],
    ]
    return encode_frame(FRAME_READ_REPLY, header, b"".join((raw.rows, raw.segment, raw.ledger)))


def decode_log_reply(frame: Frame) -> PeerLogReply:
    """The answer of such a frame. Checks that a slice has as many rows as records. Raises Corrupt."""
    match frame.header:
        case (_, int(number), str(reason), tuple(marks), int(found), tuple(mark), tuple(part)):
            pass
        case _:
            raise Corrupt(f"answer about the log with the header {frame.header!r:.200}")
    if (len(marks), len(mark), len(part)) != (3, 5, 5) or not _are_numbers((number, *marks, found, *mark, *part)):
        raise Corrupt(f"answer about the log with the numbers {frame.header!r:.200}")
    oldest, begins, applied = marks
    first, following, base, rows, segment = part
    payload = frame.payload
    if following < first or rows != IDX_ROW.size * (following - first) or rows + segment > len(payload):
        raise Corrupt(f"answer about the log: records {first} to {following - 1} in {len(payload)} bytes")
    ledger = rows + segment
    raw = RawSlice(payload[:rows], payload[rows:ledger], payload[ledger:], base, first, following)
    return PeerLogReply(number, reason, oldest, begins, applied, found, Mark(*mark), raw if following > first else None)


def _are_numbers(values: Sequence[object]) -> TypeGuard[Sequence[int]]:
    return all(type(value) is int and 0 <= value <= INDEX_MAX for value in values)
