"""Answers `GET /v1/kv/{key}?versions=N`: the versions of a key from the log, the newest first, page by page.

Each change in the log has the index of the record that wrote the version before it: a page reads one entry a version.
"""

from __future__ import annotations

from typing import Final

from raftlog.cluster.api.encoding import Encoding
from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.api.kv import KeyVersion, KeyVersions
from raftlog.cluster.http.exchange.answer import HttpAnswer
from raftlog.cluster.http.exchange.call import Call
from raftlog.cluster.http.exchange.query import Query
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.http.routes.log import SLICE_BYTES
from raftlog.cluster.records.rows import both, cut, key_changes, whole_bytes
from raftlog.raft.types import Entry
from raftlog.statemachine import store
from raftlog.statemachine.digest import ChangeRow

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
        newest = node.machine.get(key, revision)
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
        entry, written, change, before = await _change_at(service, at, key)
        found.append(
            KeyVersion(
                at,
                entry.term,
                entry.time_ms,
                written,
                change.deleted,
                change.create,
                change.version,
                *both(cut(change.value, value_bytes), encoding),
                whole_bytes(change.value, value_bytes),
            )
        )
        size += len(found[-1].value or found[-1].value_b64 or "")
        call.hold_answer(service, size)
        at = before
    service.access.check_read(call, key)  # it may have been taken away meanwhile
    is_more = at >= node.oldest
    ends = "" if is_more else "trimmed" if at else "created"
    machine = node.machine
    return service.answer(KeyVersions(found, at if is_more else None, ends, machine.revision, node.applied, node.term))


async def _change_at(service: Service, index: int, key: bytes) -> tuple[Entry, int, ChangeRow, int]:
    """The entry that changed the key at that index, the revision, the change, and where the version before is."""
    for entry, effects in await service.node.read_log(index, 1, SLICE_BYTES):
        for at, revision, changes in key_changes(entry, effects, index, key, store.next_key(key)):
            if at == index:
                return entry, revision, *changes[-1]
    raise ApiError(Code.BAD_REQUEST, f"the record at {index} changed no such key: take from= from a page before")
