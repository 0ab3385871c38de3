"""Reads a range of the log from any node as Arrow batches, every byte checked and no index missing.

Raw chunks come over HTTP; a node that fails, lags, or sends bytes that fail a check is left for the next one, and the
range goes on where it stood. A range that the cluster no longer keeps is an error, never a gap.
"""

import http.client
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from raft.codec import IDX_ROW, RAW_SIZE, Corrupt, RawHeader, UnknownVersion, decode_raw_header
from spark_export import door
from spark_export.decode import decode
from spark_export.door import RetryableError, TrimmedError, Turns
from spark_export.errors import DataLossError, ExportError
from spark_export.frames import Frames, join, locate
from spark_export.schema import COLUMNS
from spark_export.selection import Selection, filtered, selected
from statemachine.effects import CorruptEffects, UnknownEffects

SLAB_BYTES: Final = 4 << 20
"""Chunks are joined up to so many bytes before they are decoded: larger ones fall out of the processor's cache, smaller
ones pay numpy's fixed cost more often."""
CHUNK_BYTES_MAX: Final = 1 << 30  # of one chunk; offsets in Arrow's binary arrays are 32 bits wide

_Chunk = tuple[RawHeader, bytes, bytes, bytes]


@dataclass(frozen=True, slots=True)
class Range:
    """Records [start, stop) of one log, and where to read them."""

    endpoints: tuple[str, ...]
    log_id: str
    start: int
    stop: int
    turn: int = 0  # which endpoint is first: spreads tasks over the nodes
    patience_s: float = door.PATIENCE_S


def read(
    wanted: Range, columns: Sequence[str] = COLUMNS, *, with_internal: bool = True, selection: Selection | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of the range in order. Raises DataLossError, UnreachableError or ExportError; never ends short.

    Without `with_internal` only user records are given, or, where there is one, what the `selection` leaves; all of
    them are read and accounted for.
    """
    chosen = Selection(with_internal) if selection is None else selection
    for frames, begin, end in slabs(wanted):
        batch = decode(frames, columns).slice(begin, end - begin)
        if not chosen.is_all:
            batch = filtered(batch, selected(frames, chosen)[begin:end])
        if len(batch):
            yield batch


def slabs(wanted: Range) -> Iterator[tuple[Frames, int, int]]:
    """Checked frames in order, each with which of its rows [begin, end) belong to the range. Raises as `read`."""
    position = wanted.start
    for frames, first, following in _slabs(wanted):
        if first > position or following <= position:
            raise ExportError(f"read [{first}, {following}) where index {position} was due: please report this")
        begin, position = position - first, min(following, wanted.stop)
        yield frames, begin, position - first
    if position != wanted.stop:
        raise ExportError(f"read up to index {position} of [{wanted.start}, {wanted.stop}): please report this")


def bytes_end(wanted: Range, bytes_max: int) -> int:
    """How far into the range `bytes_max` bytes of log and effects reach, at least one record. It asks for the head of
    each chunk alone, of about a mebibyte, and takes the records within one to be of equal size."""
    turns = Turns(wanted.endpoints, wanted.patience_s, wanted.turn)
    position, left = wanted.start, bytes_max
    while position < wanted.stop:
        try:
            with door.answering(turns.url, "/v1/log", _query(wanted, position)) as answer:
                door.check_log(turns.url, answer, wanted.log_id)
                head = decode_raw_header(answer.read(RAW_SIZE))
            if not head.first <= position < head.next:
                raise RetryableError(f"has nothing from index {position} on yet")
        except (RetryableError, Corrupt, TrimmedError) as error:
            turns.failure(f"the log from index {position} on", error)
            continue
        turns.success()
        size = head.segment_bytes + head.ledger_bytes
        fitting = min(head.next, position + (head.next - head.first) * left // size)
        if fitting < head.next:
            return min(max(fitting, wanted.start + 1), wanted.stop)
        left -= size
        position = head.next
    return wanted.stop


def _slabs(wanted: Range) -> Iterator[tuple[Frames, int, int]]:
    """Checked frames with the indexes that they span, from whichever node has them, until the range is covered."""
    turns = Turns(wanted.endpoints, wanted.patience_s, wanted.turn)
    position = wanted.start
    previous: tuple[int, int] | None = None
    gone: dict[str, int | None] = {}  # who has that position no more, and its oldest: a node built from a snapshot, say
    while position < wanted.stop:
        before = position
        try:
            for chunks in _fetched(turns.url, wanted, position):
                slab = join(chunks)
                if not slab.first <= position < slab.next or (previous is not None and slab.first != position):
                    raise Corrupt(f"got [{slab.first}, {slab.next}) where index {position} was due")
                frames = locate(slab, previous)
                position = slab.next
                previous = (slab.next - 1, int(frames.entry["crc"][-1]))
                turns.success()
                gone.clear()
                yield frames, slab.first, slab.next
            if position == before:
                raise RetryableError(f"has nothing from index {position} on yet")
        except (RetryableError, Corrupt, CorruptEffects) as error:
            turns.failure(f"the log from index {position} on", error)
        except (UnknownVersion, UnknownEffects) as error:
            raise ExportError(f"{turns.url} sent what this version of raftlog cannot read: {error}") from error
        except TrimmedError as error:
            gone[turns.url] = error.oldest
            if len(gone) == len(set(wanted.endpoints)):
                known = [oldest for oldest in gone.values() if oldest]
                raise trimmed(position, min(known) if known else None) from error
            turns.failure(f"the log from index {position} on", error)


def _fetched(url: str, wanted: Range, position: int) -> Iterator[list[_Chunk]]:
    """The chunks of one request, some at a time."""
    with door.answering(url, "/v1/log", _query(wanted, position)) as answer:
        door.check_log(url, answer, wanted.log_id)
        chunks: list[_Chunk] = []
        size = 0
        while True:
            chunk = _chunk(answer)
            if chunk is None or (head := chunk[0]).rows == 0:
                break
            chunks.append(chunk)
            size += head.segment_bytes + head.ledger_bytes
            if size >= SLAB_BYTES:
                yield chunks
                chunks, size = [], 0
            if head.next >= wanted.stop:
                break
        if chunks:
            yield chunks


def _query(wanted: Range, position: int) -> dict[str, object]:
    return {
        "format": "raw", "from": position, "to": wanted.stop, "consistency": "stale", "min_index": wanted.stop - 1,
    }  # fmt: skip


def _chunk(answer: http.client.HTTPResponse) -> _Chunk | None:
    """The next chunk, or None at the end of the answer. Raises RetryableError where it is cut short."""
    head_bytes = answer.read(RAW_SIZE)
    if not head_bytes:
        return None
    head = decode_raw_header(head_bytes)
    sizes = (head.rows * IDX_ROW.size, head.segment_bytes, head.ledger_bytes)
    if sum(sizes) > CHUNK_BYTES_MAX:
        raise Corrupt(f"a chunk of {sum(sizes)} bytes: the limit is {CHUNK_BYTES_MAX}")
    parts = [answer.read(size) for size in sizes]
    if [len(part) for part in parts] != list(sizes):
        raise RetryableError("the answer was cut short")
    return head, parts[0], parts[1], parts[2]


def trimmed(position: int, oldest: int | None) -> DataLossError:
    """The error for an index that is no longer kept."""
    begins = "" if oldest is None else f": the log begins at index {oldest} now"
    start = "earliest" if oldest is None else f"{oldest} or startingOffsets=earliest"
    return DataLossError(
        f"index {position} is no longer kept{begins}. Nothing was skipped. Start at startingOffsets={start}, take the "
        f"older records from an export, or set failOnDataLoss=false to begin at the oldest index whatever it is."
    )
