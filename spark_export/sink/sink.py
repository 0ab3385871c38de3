"""Writes rows as records or keys: `df.write.format("raftlog")` and `df.writeStream.format("raftlog")`.

The columns are `value` and maybe `key`, `headers` and `client_time`, each as the source has them; text is taken as
UTF-8. Tasks write by themselves (`session.py`), each row exactly once: of a streaming query by its id, the batch
and the partition; of a batch write by its `writeId`, or one of its own, with which a repeated task is no repetition.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from raftlog.spark_export.errors import UsageError
from raftlog.spark_export.fetch.door import PATIENCE_S, parse_endpoints

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from raftlog.cluster.client.blocking.client import NewRecord, SyncClient
    from raftlog.spark_export.sink.session import PartWriter

Operation = Literal["append", "put"]

NAMES: Final = ("endpoints", "operation", "recordsPerRequest", "sessionTtlSeconds", "timeoutSeconds", "writeId")
SESSION_TTL_S: Final = 86_400
"""One day: a query that restarts within it finds its sessions. Later, it must read the log."""
RECORDS_PER_REQUEST: Final = 1_000
BYTES_PER_REQUEST: Final = 1 << 20

_TYPES: Final = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "client_time": ("timestamp",),
    "headers": ("array<struct<name:string,value:binary>>",),
}
_QUERY: Final = "sql.streaming.queryId"  # Spark's names of the local properties that its tasks receive
_BATCH: Final = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of one writing."""

    endpoints: tuple[str, ...]
    operation: Operation = "append"
    records_per_request: int = RECORDS_PER_REQUEST
    ttl_s: int = SESSION_TTL_S
    patience_s: float = PATIENCE_S
    write_id: str | None = None


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Raises UsageError for an option that is missing, unknown or has a value that means nothing."""
    known = {name.lower(): name for name in NAMES}
    # Spark's own, which it hands to every sink
    given = {
        name.lower(): value for name, value in options.items() if name.lower() not in ("path", "checkpointlocation")
    }
    for name in given:
        if name not in known:
            raise UsageError(f"unknown option {name!r} for writing. The options are {', '.join(NAMES)}.")
    if "endpoints" not in given:
        raise UsageError('option endpoints is missing: .option("endpoints", "http://127.0.0.1:7001,...")')
    operation = given.get("operation", "append")
    if operation not in ("append", "put"):
        raise UsageError(f"option operation is {operation!r}; it may be append or put")
    write_id = given.get("writeid")
    if write_id is not None and streaming:
        raise UsageError("option writeId is for df.write: a streaming query is known by its checkpoint")
    if write_id is not None and not (0 < len(write_id) <= 200 and write_id.isprintable() and "/" not in write_id):
        raise UsageError("option writeId is 1 to 200 visible characters without a slash")
    return SinkOptions(
        parse_endpoints(given["endpoints"]),
        operation,  # type: ignore[arg-type]  # one of the two
        _number("recordsPerRequest", given, RECORDS_PER_REQUEST),
        _number("sessionTtlSeconds", given, SESSION_TTL_S),
        _number("timeoutSeconds", given, int(PATIENCE_S)),
        write_id,
    )


def _number(name: str, given: Mapping[str, str], default: int) -> int:
    text = given.get(name.lower(), str(default)).strip()
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(f"option {name} is {text!r}; it must be a whole number from 1 on")
    return int(text)


def checked_options(
    options: Mapping[str, str], schema: "StructType", overwrite: bool, *, streaming: bool
) -> SinkOptions:
    """The options of a writing of rows with these columns. Raises UsageError for what cannot be written."""
    if overwrite:
        raise UsageError('a log is only ever appended to: use mode("append"), or outputMode("append") or ("update")')
    found = parse_sink_options(options, streaming=streaming)
    check_columns(schema, found.operation)
    return found


def check_columns(schema: "StructType", operation: Operation) -> None:
    """Raises UsageError for columns that are no part of a record, or lack."""
    for field in schema.fields:
        allowed = _TYPES.get(field.name)
        kind = field.dataType.simpleString()
        if allowed is None:
            raise UsageError(f"column {field.name!r} cannot be written: select only {', '.join(_TYPES)}")
        if kind not in allowed:
            raise UsageError(f"column {field.name} is {kind}; it must be {' or '.join(allowed)}")
    needed = ("key", "value") if operation == "put" else ("value",)
    for name in needed:
        if name not in schema.names:
            raise UsageError(f"column {name} is missing: {operation} needs {' and '.join(needed)}")
    if operation == "put" and (more := set(schema.names) - set(needed)):
        raise UsageError(f"column {min(more)} is no part of a key of the store: put takes key and value")


class Written(WriterCommitMessage):
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

        sessions = [told.session for told in messages if isinstance(told, Written) and told.session]
        with client(self.options) as to:
            if self.options.write_id is not None:
                finish_batch(to, self.name, 0)
            else:
                forget(to, self.name, sessions)

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

        names = {told.name for told in messages if isinstance(told, Written)}
        with client(self.options) as to:
            for name in names:
                finish_batch(to, name, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Called in the driver when the query fails. A restart writes the batch again; rows already written count."""


def client(options: SinkOptions) -> "SyncClient":
    """A client without sessions of its own: this package's sessions identify its writes."""
    from raftlog.cluster.client.blocking.client import SyncClient

    return SyncClient(options.endpoints, deadline_s=options.patience_s, sessions=False)


def _write(options: SinkOptions, name: str, batch: int, batches: "Iterator[pa.RecordBatch]") -> Written:
    from pyspark import TaskContext

    from raftlog.spark_export.sink.session import Part, PartWriter

    context = TaskContext.get()
    partition = context.partitionId() if context else 0
    with client(options) as to:
        writer = PartWriter(
            to, Part(name, batch, partition), ttl_ms=options.ttl_s * 1000, patience_s=options.patience_s,
            applied=lambda session, start: applied_in_log(options, session, start),
        )  # fmt: skip
        write_rows(writer, options, batches)
        return Written(name, writer.session, writer.written, writer.skipped)


def write_rows(writer: "PartWriter", options: SinkOptions, batches: "Iterator[pa.RecordBatch]") -> None:
    """All rows, in requests of which the cuts depend on the rows alone: a repetition has the same."""
    from raftlog.spark_export.sink.session import PUTS_MAX, chunks

    if writer.is_done:
        return
    if options.operation == "put":
        pairs = ((_key(row), _value(row)) for row in _rows(batches))
        for changes in chunks(pairs, min(options.records_per_request, PUTS_MAX)):
            writer.put(changes)
        return
    chunk: list[NewRecord] = []
    size = 0
    for row in _rows(batches):
        record = _record(row)
        room = len(record.value or b"") + len(record.key or b"") + sum(len(value) for _, value in record.headers)
        if chunk and (len(chunk) == options.records_per_request or size + room > BYTES_PER_REQUEST):
            writer.append(chunk)
            chunk, size = [], 0
        chunk.append(record)
        size += room
    if chunk:
        writer.append(chunk)


def _rows(batches: "Iterator[pa.RecordBatch]") -> Iterator[dict[str, object]]:
    for batch in batches:
        yield from batch.to_pylist()


def _record(row: Mapping[str, object]) -> "NewRecord":
    from raftlog.cluster.client.blocking.client import NewRecord

    headers: object = row.get("headers") or ()
    time = row.get("client_time")
    return NewRecord(
        _bytes(row["value"]),
        _bytes(row.get("key")),
        tuple((each["name"], each["value"] or b"") for each in headers),  # type: ignore[attr-defined]
        None if time is None else round(time.timestamp() * 1000),  # type: ignore[attr-defined]
    )


def _bytes(value: object) -> bytes | None:
    return value.encode() if isinstance(value, str) else value  # type: ignore[return-value]  # binary or null


def _key(row: Mapping[str, object]) -> bytes:
    key = _bytes(row["key"])
    if not key:
        raise UsageError("a row to put has no key: keys are 1 to 4096 bytes; leave such rows out")
    return key


def _value(row: Mapping[str, object]) -> bytes:
    value = _bytes(row["value"])
    if value is None:
        raise UsageError(
            f"the value to put under key {_key(row)[:40]!r} is null: leave such rows out, or make it empty"
        )
    return value


def applied_in_log(options: SinkOptions, session: int, start: int) -> int:
    """The highest sequence of that session that the log says was applied, from an index to its committed end."""
    import pyarrow.compute as pc

    from raftlog.spark_export.fetch.door import bounds
    from raftlog.spark_export.fetch.ranges import Range, trimmed
    from raftlog.spark_export.fetch.reader import read

    page = bounds(options.endpoints, patience_s=options.patience_s)
    if start < page.oldest:
        raise trimmed(start, page.oldest)
    highest = 0
    wanted = Range(options.endpoints, page.log, start, page.index + 1, 0, options.patience_s)
    for batch in read(wanted, ("session", "sequence", "result")):
        ours = batch.filter(
            pc.and_(pc.equal(batch.column("session"), session), pc.equal(batch.column("result"), "applied"))
        )
        if ours.num_rows:
            highest = max(highest, pc.max(ours.column("sequence")).as_py())
    return highest
