"""Handles `GET /v1/watch`: changes of keys as they are applied, from any retained index, as events or NDJSON.

Catch-up and live changes are one loop over the log, so no change can be lost or sent twice between them
(pitfall 80: changes lost at the edge of a compaction).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Final

from raftlog.cluster.api.encoding import Encoding
from raftlog.cluster.api.errors import ApiError, Code, Problem
from raftlog.cluster.api.headers import H_NEXT, NDJSON, SSE
from raftlog.cluster.api.records import WatchMessage, WatchProgress
from raftlog.cluster.http.exchange.answer import encode_json
from raftlog.cluster.http.exchange.call import READ_PARAMETERS, Call, read_index
from raftlog.cluster.http.exchange.follow import Piece
from raftlog.cluster.http.exchange.query import check_key, parse_number
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.http.exchange.stream import Stream
from raftlog.cluster.http.routes.kv import encoding_of
from raftlog.cluster.http.routes.log import SLICE_BYTES, SLICE_RECORDS, check_oldest
from raftlog.cluster.records.rows import watch_messages
from raftlog.statemachine import store
from raftlog.statemachine.access.grants import Grant, Resource, Verb

_FORMATS: Final = ("sse", "ndjson")
_PARAMETERS: Final = READ_PARAMETERS | {
    "prefix",
    "prefix_b64",
    "key",
    "key_b64",
    "from",
    "from_revision",
    "format",
    "encoding",
}

_PAUSE_MESSAGES: Final = 500
"""Messages encoded without a pause of the event loop: some milliseconds."""


@dataclass(frozen=True, slots=True)
class _Watch:
    start: bytes
    end: bytes
    position: int
    from_revision: int
    is_sse: bool
    encoding: Encoding


async def watch(service: Service, call: Call) -> Stream:
    """Sends the whole stream. It ends with the connection, with the node, or at a compacted index."""
    asked = await _parse(service, call)
    position = asked.position
    grant = Grant(Verb.READ, Resource.KEYS, asked.start, asked.end)
    service.access.check(call, grant)
    check_oldest(service, position)
    progress_s = service.limits.progress_ms / 1000
    with Stream(service, call) as stream:
        stream.start(SSE if asked.is_sse else NDJSON, ((H_NEXT, str(position)),))
        mark_due = service.clock()  # at once: the watcher learns where it stands
        try:
            while True:
                if service.clock() >= mark_due:
                    await stream.write(_mark(asked, position))
                    mark_due = service.clock() + progress_s
                before = position
                size = SLICE_BYTES if position <= service.node.applied else 0
                data, following = await stream.made(partial(_slice, service, asked, position), size)
                service.access.look(call, grant)  # after the wait for room and disk
                position = following
                if data:
                    await stream.write(*data)
                if position == before:
                    await service.wait_beyond(position - 1, service.access.until(call, mark_due))
                elif not data:
                    await asyncio.sleep(0)  # yields in a long range without changes of these keys
        except ApiError as error:
            stream.fail(error, position, partial(_mark, asked))
    return stream


async def _parse(service: Service, call: Call) -> _Watch:
    query = call.query(_PARAMETERS)
    prefix, key = query.bound("prefix"), query.data("key")
    if prefix is not None and key is not None:
        raise ApiError(Code.BAD_REQUEST, "both prefix and key are given: give one")
    if key is not None:
        start, end = check_key(key), store.next_key(key)
    else:
        start, end = prefix or b"", store.prefix_end(prefix or b"")
    position, from_revision = query.number("from", 1), query.number("from_revision", 1)
    if position is not None and from_revision is not None:
        raise ApiError(Code.BAD_REQUEST, "both from and from_revision are given: give one")
    form = query.choice("format", _FORMATS, Code.NOT_ACCEPTABLE)
    encoding = encoding_of(query)
    last = call.headers.get("Last-Event-ID")
    await read_index(service, call, query)
    if last is not None:  # a reconnecting browser repeats the URL, so the header wins
        position, from_revision = parse_number(last, "header Last-Event-ID") + 1, None
    machine = service.node.machine
    if from_revision is not None:
        from_revision = max(from_revision, 2)  # revision 1 is the empty store, which no request made
    if from_revision is not None and from_revision <= machine.revision:
        position = machine.index_of(from_revision)
    if position is None:
        position = service.node.applied + 1
    return _Watch(start, end, position, from_revision or 0, form == "sse", encoding)


async def _slice(service: Service, asked: _Watch, position: int) -> Piece:
    """The messages of the next entries, as bytes, and the index after them."""
    check_oldest(service, position)
    if position > service.node.applied:
        return (), position
    parts: list[bytes] = []
    following = position
    encoded = 0
    for entry, effects in await service.node.read_log(position, SLICE_RECORDS, SLICE_BYTES):
        for message in watch_messages(entry, effects, position, asked.start, asked.end, asked.encoding):
            if message.revision >= asked.from_revision:
                parts.append(_message(asked, message))
                encoded += 1
                if encoded % _PAUSE_MESSAGES == 0:
                    await asyncio.sleep(0)
        following = entry.index + 1
    return (b"".join(parts),) if parts else (), following


def _message(asked: _Watch, message: WatchMessage) -> bytes:
    if asked.is_sse:
        return b"id: %d\ndata: %b\n\n" % (message.index, encode_json(message))
    return encode_json(message) + b"\n"


def _mark(asked: _Watch, position: int, problem: Problem | None = None) -> bytes:
    data = encode_json(WatchProgress(position - 1, problem))
    if asked.is_sse:
        return b"id: %d\nevent: %b\ndata: %b\n\n" % (position - 1, b"problem" if problem else b"progress", data)
    return data + b"\n"
