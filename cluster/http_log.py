"""`GET /v1/log`: one page of committed records as JSON or msgpack, at once or after a long poll.

Streams of the same records (NDJSON, raw, follow) are in `http_log_stream`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from cluster import wire
from cluster.http_answer import Answer, encode_json, encode_msgpack
from cluster.http_call import READ_PARAMETERS, Call, Service, answers_full, decode, read_index
from cluster.http_outcomes import submit
from cluster.log_reader import compacted
from cluster.records import as_packed, as_record, decode_rows, is_user_row, plain_json, row_bytes
from cluster.wire import (
    NUMBER_MAX,
    ApiError,
    Code,
    Encoding,
    LogPage,
    LogPagePacked,
    Outcome,
    Trimmed,
)
from raft.codec import Record
from raft.types import Entry
from statemachine.commands import Operation
from statemachine.effects import Effects

FORMATS: Final = ("json", "ndjson", "msgpack", "raw")
ENCODINGS: Final = ("auto", "base64")
EFFECTS: Final = ("whole", "brief")
PARAMETERS: Final = READ_PARAMETERS | {
    "from", "to", "from_time", "limit", "wait", "format", "follow", "internal", "encoding", "effects",
}  # fmt: skip
SLICE_RECORDS: Final = 1_000
"""Records decoded row by row without a pause of the event loop: some milliseconds,"""
PLAIN_RECORDS: Final = 4_000
"""and those that are nothing but a value, less than a microsecond each."""
SLICE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class LogQuery:
    """What a reader of the log asks for."""

    start: int
    stop: int  # exclusive
    limit: int  # records scanned
    wait_ms: int
    format: str
    encoding: Encoding
    with_internal: bool
    is_follow: bool
    are_effects_brief: bool  # in raw chunks, where they can be


@dataclass(slots=True)
class Scan:
    """Some records that a reader asked for, each as JSON or, for msgpack, as what is packed."""

    next: int  # behind the last one scanned
    shown: list[Any] = field(default_factory=list)
    scanned: int = 0
    decoded: int = 0  # row by row
    size: int = 0  # as `row_bytes` counts


async def parse_log_query(service: Service, call: Call) -> LogQuery:
    """The query, after the wait that its consistency asks for. Raises ApiError."""
    query = call.query(PARAMETERS)
    limits = service.limits
    form = query.choice("format", FORMATS, Code.NOT_ACCEPTABLE)
    is_stream = form in ("ndjson", "raw")
    is_follow = query.flag("follow")
    if is_follow and not is_stream:
        raise ApiError(Code.BAD_REQUEST, f"follow=true is for format=ndjson and format=raw, not for {form}")
    are_effects_brief = query.choice("effects", EFFECTS) == "brief"
    if are_effects_brief and form != "raw":
        raise ApiError(Code.BAD_REQUEST, f"effects=brief is for format=raw, not for {form}")
    if "from" in query and "from_time" in query:
        raise ApiError(Code.BAD_REQUEST, "both from and from_time are given: give one")
    wait_ms = query.number_or("wait", 0, 0, limits.wait_max_ms)
    start = query.number("from", 1)
    from_time = query.number("from_time")
    stop = query.number_or("to", NUMBER_MAX, 1)
    limit = query.number_or(
        "limit",
        NUMBER_MAX if is_stream else min(1_000, limits.page_records_max),
        1,
        NUMBER_MAX if is_stream else limits.page_records_max,
    )
    with_internal = query.flag("internal")
    encoding: Encoding = "base64" if query.choice("encoding", ENCODINGS) == "base64" else "auto"
    await read_index(service, call, query)
    if from_time is not None:
        start = await service.node.find_time(from_time)
    if start is None:
        start = service.node.oldest
    return LogQuery(start, stop, limit, wait_ms, form, encoding, with_internal, is_follow, are_effects_brief)


async def scan(service: Service, query: LogQuery, start: int, left: int, bytes_max: int) -> Scan:
    """The next slice: at most `left` records from `start` on, and not many more than `bytes_max` bytes of them.

    Nothing is scanned where nothing is there yet. Raises ApiError compacted below the oldest index.
    """
    node = service.node
    check_oldest(service, start)
    found = Scan(start)
    end = min(start + min(left, PLAIN_RECORDS), query.stop, node.applied + 1)
    if end <= start:
        return found
    for entry, effects in await node.read_log(start, end - start, SLICE_BYTES):
        if found.next >= end or found.size >= bytes_max or not _take(found, query, entry, effects, end, bytes_max):
            break
    found.scanned = found.next - start
    return found


def _take(found: Scan, query: LogQuery, entry: Entry, effects: Effects, end: int, bytes_max: int) -> bool:
    """Takes what is wanted of one more entry; whether another one may follow."""
    if query.format != "msgpack":
        lines = plain_json(entry, effects, found.next, end - found.next, bytes_max - found.size, query.encoding)
        if lines is not None:
            found.shown += lines[0]
            found.size += lines[1]
            found.next += len(lines[0])
            return True
    stop = min(end, found.next + SLICE_RECORDS - found.decoded)
    for row in decode_rows(entry, effects, found.next):
        if row.index >= stop or found.size >= bytes_max:
            return False
        found.next = row.index + 1
        found.decoded += 1
        if query.with_internal or is_user_row(row):
            shown = as_packed(row) if query.format == "msgpack" else encode_json(as_record(row, query.encoding))
            found.shown.append(shown)
            found.size += row_bytes(row)
    return True


async def read_page(service: Service, call: Call, query: LogQuery) -> Answer:
    """One page; one that would be empty waits for up to `wait` ms for a record to show."""
    wait_until = service.clock() + query.wait_ms / 1000
    shown: list[Any] = []
    position, left, bytes_left, size = query.start, query.limit, service.limits.page_bytes_max, 0
    while left > 0 and bytes_left > 0 and position < query.stop:
        found = await scan(service, query, position, left, bytes_left)
        position = found.next
        left -= found.scanned
        bytes_left -= found.size
        shown += found.shown
        size += found.size if query.format == "msgpack" else sum(map(len, found.shown))  # JSON may take six times more
        if not call.hold_answer(service, size):
            raise answers_full(service.answers)
        if found.scanned:
            await asyncio.sleep(0)  # one slice at a time: nobody waits for a whole page to be decoded
        elif shown or service.clock() >= wait_until:
            break
        else:
            await service.wait_beyond(position - 1, wait_until)
    node = service.node
    marks = (position, node.oldest, node.committed, node.last_user_index, node.applied, node.term)
    if query.format == "msgpack":
        body, content_type = encode_msgpack(LogPagePacked(node.log_id, shown, *marks)), wire.MSGPACK
    else:
        start, end = encode_json(LogPage(node.log_id, [], *marks)).split(b'"records":[]', 1)
        body, content_type = b'%b"records":[%b]%b\n' % (start, b",".join(shown), end), wire.JSON
    return Answer(
        service.identity, body, node.applied, node.term, content_type=content_type,
        extra=((wire.H_NEXT, str(position)),),
    )  # fmt: skip


def check_oldest(service: Service, index: int) -> None:
    """Raises ApiError compacted for an index below the oldest: the cluster's, which is the same on every node."""
    node = service.node
    if index < node.oldest:
        raise compacted(node.node_id, index, node.oldest)


_TRIM_BODY: Final = msgspec.json.Decoder(wire.TrimIn)


_FREED_LATER: Final = (
    "no disk space is freed yet: each node deletes its whole segments below index {} by itself, as soon as both "
    "snapshots that it keeps are past them and no follower needs them; raftlog_log_bytes in /metrics shows it"
)


async def trim(service: Service, call: Call) -> Answer:
    """Lets the records below an index go, on every node; what is no longer needed is deleted."""
    call.query()
    body = decode(_TRIM_BODY, await call.body(service), "the body as JSON")
    done = await submit(service, call, (Record(int(Operation.TRIM), argument=body.before),))
    oldest = service.node.machine.oldest
    answer = Trimmed(Outcome.APPLIED, oldest, done.last, done.term, _FREED_LATER.format(oldest))
    return service.answer(answer, done.last, done.term)
