"""Makes the pages of log and keys that a sink's runner asks of a node, as the server's routes do."""

from __future__ import annotations

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.client.answers import Item, LogPage, Page, Record, record
from raftlog.cluster.records.rows import as_record, decode_rows, is_user_row
from raftlog.cluster.replica.replica import Replica
from raftlog.statemachine.store import RevisionCompacted


async def log_page(start: int, limit: int, server: Replica) -> LogPage:
    """A page as `raftlog.cluster.http.routes.log` gives it."""
    records: list[Record] = []
    next = start
    for entry, effects in await server.read_log(start, limit, 1 << 16) if start <= server.applied else ():
        for row in decode_rows(entry, effects, next):
            if len(records) < limit:
                next = row.index + 1
                records += [record(as_record(row))] if is_user_row(row) else []
    return LogPage("log", tuple(records), next, server.oldest, server.committed, server.last_user_index)


async def keys_page(start: bytes, end: bytes, limit: int, at: int | None, deadline: float, server: Replica) -> Page:
    """A page as `raftlog.cluster.http.routes.kv` gives it."""
    await server.read_barrier(deadline)
    machine = server.machine
    revision = machine.revision if at is None else at
    try:
        found, count, more = machine.range(start, end, limit, revision)
    except RevisionCompacted as error:
        raise ApiError(Code.COMPACTED, str(error)) from error
    items = tuple(Item(key, each.value, each.create, each.mod, each.version) for key, each in found)
    return Page(items, count, "more" if more else None, revision, machine.applied_index)
