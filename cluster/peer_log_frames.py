"""What nodes ask each other about the log that they have on disk, and the answers, as frames of the bulk link; pure.

A node that was built from a snapshot lacks the log before it: it passes reads on to its peers, and fetches what it
lacks in the background. Both ask the same questions. They are frames of the kinds of read indexes with a word in front,
so that no kind had to be added; a peer of protocol version 1 knows none of it, and is not asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple, TypeGuard

from raft.codec import FRAME_READ, FRAME_READ_REPLY, IDX_ROW, INDEX_MAX, Corrupt, Frame, encode_frame
from raft.storage_read import RawSlice
from raft.types import GENESIS, Mark

PEER_VERSION: Final = 2
"""The first version of the peer protocol that knows these frames."""

SLICE_BYTES_MAX: Final = 128 << 10
"""Of the segment in one answer, or one entry: with rows and effects about as much as a piece of a snapshot."""

_TAG: Final = "log"


class What(StrEnum):
    """What is asked."""

    STATE = "state"  # only what every answer says
    PIECE = "piece"  # which segment holds the index `first`
    SLICE = "slice"  # entries from the one that holds `first` to the one that holds `last`
    TIME = "time"  # the first index of the first entry of the time `first` (milliseconds) or later


class Question(NamedTuple):
    """A question; its number comes back with the answer."""

    number: int
    what: What
    first: int = 0
    last: int = 0
    bytes_max: int = 0


class Had(NamedTuple):
    """An answer. Where `reason` is not empty nothing else than the three marks counts: it says why."""

    number: int
    reason: str
    oldest: int  # the first index that may be read, as far as that node has applied the log
    begins: int  # the first index on its disk
    applied: int
    first: int = 0  # PIECE: of the segment; TIME: what was found
    before: Mark = GENESIS  # PIECE: the end before it
    slice: RawSlice | None = None  # SLICE


def is_about_log(frame: Frame) -> bool:
    """Whether that frame is one of these, and no read index."""
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
    if what not in What.__members__.values() or not _are_numbers((number, first, last, bytes_max)):
        raise Corrupt(f"question about the log with the header {frame.header!r:.200}")
    return Question(number, What(what), first, last, bytes_max)


def encode_had(had: Had) -> bytes:
    """The frame for the peer that asked."""
    raw = had.slice or RawSlice(b"", b"", b"", 0, 0, 0)
    before = had.before
    header = [
        _TAG, had.number, had.reason, [had.oldest, had.begins, had.applied], had.first,
        [before.index, before.term, before.header_crc, before.time_ms, before.clock_ms],
        [raw.first, raw.next, raw.base, len(raw.rows), len(raw.segment)],
    ]  # fmt: skip
    return encode_frame(FRAME_READ_REPLY, header, b"".join((raw.rows, raw.segment, raw.ledger)))


def decode_had(frame: Frame) -> Had:
    """The answer of such a frame; a slice has as many rows as records, whatever they hold. Raises Corrupt."""
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
    return Had(number, reason, oldest, begins, applied, found, Mark(*mark), raw if following > first else None)


def _are_numbers(values: Sequence[object]) -> TypeGuard[Sequence[int]]:
    return all(type(value) is int and 0 <= value <= INDEX_MAX for value in values)
