"""Sends the rejected changes of a sink to its store again, without undoing what later records did to the same rows."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from raftlog.cluster.client.answers import Record
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.sinks.changes import RowChange, RowChanges, StorePosition, StoreRow, fold_change
from raftlog.cluster.sinks.kept_files import Rejected, Rejects
from raftlog.cluster.sinks.mapping import Misfit, RowMapping
from raftlog.cluster.sinks.runner import learn_schemas, records_between
from raftlog.cluster.sinks.settings import SinkSettings
from raftlog.cluster.sinks.store import RowsRefused, SinkStore, StoreError, shown_key


class RetryCounts(msgspec.Struct, frozen=True):
    """How many rejected changes the store has now, or no longer needs, and how many stay rejected."""

    retried: int
    left: int


def retry(
    name: str, sink: SinkSettings, store: SinkStore, client: SyncClient, rejects: Rejects, *, owner: str = ""
) -> RetryCounts:
    """Writes the rejected changes, each as the log has its row at the store's position. Those that still do not fit
    stay rejected, with today's reason. A runner of the sink stops. Killed, it may be repeated.

    Raises StoreError, ClientError, OSError.
    """
    before = rejects.read()
    if not before:
        return RetryCounts(0, 0)
    mapping = sink.mapping()
    learn_schemas(mapping, client)
    generation = client.consumer(f"sink/{name}").claim(owner=owner).generation
    try:
        position = store.open(sink.identity(name, client.status().log), generation)
        if position is None or position.loaded is not None:
            raise StoreError(f"the store of {name} is not filled yet: raftlog sink run")
        changes = _RetriedChanges(mapping, {each.index for each in before})
        changes.read(client, position.next)
        left = changes.left | _written(store, changes.rows, position)
    finally:
        store.close()
    rejects.replace([Rejected(index, key, reason) for index, (key, reason) in sorted(left.items())])
    return RetryCounts(len({each.index for each in before} - left.keys()), len(left))


def _written(store: SinkStore, rows: dict[StoreRow, RowChange], position: StorePosition) -> dict[int, tuple[str, str]]:
    """Writes the rows. Returns those that the store refuses."""
    refused = {}
    while rows:
        try:
            store.write(RowChanges(tuple(rows.values())), position, position)
            break
        except RowsRefused as error:
            for change, reason in error.refusals:
                refused[change.index] = (shown_key(change.key), reason)
                del rows[change.key]
    return refused


class _RetriedChanges:
    """The newest changes of the rows that rejected records change; and of the records that still do not fit, why."""

    def __init__(self, mapping: RowMapping, indexes: Iterable[int]) -> None:
        self.rows: dict[StoreRow, RowChange] = {}
        self.left: dict[int, tuple[str, str]] = {}
        self._mapping = mapping
        self._indexes = frozenset(indexes)

    def read(self, client: SyncClient, end: int) -> None:
        """Reads the log from the first rejected record up to the index `end`."""
        oldest = client.log_page(end, to=end + 1, limit=1).oldest
        for index in self._indexes:
            if index < oldest:
                self.left[index] = ("", f"the log begins at index {oldest} by now: raftlog sink rebuild")
        for record in records_between(client, max(min(self._indexes), oldest), end):
            self._take(record)

    def _take(self, record: Record) -> None:
        is_rejected = record.index in self._indexes
        try:
            mapped = self._mapping.of_record(record)
        except Misfit as error:
            if is_rejected:
                self.left[record.index] = ((error.key or b"").decode("utf-8", "backslashreplace"), error.reason)
            return
        if mapped.truncates:
            self.rows.clear()
        for change in mapped.rows:
            if is_rejected or change.key in self.rows:
                fold_change(self.rows, change)
