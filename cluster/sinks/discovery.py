"""Finds the columns of a sink that takes all members of its values, in its first records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

from raftlog.cluster.api.values import NUMBER_MAX
from raftlog.cluster.client.answers import Record
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.sinks.changes import StoreRow
from raftlog.cluster.sinks.columns import columns_of
from raftlog.cluster.sinks.mapping import MEMBERS, RESCUED, Misfit, RowMapping, SinkSource
from raftlog.cluster.sinks.runner import learn_schemas, records_between
from raftlog.cluster.sinks.settings import SinkSettings
from raftlog.cluster.sinks.store import StoreError

_SAMPLE_ROWS: Final = 1_000
SAMPLE_RECORDS: Final = 100_000


def found_columns(name: str, sink: SinkSettings, client: SyncClient) -> dict[str, str]:
    """The columns of a sink with columns = "all", by its first records. Raises StoreError, ClientError."""
    own = _own_columns(sink.source)
    of_key = {name: f"value.{name}" for name in sink.primary_key}
    mapping = RowMapping(sink.source, of_key | own | {MEMBERS: MEMBERS}, sink.primary_key)
    learn_schemas(mapping, client)
    rows = [row[-1] for row in islice(_first_rows(sink.source, mapping, client), _SAMPLE_ROWS)]
    if not rows and not mapping.imported:
        raise StoreError(
            f'{name}: the log has no record yet from which columns = "all" could be found: write one, or name the '
            f"columns"
        )
    found = columns_of(rows, sink.source.fraction) | mapping.imported
    for column in own:
        if column in found:
            raise StoreError(f"{name}: the values have a member {column}, as the sink's own column: name the columns")
    return own | found | ({RESCUED: f"{RESCUED}:json"} if sink.new_columns == "rescue" else {})


def first_records(client: SyncClient) -> Iterator[Record]:
    """The first records of the log, at most 100,000. Raises ClientError."""
    end = client.log_page(NUMBER_MAX, limit=1)
    return islice(records_between(client, end.oldest, end.last_user_index + 1), SAMPLE_RECORDS)


def _first_rows(source: SinkSource, mapping: RowMapping, client: SyncClient) -> Iterator[StoreRow]:
    """The rows of the keys as they are now, or of the first records. What does not fit is left out."""
    if source.has_keys:
        for item in client.range(prefix=(source.keys or "").encode()):
            with suppress(Misfit):
                yield mapping.of_item(item, 0).row or ()
        return
    for record in first_records(client):
        with suppress(Misfit):
            yield from (change.row for change in mapping.of_record(record).rows if change.row is not None)


def _own_columns(source: SinkSource) -> dict[str, str]:
    """The columns that name a row of the source beside the members of its value."""
    if source.has_keys:
        return {"key": "key:string"}
    return {} if source.table is not None else {"index": "index"}
