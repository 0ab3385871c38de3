"""Logs with imports in them: the schema under its key, then the records of its session, as `raftlog import` writes."""

from collections.abc import Sequence

from raftlog.cluster.importer.formats.dialect import Dialect
from raftlog.cluster.importer.formats.lines import InputColumn, InputFormat
from raftlog.cluster.importer.formats.schema import Schema, encode, key_of
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.statemachine.commands import Operation
from tests.spark_export import logs


def schema(
    values: str, *columns: tuple[str, str], source: str = "quakes.csv", dialect: Dialect | None = None
) -> Schema:
    """A schema with these columns."""
    return Schema(
        version=1,
        source=source,
        format=InputFormat.CSV if values == "csv" else InputFormat.NDJSON,
        values=values,
        columns=tuple(InputColumn(*column) for column in columns),
        dialect=dialect,
    )


def add_import(log: logs.RealLog, stored: Schema, *batches: Sequence[bytes | BlockRecord], repeat: bool = False) -> int:
    """Opens a session, puts the schema, appends each batch of values as one request; with `repeat` each twice."""
    log.commit(encode_block([BlockRecord(Operation.SESSION_OPEN, argument=60_000)]))
    session = log.last.index
    requests = [[BlockRecord(Operation.PUT, key_of(session), encode(stored))]]
    requests += [
        [each if isinstance(each, BlockRecord) else BlockRecord(Operation.APPEND, None, each) for each in batch]
        for batch in batches
    ]
    for sequence, records in enumerate(requests, start=1):
        block = encode_block(records, session=session, sequence=sequence, settled=1)
        for _ in range(2 if repeat and sequence > 1 else 1):
            log.commit(block)
    return session


def appended(*values: bytes | BlockRecord) -> logs.RealLog:
    """A log of appends without an import, one request each."""
    log = logs.RealLog()
    for each in values:
        record = each if isinstance(each, BlockRecord) else BlockRecord(Operation.APPEND, None, each)
        log.commit(encode_block([record]))
    return log
