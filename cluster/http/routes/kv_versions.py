"""Answers `GET /v1/kv/{key}?versions=N`: the versions of a key from the log, the newest first, page by page.

Each change in the log has the index of the record that wrote the version before it: a page reads one entry a version.
"""

from __future__ import annotations

from base64 import b64decode
from typing import Final

from raftlog.cluster.api.encoding import Encoding
from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.api.kv import KeyVersion, KeyVersions
from raftlog.cluster.api.records import ChangeJson, WatchMessage
from raftlog.cluster.http.exchange.answer import HttpAnswer
from raftlog.cluster.http.exchange.call import Call
from raftlog.cluster.http.exchange.query import Query
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.http.routes.log import SLICE_BYTES
from raftlog.cluster.records.rows import both, cut, watch_messages, whole_bytes
from raftlog.statemachine import store

VERSIONS_MAX: Final = 100
"""Most versions in one answer. Each may be as large as a value, and answers have a budget."""


async def read_versions(
    service: Service, call: Call, query: Query, key: bytes, revision: int | None, encoding: Encoding
) -> HttpAnswer:
    """One page, from the record at `from`, or from the newest version (as of the revision) on. Raises ApiError."""
    node, limit = service.node, query.number_or("versions", 1, 1, VERSIONS_MAX)
    service.access.check_read(call, key)
    at, value_bytes = query.number_or("from", 0, 1), query.number("value_bytes")
    if at and revision is not None:
        raise ApiError(Code.BAD_REQUEST, "both from and at are given with versions: give one")
    if not at:
        try:
            newest = node.machine.get(key, revision)
        except (store.RevisionCompacted, store.FutureRevision) as error:
            raise unreadable(error) from error
        if newest is None:
            raise ApiError(
                Code.KEY_NOT_FOUND,
                "there is no such key then: for its other versions name a record that wrote or deleted it (from=)",
                index=node.applied,
                term=node.term,
                revision=node.machine.revision,
            )
        at = newest.index
    if at > node.applied:
        raise ApiError(Code.FUTURE_INDEX, f"from is {at}, and this node has applied the log up to {node.applied}")
    found: list[KeyVersion] = []
    size = 0
    while len(found) < limit and size < service.limits.page_bytes_max and at >= node.oldest:
        change, message = await _change_at(service, at, key)
        value = None if change.value_b64 is None else b64decode(change.value_b64)
        found.append(
            KeyVersion(
                message.index,
                message.term,
                message.time_ms,
                message.revision,
                change.deleted,
                change.create,
                change.version,
                *both(cut(value, value_bytes), encoding),
                whole_bytes(value, value_bytes),
            )
        )
        size += len(found[-1].value or found[-1].value_b64 or "")
        if not call.hold_answer(service, size):
            raise service.load.answers.full()
        at = change.prior_index or 0
    service.access.check_read(call, key)  # it may have been taken away meanwhile
    is_more = at >= node.oldest
    ends = "" if is_more else "trimmed" if at else "created"
    machine = node.machine
    return service.answer(KeyVersions(found, at if is_more else None, ends, machine.revision, node.applied, node.term))


async def _change_at(service: Service, index: int, key: bytes) -> tuple[ChangeJson, WatchMessage]:
    """The change of the key by the record at that index, its value in base64."""
    for entry, effects in await service.node.read_log(index, 1, SLICE_BYTES):
        for message in watch_messages(entry, effects, index, key, store.next_key(key), "base64"):
            if message.index == index:
                return message.changes[-1], message
    raise ApiError(Code.BAD_REQUEST, f"the record at {index} changed no such key: take from= from a page before")


def unreadable(error: store.RevisionCompacted | store.FutureRevision) -> ApiError:
    """The error for a revision that cannot be read: 410 or 425."""
    if isinstance(error, store.RevisionCompacted):
        return ApiError(Code.COMPACTED, str(error), revision=error.oldest)
    return ApiError(Code.FUTURE_INDEX, str(error), revision=error.newest)
