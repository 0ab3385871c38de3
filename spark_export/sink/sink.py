"""Writes rows as records or keys: `df.write.format("raftlog")` and `df.writeStream.format("raftlog")`.

The columns are `value` and maybe `key`, `headers` and `client_time`, each as the source has them; text is taken as
UTF-8. With `valueFormat` they are a user's own (`rows.py`). Tasks write by themselves (`session.py`), each row exactly
once: of a streaming query by its id, the batch and the partition; of a batch write by its `writeId`, or one of its own,
with which a repeated task is no repetition.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from raftlog.spark_export.errors import UsageError
from raftlog.spark_export.sink.options import SinkOptions, parse_sink_options
from raftlog.spark_export.sink.rows import check_columns, pairs, records

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from raftlog.cluster.client.blocking.client import SyncClient
    from raftlog.cluster.client.new_records import NewRecord
    from raftlog.spark_export.sink.session import PartWriter

BYTES_PER_REQUEST: Final = 1 << 20
_QUERY: Final = "sql.streaming.queryId"  # Spark's names of the local properties that its tasks receive
_BATCH: Final = "streaming.sql.batchId"


def checked_options(
    options: Mapping[str, str], schema: "StructType", overwrite: bool, *, streaming: bool
) -> SinkOptions:
    """The options of a writing of rows with these columns. Raises UsageError for what cannot be written."""
    if overwrite:
        raise UsageError('a log is only ever appended to: use mode("append"), or outputMode("append") or ("update")')
    found = parse_sink_options(options, streaming=streaming)
    check_columns(schema, found)
    return found


class TaskResult(WriterCommitMessage):
    """What one task wrote."""

    def __init__(self, name: str, session: int, written: int, skipped: int) -> None:
        self.name = name
        self.session = session
        self.written = written
        self.skipped = skipped


class BatchWriter(DataSourceArrowWriter):
    """One `df.write`."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.name = options.write_id or f"write-{uuid.uuid4().hex}"

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """A task: writes its partition."""
        return _write(self.options, self.name, 0, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The driver: every task is done. A write that can come again is remembered, another one is forgotten."""
        from raftlog.spark_export.sink.session import finish_batch, forget

        with client(self.options) as to:
            if self.options.write_id is not None:
                finish_batch(to, self.name, 0)
            else:
                forget(
                    to, self.name, [each.session for each in messages if isinstance(each, TaskResult) and each.session]
                )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The driver: some task failed for good. What the others wrote is in the log, which takes nothing back; with a
        `writeId` the same write again completes it."""


class StreamWriter(DataSourceStreamArrowWriter):
    """One streaming query."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Writes the task's partition of the batch. Spark's local properties name the query and the batch."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query, batch = (context.getLocalProperty(name) if context else None for name in (_QUERY, _BATCH))
        if query is None or batch is None:
            raise UsageError(
                "Spark gave no query id and batch number: format raftlog cannot write exactly once without them"
            )
        return _write(self.options, f"query-{query}", int(batch), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """The driver: the batch is written. Should Spark not remember that, its tasks find it here."""
        from raftlog.spark_export.sink.session import finish_batch

        with client(self.options) as to:
            for name in {each.name for each in messages if isinstance(each, TaskResult)}:
                finish_batch(to, name, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Called in the driver when the query fails. A restart writes the batch again; rows already written count."""


def client(options: SinkOptions) -> "SyncClient":
    """A client without sessions of its own: this package's sessions identify its writes."""
    from raftlog.cluster.client.blocking.client import SyncClient

    return SyncClient(options.endpoints, deadline_s=options.patience_s, sessions=False)


def _write(options: SinkOptions, name: str, batch: int, batches: "Iterator[pa.RecordBatch]") -> TaskResult:
    from pyspark import TaskContext

    from raftlog.spark_export.sink.session import Part, PartWriter

    context = TaskContext.get()
    partition = context.partitionId() if context else 0
    with client(options) as to:
        part = Part(name, batch, partition)
        writer = PartWriter(to, part, ttl_ms=options.ttl_s * 1000, patience_s=options.patience_s)
        write_rows(writer, options, batches)
        return TaskResult(name, writer.session, writer.written, writer.skipped)


def write_rows(writer: "PartWriter", options: SinkOptions, batches: "Iterator[pa.RecordBatch]") -> None:
    """All rows, in requests of which the cuts depend on the rows alone: a repetition has the same."""
    from raftlog.spark_export.sink.session import PUTS_MAX, chunks

    if writer.is_done:
        return
    if options.operation == "put":
        for changes in chunks(pairs(batches, options), min(options.records_per_request, PUTS_MAX)):
            writer.put(changes)
        return
    chunk: list[NewRecord] = []
    size = 0
    for record in records(batches, options):
        room = len(record.value or b"") + len(record.key or b"") + sum(len(value) for _, value in record.headers)
        if chunk and (len(chunk) == options.records_per_request or size + room > BYTES_PER_REQUEST):
            writer.append(chunk)
            chunk, size = [], 0
        chunk.append(record)
        size += room
    if chunk:
        writer.append(chunk)
