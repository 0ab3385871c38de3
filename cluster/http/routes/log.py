"""Handles `GET /v1/log` for one page: committed records as JSON or msgpack, at once or after a long poll.

`raftlog.cluster.http.routes.log_stream` streams the same records (NDJSON, raw, follow).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import msgspec

from raftlog.cluster.admission.access import READ_ALL, reads_all
from raftlog.cluster.api.encoding import Encoding
from raftlog.cluster.api.errors import ApiError, Code, Outcome
from raftlog.cluster.api.headers import H_NEXT, JSON, MSGPACK
from raftlog.cluster.api.records import LogPageJson, LogPagePacked, TrimAnswer, TrimIn
from raftlog.cluster.api.values import NUMBER_MAX
from raftlog.cluster.http.exchange.answer import HttpAnswer, encode_json, encode_msgpack
from raftlog.cluster.http.exchange.body import decode, read_body
from raftlog.cluster.http.exchange.call import READ_PARAMETERS, Call, long_wait, read_index
from raftlog.cluster.http.exchange.outcomes import submit
from raftlog.cluster.http.exchange.query import Query, parse_number
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.records.log_filter import LogFilter
from raftlog.cluster.records.rows import (
    KINDS,
    OPERATIONS,
    as_packed,
    as_record,
    decode_rows,
    is_user_row,
    is_visible,
    plain_count,
    plain_json,
    principals,
    row_bytes,
)
from raftlog.cluster.replica.log.log_reader import compacted
from raftlog.raft.codec.block import BlockRecord
from raftlog.raft.types import Entry
from raftlog.statemachine.access import needs
from raftlog.statemachine.access.permissions import Permissions
from raftlog.statemachine.commands import Operation
from raftlog.statemachine.effects import Effects

FORMATS: Final = ("json", "ndjson", "msgpack", "raw")
ENCODINGS: Final = ("auto", "base64")
EFFECTS: Final = ("whole", "brief")
FILTERS: Final = ("operation", "prefix", "prefix_b64", "session", "user", "header")
SESSIONS_MAX: Final = 100
"""Most sessions that one request may name."""
PARAMETERS: Final = READ_PARAMETERS | {
    "from",
    "to",
    "from_time",
    "limit",
    "wait",
    "format",
    "follow",
    "internal",
    "encoding",
    "effects",
    "value_bytes",
    "page_bytes",
    *FILTERS,
}
SLICE_RECORDS: Final = 1_000
"""Records decoded row by row without a pause of the event loop: some milliseconds,"""
PLAIN_RECORDS: Final = 4_000
"""and of records that are nothing but a value, less than a microsecond each."""
SLICE_BYTES: Final = 1 << 20
STREAMS: Final = ("ndjson", "raw")


@dataclass(frozen=True, slots=True)
class LogPart:
    """What a reader leaves out: followers of equal parts share what they get."""

    are_effects_brief: bool = False  # in raw chunks, if possible
    value_bytes: int | None = None  # of JSON: longer values are cut
    wanted: LogFilter | None = None  # None: every record
    page_bytes: int = 0  # of a page; 0: limits.page_bytes_max


_WHOLE: Final = LogPart()
_OF_PART: Final = ("effects", "value_bytes", "page_bytes", *FILTERS)


@dataclass(frozen=True, slots=True)
class LogQuery:
    start: int
    stop: int  # the index after the last requested one
    limit: int  # most records to show; of a raw stream to scan
    wait_ms: int
    format: str
    encoding: Encoding
    with_internal: bool
    is_follow: bool
    part: LogPart
    sees: Permissions | None = None  # of a reader that may not see every record; None: it may


@dataclass(slots=True)
class Scan:
    """A part of the requested records: as JSON, or as values for msgpack."""

    next: int  # the index after the last scanned one
    shown: list[Any] = field(default_factory=list)
    scanned: int = 0
    decoded: int = 0  # records decoded row by row
    size: int = 0  # as `row_bytes` counts


async def parse_log_query(service: Service, call: Call) -> LogQuery:
    """The query, after the wait for its consistency. Raises ApiError."""
    query = call.query(PARAMETERS)
    limits = service.limits
    form = query.choice("format", FORMATS, Code.NOT_ACCEPTABLE)
    is_stream = form in STREAMS
    is_follow = query.flag("follow")
    if is_follow and not is_stream:
        raise ApiError(Code.BAD_REQUEST, f"follow=true is for format=ndjson and format=raw, not for {form}")
    part = _part(query, form, limits.page_bytes_max) if query.has_any(_OF_PART) else _WHOLE
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
    asked = LogQuery(start, stop, limit, wait_ms, form, encoding, with_internal, is_follow, part)
    return replace(asked, sees=_sight(service, call, asked)) if service.node.machine.access.is_on else asked


def _part(query: Query, form: str, page_bytes_max: int) -> LogPart:
    """Raises ApiError."""
    are_effects_brief = query.choice("effects", EFFECTS) == "brief"
    if are_effects_brief and form != "raw":
        raise ApiError(Code.BAD_REQUEST, f"effects=brief is for format=raw, not for {form}")
    value_bytes = query.number("value_bytes")
    if value_bytes is not None and form != "json":
        raise ApiError(Code.BAD_REQUEST, f"value_bytes is for format=json, not for {form}")
    page_bytes = query.number_or("page_bytes", 0, 1, page_bytes_max)
    if page_bytes and form in STREAMS:
        raise ApiError(Code.BAD_REQUEST, f"page_bytes is for the pages of json and msgpack, not for {form}")
    return LogPart(are_effects_brief, value_bytes, _filter(query, form), page_bytes)


def _filter(query: Query, form: str) -> LogFilter | None:
    """The records that the reader asks for. Raises ApiError."""
    given = [name for name in FILTERS if name in query]
    if not given:
        return None
    if form == "raw":
        raise ApiError(Code.BAD_REQUEST, f"{given[0]} is not for format=raw, which sends whole entries")
    operation = query.choice("operation", ("", *OPERATIONS.values(), *KINDS.values())) or None
    if "user" in query and not query.flag("internal"):
        raise ApiError(Code.BAD_REQUEST, "user needs internal=true: only then records have their users")
    sessions = query.text("session").split(",") if "session" in query else []
    if len(sessions) > SESSIONS_MAX:
        raise ApiError(Code.BAD_REQUEST, f"session names {len(sessions)} sessions: the limit is {SESSIONS_MAX}")
    name, equals, value = query.text("header").partition("=")
    return LogFilter(
        operation,
        query.bound("prefix"),
        frozenset(parse_number(each, "parameter session", 1) for each in sessions),
        query.text("user") if "user" in query else None,
        (name, value.encode() if equals else None) if "header" in query else None,
    )


def looked_again(service: Service, call: Call, query: LogQuery) -> LogQuery:
    """The query, with what the reader may see now. Raises ApiError once it may not read the log any more."""
    return replace(query, sees=_sight(service, call, query)) if service.access.has_changed(call) else query


def _sight(service: Service, call: Call, query: LogQuery) -> Permissions | None:
    access = service.access
    permissions = access.permissions(call)
    if permissions is None:
        return None
    if query.format == "raw":  # holds records of every key: a part of them cannot be left out
        access.check(call, *READ_ALL)
        return None if needs.sees_segments(permissions) else permissions
    access.check(call, needs.READ_LOG)
    wanted = query.part.wanted
    if wanted is not None and wanted.user is not None:
        access.check(call, needs.OPERATE)  # only then records have their users
    is_whole = not query.with_internal and reads_all(permissions)
    return None if is_whole else permissions


async def scan(
    service: Service, query: LogQuery, start: int, left: int, bytes_max: int, scan_max: int = PLAIN_RECORDS
) -> Scan:
    """The next slice: at most `left` records that the reader sees, with about `bytes_max` bytes at most.

    Empty if there is no record yet. Raises ApiError compacted below the oldest index.
    """
    node = service.node
    found = Scan(start)
    end = min(start + min(scan_max, PLAIN_RECORDS), query.stop, node.applied + 1)
    if end <= start:
        check_oldest(service, start)  # as the node does for reads from the disk
        return found
    async with service.scans:
        for entry, effects in await node.read_log(start, min(end - start, max(left, SLICE_RECORDS)), SLICE_BYTES):
            if found.next >= end or found.size >= bytes_max or len(found.shown) >= left:
                break
            if not _take(found, query, entry, effects, end, left, bytes_max):
                break
    found.scanned = found.next - start
    return found


def _take(found: Scan, query: LogQuery, entry: Entry, effects: Effects, end: int, left: int, bytes_max: int) -> bool:
    """Takes the requested records of one more entry. Returns whether another entry may follow."""
    shows_users = query.with_internal and (query.sees is None or needs.sees_members(query.sees))
    names = principals(entry) if shows_users else {}
    wanted, value_bytes = query.part.wanted, query.part.value_bytes
    if wanted is not None and (skipped := _left_out(wanted, entry, effects, found.next, end)):
        found.next += skipped
        return True
    if wanted is None and query.format != "msgpack" and value_bytes is None and not names:
        count = min(end - found.next, left - len(found.shown))
        lines = plain_json(entry, effects, found.next, count, bytes_max - found.size, query.encoding)
        if lines is not None:
            found.shown += lines[0]
            found.size += lines[1]
            found.next += len(lines[0])
            return True
    stop = min(end, found.next + SLICE_RECORDS - found.decoded)
    for row in decode_rows(entry, effects, found.next):
        if row.index >= stop or found.size >= bytes_max or len(found.shown) >= left:
            return False
        found.next = row.index + 1
        found.decoded += 1
        if not (query.with_internal or is_user_row(row)) or not (query.sees is None or is_visible(row, query.sees)):
            continue
        if wanted is None or wanted.takes(row, names.get(row.index)):
            if query.format == "msgpack":
                found.shown.append(as_packed(row))
            else:
                record = as_record(row, query.encoding, value_bytes, names.get(row.index))
                found.shown.append(encode_json(record))
            found.size += row_bytes(row) if value_bytes is None else len(found.shown[-1])
    return True


def _left_out(wanted: LogFilter, entry: Entry, effects: Effects, first: int, end: int) -> int:
    """How many records of the entry from index `first` on do not pass, without a look at each; 0 if one may."""
    count = min(end, entry.index + 1) - first
    if wanted.leaves_out(entry, effects):
        return count
    return 0 if wanted.takes_values else plain_count(entry, effects, first, count)


async def read_page(service: Service, call: Call, query: LogQuery) -> HttpAnswer:
    """One page. An empty page waits up to `wait` ms for a record."""
    wait_until = service.clock() + query.wait_ms / 1000
    shown: list[Any] = []
    bytes_left = query.part.page_bytes or service.limits.page_bytes_max
    position, left, size = query.start, query.limit, 0
    scanned, scan_max = 0, service.limits.page_scan_max
    while left > 0 and bytes_left > 0 and position < query.stop and scanned < scan_max:
        if service.node.machine.access.is_on:
            query = looked_again(service, call, query)
        found = await scan(service, query, position, left, bytes_left, scan_max - scanned)
        position = found.next
        left -= len(found.shown)
        scanned += found.scanned
        bytes_left -= found.size
        shown += found.shown
        size += found.size if query.format == "msgpack" else sum(map(len, found.shown))  # JSON may be six times larger
        call.hold_answer(service, size)
        if found.scanned:
            if left > 0:
                await asyncio.sleep(0)  # yields after each slice: other requests must not wait for a whole page
        elif shown or service.clock() >= wait_until:
            break
        else:
            wait = partial(service.wait_beyond, position - 1, service.access.until(call, wait_until))
            await long_wait(service, call, wait)
    node = service.node
    marks = (position, node.oldest, node.committed, node.last_user_index, node.applied, node.term)
    if query.format == "msgpack":
        body, content_type = encode_msgpack(LogPagePacked(node.log_id, shown, *marks)), MSGPACK
    else:
        start, end = encode_json(LogPageJson(node.log_id, [], *marks)).split(b'"records":[]', 1)
        body, content_type = b'%b"records":[%b]%b\n' % (start, b",".join(shown), end), JSON
    extra = ((H_NEXT, str(position)),)
    return HttpAnswer(service.identity, body, node.applied, node.term, content_type=content_type, extra=extra)


def check_oldest(service: Service, index: int) -> None:
    """Raises ApiError compacted for an index below the cluster's oldest one, which is equal on every node."""
    node = service.node
    if index < node.oldest:
        raise compacted(node.node_id, index, node.oldest)


_TRIM_BODY: Final = msgspec.json.Decoder(TrimIn)


_FREED_LATER: Final = (
    "no disk space is freed yet: each node deletes its whole segments below index {} by itself, as soon as both "
    "snapshots that it keeps are past them and no follower needs them; raftlog_log_bytes in /metrics shows it"
)


async def trim(service: Service, call: Call) -> HttpAnswer:
    """Allows the records below an index to be deleted, on every node."""
    call.query()
    body = decode(_TRIM_BODY, await read_body(service, call), "the body as JSON")
    done = await submit(service, call, (BlockRecord(int(Operation.TRIM), argument=body.before),))
    oldest = service.node.machine.oldest
    answer = TrimAnswer(Outcome.APPLIED, oldest, done.last, done.term, _FREED_LATER.format(oldest))
    return service.answer(answer, done.last, done.term)
