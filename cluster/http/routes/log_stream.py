"""Handles `GET /v1/log` as a stream: NDJSON lines or raw chunks of the segments, up to an index or following the log.

A raw stream begins with a small chunk and continues with larger ones. Finding the beginning and end of a chunk in the
log's files costs the same for every size, and with entries of one record that is most of the work.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Final

import google_crc32c

from raftlog.cluster.api.errors import ApiError, Code, Problem
from raftlog.cluster.api.headers import H_NEXT, NDJSON, RAW
from raftlog.cluster.api.records import LogProgress
from raftlog.cluster.http.exchange.answer import encode_json
from raftlog.cluster.http.exchange.call import Call, long_wait
from raftlog.cluster.http.exchange.follow import Piece
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.http.exchange.stream import Stream
from raftlog.cluster.http.routes.log import SLICE_BYTES, LogQuery, check_oldest, looked_again, scan
from raftlog.cluster.records.blanking import blanked
from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.codec.index_rows import IDX_ROW
from raftlog.raft.codec.raw import RawHeader, encode_raw_header
from raftlog.raft.wal.formats import FRAME_HEADER_SIZE, bare_frames
from raftlog.raft.wal.reading import RawSlice
from raftlog.statemachine.access.permissions import Permissions

RAW_SLICE_BYTES: Final = 4 << 20
"""Bytes of the segment in a raw chunk. The first chunk of a stream has SLICE_BYTES."""
_SPARE: Final = 1_000  # records


async def stream_log(service: Service, call: Call, query: LogQuery) -> Stream:
    """Sends the whole stream; returns when it has ended."""
    node = service.node
    check_oldest(service, query.start)  # now, while an error can still be the answer
    if not query.is_follow:
        if query.wait_ms and query.start > node.applied:
            until = service.clock() + query.wait_ms / 1000
            await long_wait(service, call, partial(service.wait_beyond, query.start - 1, until))
        query = replace(query, stop=min(query.stop, node.applied + 1))
    is_raw = query.format == "raw"
    mark = partial(_mark, service, is_raw=is_raw)
    position, left = query.start, query.limit
    progress_s = service.limits.progress_ms / 1000
    sent = (0, 0)  # bytes of rows and of segment in the newest piece of a raw stream
    is_at_end = False  # the last look found the end of the log
    with Stream(service, call) as stream:
        stream.start(RAW if is_raw else NDJSON, ((H_NEXT, str(position)),))
        mark_due = service.clock() + progress_s
        try:
            while left > 0 and position < query.stop:
                if is_at_end:
                    await service.tail.reach(position, service.access.until(call, mark_due))
                before, applied = position, node.applied
                raw_bytes = RAW_SLICE_BYTES if sent[1] and stream.has_room(RAW_SLICE_BYTES) else SLICE_BYTES
                make = partial(_piece, service, query, position, left, sent, raw_bytes, is_at_end=is_at_end)
                size = 0 if is_at_end else raw_bytes if is_raw else SLICE_BYTES  # at the end streams share one piece
                parts, following = await stream.made(make, size)
                now = looked_again(service, call, query)  # after the wait for room and disk
                if now.sees is not query.sees:
                    query = now
                    continue
                position = following
                is_at_end = query.is_follow and (position > applied or position == before)
                left -= position - before if is_raw else sum(bytes(part).count(b"\n") for part in parts)
                if parts:
                    await stream.write(*parts)
                    sent = (len(parts[1]), len(parts[2])) if is_raw else sent
                elif position == before and not query.is_follow:
                    await service.wait_beyond(position - 1, service.access.until(call, mark_due))
                if service.clock() >= mark_due:
                    await stream.write(mark(position))
                    mark_due = service.clock() + progress_s
        except ApiError as error:
            stream.fail(error, position, mark)
        else:
            stream.end(mark(position))
    return stream


async def _piece(
    service: Service, query: LogQuery, start: int, left: int, sent: tuple[int, int], raw_bytes: int, *, is_at_end: bool
) -> Piece:
    """The next slice, and the position after it. `sent`: bytes of rows and segment in the slice before. `raw_bytes`:
    most bytes of a raw slice. Streams at the end of the log share one slice."""
    stop = min(query.stop, start + left, service.node.applied + 1)
    if query.format == "raw":
        size = raw_bytes
        if sent[1]:
            # The node reads the rows of all requested records: request few more than fit.
            stop = min(stop, start + _SPARE + sent[0] // IDX_ROW.size * size // sent[1] * 5 // 4)
        make = partial(_raw_chunk, service, query, start, stop, size)
    else:
        size = 0
        make = partial(_lines, service, query, start, left)
    if not is_at_end:
        return await make()
    shape = (query.format, query.encoding, query.with_internal, query.part, query.sees)
    return await service.tail.piece((*shape, start, stop, size), make)


async def _lines(service: Service, query: LogQuery, start: int, left: int) -> Piece:
    """One slice as NDJSON, empty if it has no visible record, and the position after it."""
    found = await scan(service, query, start, left, SLICE_BYTES)
    return (b"\n".join([*found.shown, b""]),) if found.shown else (), found.next


async def _raw_chunk(service: Service, query: LogQuery, start: int, stop: int, size: int) -> Piece:
    """Whole entries of one segment as they are on disk, as one raw chunk: head, rows, segment, ledger."""
    node = service.node
    if start >= stop:
        return (), start
    piece = await node.read_raw(start, stop - 1, size)
    rows, ledger = len(piece.rows) // IDX_ROW.size, piece.ledger
    is_brief = query.part.are_effects_brief and _can_be_brief(ledger, rows)
    if is_brief:
        ledger = ledger[:FRAME_HEADER_SIZE] + ledger[-FRAME_HEADER_SIZE:]
    segment = piece.segment if query.sees is None else await _blanked(service, piece, query.sees)
    header = RawHeader(
        rows,
        len(segment),
        len(ledger),
        google_crc32c.value(piece.rows),
        piece.base,
        piece.first,
        piece.next,
        node.oldest,
        node.committed,
        node.last_user_index,
        is_brief,
        query.sees is not None,
    )
    return (encode_raw_header(header), piece.rows, segment, ledger), piece.next


async def _blanked(service: Service, piece: RawSlice, sees: Permissions) -> bytes:
    """Its segment without what the reader may not see."""
    try:
        return await asyncio.to_thread(blanked, piece.rows, piece.segment, piece.base, sees)
    except (Corrupt, UnknownVersion) as error:
        await service.node.read_log(piece.first, piece.next - piece.first, len(piece.segment))  # it reports damage
        raise ApiError(Code.INTERNAL, f"the log from index {piece.first} on is damaged here: {error}") from error


def _can_be_brief(ledger: bytes, rows: int) -> bool:
    """Whether each row is an entry's, and none has effects with a payload. Such effects differ only in their indexes,
    because an entry without payload has not changed the store."""
    return rows > 2 and len(ledger) == rows * FRAME_HEADER_SIZE and bare_frames(ledger, 0, rows) == rows


def _mark(service: Service, position: int, problem: Problem | None = None, *, is_raw: bool) -> bytes:
    """The position of the stream; a raw stream has no field for a problem."""
    node = service.node
    if is_raw:
        return encode_raw_header(
            RawHeader(0, 0, 0, 0, 0, position, position, node.oldest, node.committed, node.last_user_index)
        )
    progress = LogProgress(
        node.log_id, position, node.oldest, node.committed, node.last_user_index, node.applied, node.term, problem
    )
    return encode_json(progress) + b"\n"
