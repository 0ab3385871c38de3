"""Reads a range of the log from any node as Arrow batches, every byte checked and no index missing.

Raw chunks come over HTTP, or from a node's sealed segments on this machine. When a node fails, lags, or sends bytes
that fail a check, the next node continues at the same index. A range that the cluster no longer keeps is an error,
never a gap.
"""

import http.client
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import numpy as np
import pyarrow as pa

from raftlog.cluster.api.errors import Code
from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.codec.index_rows import IDX_ROW
from raftlog.raft.codec.raw import RAW_SIZE, RawHeader, decode_raw_header
from raftlog.spark_export.columns.decode import decode
from raftlog.spark_export.columns.frames import Frames, locate
from raftlog.spark_export.columns.schema import COLUMNS
from raftlog.spark_export.columns.slab import Slab, joined
from raftlog.spark_export.errors import ExportError
from raftlog.spark_export.fetch import door, local_log
from raftlog.spark_export.fetch.door import RefusedError, RetryableError, TrimmedError
from raftlog.spark_export.fetch.ranges import Range, query, trimmed
from raftlog.spark_export.fetch.selection import Selection, filtered, selected
from raftlog.statemachine.effects import CorruptEffects, UnknownEffects

SLAB_BYTES: Final = 4 << 20
"""Chunks are joined up to this size before they are decoded, in bytes. Larger slabs leave the processor's cache;
smaller ones pay numpy's fixed cost more often.
"""
_CHUNK_USUAL: Final = (4 << 20) + (1 << 18)  # what a node sends at once, and the end of an entry
_BRIEF: Final[dict[str, object]] = {"effects": "brief"}
CHUNK_BYTES_MAX: Final = 1 << 30  # of one chunk; offsets in Arrow's binary arrays are 32 bits wide


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


def _slabs(wanted: Range) -> Iterator[tuple[Frames, int, int]]:
    """Checked frames with the indexes that they span, until the range is covered.

    They come from this machine's folders as far as those go, then from any node that has them.
    """
    position = wanted.start
    previous: tuple[int, int] | None = None
    for frames, first, following in _found_here(wanted):
        position, previous = following, (following - 1, int(frames.entry["crc"][-1]))
        yield frames, first, following
    rotation = wanted.nodes
    more = _BRIEF
    # nodes without that position, and their oldest index; for example a node built from a snapshot
    gone: dict[str, int | None] = {}
    while position < wanted.stop:
        before = position
        try:
            for slab in _fetched(rotation.url, wanted, query(wanted, position) | more):
                if not slab.first <= position < slab.next or (position > wanted.start and slab.first != position):
                    raise Corrupt(f"got [{slab.first}, {slab.next}) where index {position} was due")
                frames = locate(slab, None if slab.is_blanked else previous)
                position = slab.next
                previous = None if slab.is_blanked else (slab.next - 1, int(frames.entry["crc"][-1]))
                rotation.success()
                gone.clear()
                yield frames, slab.first, slab.next
            if position == before:
                raise RetryableError(f"has nothing from index {position} on yet")
        except (RetryableError, Corrupt, CorruptEffects) as error:
            rotation.failure(f"the log from index {position} on", error)
        except RefusedError as error:
            if not more or error.problem.code != Code.BAD_REQUEST:
                raise
            more = {}  # a node of before there were brief effects
        except (UnknownVersion, UnknownEffects) as error:
            raise ExportError(f"{rotation.url} sent what this version of raftlog cannot read: {error}") from error
        except TrimmedError as error:
            gone[rotation.url] = error.oldest
            if len(gone) == len(set(wanted.endpoints)):
                known = [oldest for oldest in gone.values() if oldest]
                raise trimmed(position, min(known) if known else None) from error
            rotation.failure(f"the log from index {position} on", error)


def _found_here(wanted: Range) -> Iterator[tuple[Frames, int, int]]:
    """Checked frames from the folders, without a gap from the start of the range on. The first one that fails a check
    ends them; the nodes then serve the rest.
    """
    previous: tuple[int, int] | None = None
    with suppress(Corrupt, CorruptEffects, UnknownVersion, UnknownEffects):
        for slab in local_log.slabs(wanted.folders, wanted.log_id, wanted.start, wanted.stop):
            frames = locate(slab, previous)
            previous = (slab.next - 1, int(frames.entry["crc"][-1]))
            yield frames, slab.first, slab.next


def _fetched(url: str, wanted: Range, asked: dict[str, object]) -> Iterator[Slab]:
    """The chunks of one request, some at a time."""
    with door.answering(url, "/v1/log", asked, log_id=wanted.log_id) as answer:
        gathered = _SlabBuffer()
        while (head := _head(answer)) is not None:
            if not gathered.takes(head):
                yield gathered.slab()
                gathered = _SlabBuffer()
            gathered.take(head, answer)
            if head.next >= wanted.stop:
                break
        if gathered.size:
            yield gathered.slab()


def _head(answer: http.client.HTTPResponse) -> RawHeader | None:
    """The head of the next chunk, None at the end of the answer."""
    head = decode_raw_header(found) if (found := answer.read(RAW_SIZE)) else None
    return head if head is not None and head.rows else None


class _SlabBuffer:
    """Chunks on their way into one slab, each read to the place where it stays."""

    def __init__(self) -> None:
        self.size = 0
        self._chunks: list[tuple[RawHeader, bytes]] = []
        self._segment = _Memory(SLAB_BYTES + _CHUNK_USUAL)
        self._ledger = _Memory(SLAB_BYTES // 4)

    def takes(self, head: RawHeader) -> bool:
        """Whether that chunk may be of this slab, too."""
        if not self._chunks:
            return True
        last = self._chunks[-1][0]
        is_chained = not (head.is_blanked or last.is_blanked)  # the headers of a blanked chunk begin a chain
        return self.size < SLAB_BYTES and head.is_brief == last.is_brief and is_chained

    def take(self, head: RawHeader, answer: http.client.HTTPResponse) -> None:
        """Reads the chunk with that head. Raises Corrupt, or RetryableError where it is cut short."""
        size = head.rows * IDX_ROW.size + head.segment_bytes + head.ledger_bytes
        if size > CHUNK_BYTES_MAX:
            raise Corrupt(f"a chunk of {size} bytes: the limit is {CHUNK_BYTES_MAX}")
        rows = answer.read(head.rows * IDX_ROW.size)
        read = len(rows)
        for memory, wanted in ((self._segment, head.segment_bytes), (self._ledger, head.ledger_bytes)):
            read += answer.readinto(memory.more(wanted))
        if read != size:
            raise RetryableError("the answer was cut short")
        self._chunks.append((head, rows))
        self.size += head.segment_bytes + head.ledger_bytes

    def slab(self) -> Slab:
        """What has been read. Raises Corrupt."""
        return joined(self._chunks, self._segment.used, self._ledger.used)


class _Memory:
    """Bytes that grow at their end, not set to zero beforehand."""

    def __init__(self, room: int) -> None:
        self._room = np.empty(room, np.uint8).data
        self._end = 0

    @property
    def used(self) -> memoryview:
        """What has been asked for."""
        return self._room[: self._end]

    def more(self, size: int) -> memoryview:
        """The next `size` bytes, to be written to."""
        begin, self._end = self._end, self._end + size
        if self._end > len(self._room):
            larger = np.empty(max(self._end, 2 * len(self._room)), np.uint8).data
            larger[:begin] = self._room[:begin]
            self._room = larger
        return self._room[begin : self._end]
