"""`GET /v1/log` as a stream: NDJSON lines or raw chunks of the segments, up to an index or following the log.

A raw stream begins with a small chunk, and goes on with larger ones: what it costs to find where a chunk begins and
ends in the log's files does not depend on its size, and with entries of one record it is most of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import google_crc32c
import msgspec

from cluster import wire
from cluster.http_answer import encode_json
from cluster.http_call import Call, Service
from cluster.http_log import SLICE_BYTES, LogQuery, check_oldest, scan
from cluster.http_stream import SlowReader, Stream, slow_reader
from cluster.node_face import RawSlice
from cluster.records import as_record
from cluster.wire import ApiError, LogProgress, Problem
from raft.codec import IDX_ROW, RawHeader, encode_raw_header

RAW_SLICE_BYTES: Final = 4 << 20
"""Of the segment in a raw chunk, behind the first of a stream, which has SLICE_BYTES."""
_SPARE: Final = 1_000  # records

_encode_lines: Final = msgspec.json.Encoder().encode_lines


async def stream_log(service: Service, call: Call, query: LogQuery) -> Stream:
    """Sends the whole stream; returns when it has ended."""
    node = service.node
    check_oldest(service, query.start)  # while that can still be the answer
    if not query.is_follow:
        if query.wait_ms and query.start > node.applied:
            await service.wait_beyond(query.start - 1, service.clock() + query.wait_ms / 1000)
        query = replace(query, stop=min(query.stop, node.applied + 1))
    is_raw = query.format == "raw"
    position, left = query.start, query.limit
    progress_s = service.limits.progress_ms / 1000
    piece: RawSlice | None = None
    with Stream(service, call) as stream:
        stream.start(wire.RAW if is_raw else wire.NDJSON, ((wire.H_NEXT, str(position)),))
        mark_due = service.clock() + progress_s
        try:
            while left > 0 and position < query.stop:
                before = position
                if is_raw:
                    parts, position, piece = await _raw_chunk(service, query, position, left, piece)
                else:
                    parts, position = await _lines(service, query, position, left)
                left -= position - before
                if parts:
                    await stream.write(*parts)
                elif position == before:
                    await service.wait_beyond(position - 1, mark_due)
                if service.clock() >= mark_due:
                    await stream.write(_mark(service, position, is_raw=is_raw))
                    mark_due = service.clock() + progress_s
        except SlowReader:
            error = slow_reader(service.limits.stream_stall_ms)
            stream.close_slow(_mark(service, position, stream.problem(error, next=position), is_raw=is_raw))
        except ApiError as error:
            stream.end(_mark(service, position, stream.problem(error, next=position), is_raw=is_raw))
        else:
            stream.end(_mark(service, position, is_raw=is_raw))
    return stream


async def _lines(service: Service, query: LogQuery, start: int, left: int) -> tuple[Sequence[bytes], int]:
    """One slice as NDJSON, nothing where there is no record to show, and where the next one begins."""
    found = await scan(service, query, start, left, SLICE_BYTES)
    if not found.rows:
        return (), found.next
    return (_encode_lines([as_record(row, query.encoding) for row in found.rows]),), found.next


async def _raw_chunk(
    service: Service, query: LogQuery, start: int, left: int, before: RawSlice | None
) -> tuple[Sequence[bytes | memoryview], int, RawSlice | None]:
    """Whole entries of one segment as they are on disk, with the head of a raw chunk, what follows them, and the piece
    itself, which is `before` the next one."""
    node = service.node
    stop = min(query.stop, start + left, node.applied + 1)
    if start >= stop:
        return (), start, before
    size = SLICE_BYTES
    if before is not None and before.segment:
        size = RAW_SLICE_BYTES
        # The node looks through the rows of all records that it may have to send: not of many more than fit.
        stop = min(stop, start + _SPARE + (before.next - before.first) * size // len(before.segment) * 5 // 4)
    piece = await node.read_raw(start, stop, size)
    header = RawHeader(
        len(piece.rows) // IDX_ROW.size, len(piece.segment), len(piece.ledger), google_crc32c.value(piece.rows),
        piece.base, piece.first, piece.next, node.oldest, node.committed, node.last_user_index,
    )  # fmt: skip
    return (encode_raw_header(header), piece.rows, piece.segment, piece.ledger), piece.next, piece


def _mark(service: Service, position: int, problem: Problem | None = None, *, is_raw: bool) -> bytes:
    """How far the stream is; a raw one has no room for a problem."""
    node = service.node
    if is_raw:
        return encode_raw_header(
            RawHeader(0, 0, 0, 0, 0, position, position, node.oldest, node.committed, node.last_user_index)
        )
    progress = LogProgress(
        node.log_id, position, node.oldest, node.committed, node.last_user_index, node.applied, node.term, problem
    )
    return encode_json(progress) + b"\n"
