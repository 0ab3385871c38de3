"""Tests that rows are in the log exactly once, however often tasks, batches and whole writes repeat."""

import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from raftlog import NewRecord, Record, SyncClient
from raftlog.cluster.api.errors import Code
from raftlog.cluster.client import requests
from raftlog.cluster.client.errors import Compacted
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.spark_export.errors import UsageError
from raftlog.spark_export.sink import sink
from raftlog.spark_export.sink.options import SinkOptions, parse_sink_options
from raftlog.spark_export.sink.rows import check_columns
from raftlog.spark_export.sink.session import (
    PREFIX,
    ForgottenError,
    Part,
    PartWriter,
    ReplayError,
    chunks,
    finish_batch,
    forget,
    key_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of one node, which is enough: that sessions live through elections others test."""
    with LocalCluster(tmp_path_factory.mktemp("sink") / "node", nodes=1) as cluster:
        cluster.restore(120)
        yield cluster.urls[0]
        cluster.kill(*cluster.running)


@pytest.fixture
def client(node: str) -> Iterator[SyncClient]:
    """A client as the sink's tasks have it."""
    with SyncClient(node, sessions=False) as made:
        yield made


def writer(client: SyncClient, part: Part) -> PartWriter:
    """A task that begins with this partition of this batch, for the first time or again."""
    return PartWriter(client, part, ttl_ms=600_000, patience_s=10.0)


def chunk(part: Part, number: int, rows: int = 3) -> list[NewRecord]:
    """The rows of one chunk, whose values name their place."""
    return [NewRecord(f"{part.name} {part.batch} {part.partition} {number} {row}".encode()) for row in range(rows)]


def appended(client: SyncClient, name: str) -> list[bytes]:
    """The rows of one writing that are in the log, in its order."""
    return [
        record.value
        for record in client.log(1)
        if record.operation == "append" and record.value is not None and record.value.startswith(name.encode() + b" ")
    ]


def values(part: Part, numbers: range) -> list[bytes]:
    """The rows of these chunks."""
    return [record.value for number in numbers for record in chunk(part, number) if record.value is not None]


def close(client: SyncClient, session: int) -> None:
    """What the cluster does itself with a session of which it hears nothing for its time to live."""
    client.call(requests.close_session(session))


def test_a_repeated_task_writes_the_missing_rows(client: SyncClient) -> None:
    """Killed after some chunks, the next attempt finds its session in the store and writes only the others. If the
    whole batch is known to be written, it does not even ask for the session.
    """
    part = Part("again", 7, 2)
    first = writer(client, part)
    for number in range(3):
        first.append(chunk(part, number))
    second = writer(client, part)
    for number in range(5):
        second.append(chunk(part, number))
    assert (first.written, second.written, second.skipped) == (3, 2, 3)
    assert second.session == first.session
    finish_batch(client, part.name, 7)
    third = writer(client, part)
    third.append(chunk(part, 0))
    assert (third.is_done, third.written) == (True, 0)
    assert appended(client, "again") == values(part, range(5))


def test_two_attempts_at_once_write_once(client: SyncClient, node: str) -> None:
    """A task that Spark believes lost and its successor, at the same time: each row once, in order."""
    part = Part("twice", 0, 0)

    def attempt() -> None:
        with SyncClient(node, sessions=False) as own:
            task = writer(own, part)
            for number in range(20):
                task.append(chunk(part, number))

    tasks = [threading.Thread(target=attempt) for _ in range(2)]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    assert appended(client, "twice") == values(part, range(20))


def test_other_rows_under_a_known_number_are_refused(client: SyncClient) -> None:
    """A batch that comes back with other rows in a partition stops, and writes nothing."""
    part = Part("other", 0, 0)
    writer(client, part).append(chunk(part, 0))
    with pytest.raises(ReplayError, match=r"came back with other rows .* Nothing was written twice"):
        writer(client, part).append(chunk(part, 1))
    assert appended(client, "other") == values(part, range(1))


def test_an_expired_session_is_recovered_from_the_log(client: SyncClient) -> None:
    """The session expires before, during and after the batch. Rows that the log already has are not written again; the
    rest is written under a new session. A second expiry behaves the same.
    """
    part = Part("expired", 3, 1)
    first = writer(client, part)
    for number in range(4):
        first.append(chunk(part, number))
    close(client, first.session)
    second = writer(client, part)
    for number in range(6):
        second.append(chunk(part, number))
        if number == 4:
            close(client, second.session)
    assert second.session != first.session
    assert (second.written, second.skipped) == (2, 4)
    third = writer(client, Part("expired", 4, 1))
    third.append(chunk(third.part, 0))
    assert appended(client, "expired") == values(part, range(6)) + values(third.part, range(1))


def test_an_outcome_that_the_log_no_longer_has_is_an_error(client: SyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session expired and the log since is no longer kept: an error, not a guess; nothing is written."""
    part = Part("forgotten", 0, 0)
    first = writer(client, part)
    first.append(chunk(part, 0))
    close(client, first.session)
    second = writer(client, part)

    def trimmed(start: int) -> Iterator[Record]:
        raise Compacted(Code.COMPACTED, f"index {start} is no longer kept")

    with monkeypatch.context() as patch:
        patch.setattr(client, "log", trimmed)
        with pytest.raises(
            ForgottenError, match=r"expired, and its applied requests cannot be found any more: .*index"
        ):
            second.append(chunk(part, 0))
    assert appended(client, "forgotten") == values(part, range(1))


def test_many_chunks_need_no_more_window_than_there_is(client: SyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old answers are given up as new chunks come; a repetition of those is known by that alone."""
    monkeypatch.setattr("raftlog.spark_export.sink.session.OPEN_MAX", 4)
    part = Part("long", 0, 0)
    for _ in range(2):
        task = writer(client, part)
        for number in range(12):
            task.append(chunk(part, number, 1))
    assert appended(client, "long") == [record.value for number in range(12) for record in chunk(part, number, 1)]


@pytest.mark.parametrize("seed", range(3))
def test_any_row_of_failures_ends_with_every_row_once(client: SyncClient, seed: int) -> None:
    """Tasks die after some chunk and repeat, sessions expire anywhere, batches are replayed after they were finished.
    At the end every row is there once, and each partition's rows are in order.
    """
    chance = random.Random(seed)
    name = f"chance{seed}"
    for batch in range(3):
        for _ in range(chance.randint(1, 3)):  # replays of the batch
            for partition in range(2):
                part = Part(name, batch, partition)
                while True:  # attempts of the task
                    task = writer(client, part)
                    until = chance.randint(0, 8)
                    for number in range(min(until, 4)):
                        task.append(chunk(part, number))
                        if chance.random() < 0.1 and task.session:
                            close(client, task.session)
                    if until >= 4:
                        break
            if chance.random() < 0.7:
                finish_batch(client, name, batch)
        finish_batch(client, name, batch)
    rows = appended(client, name)
    for partition in range(2):
        due = [value for batch in range(3) for value in values(Part(name, batch, partition), range(4))]
        assert [row for row in rows if row.split()[2] == str(partition).encode()] == due
    assert len(rows) == len(set(rows)) == 3 * 2 * 4 * 3


def test_puts_change_the_store_once(client: SyncClient) -> None:
    """Each chunk is one revision, also when it comes again, so a later change by others is never undone."""
    part = Part("puts", 0, 0)
    task = writer(client, part)
    task.put([(b"put-a", b"1"), (b"put-b", b"1")])
    client.put(b"put-a", b"theirs")
    again = writer(client, part)
    again.put([(b"put-a", b"1"), (b"put-b", b"1")])
    again.put([(b"put-b", b"2")])
    assert [item.value for key in (b"put-a", b"put-b") if (item := client.get(key))] == [b"theirs", b"2"]
    assert (again.written, again.skipped) == (1, 1)


def test_chunks_of_puts_have_no_key_twice() -> None:
    """No key twice in one, none longer than the limit, the order kept."""
    pairs = [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"d", b"1"), (b"e", b"1")]
    cut = list(chunks(iter(pairs), 3))
    assert cut == [pairs[:2], pairs[2:5], pairs[5:]]


def test_the_keys_of_a_finished_write_are_removed(client: SyncClient) -> None:
    """Nothing of it stays in the store, and its session is closed."""
    part = Part("over", 0, 0)
    task = writer(client, part)
    task.append(chunk(part, 0))
    forget(client, "over", [task.session])
    assert client.get(key_of("over", "0")) is None
    assert list(client.range(PREFIX + b"over/", PREFIX + b"over0")) == []


def test_rows_become_records(client: SyncClient) -> None:
    """Text and bytes, null and empty, headers that repeat, a time; requests are cut by records and by bytes."""
    time = datetime(2026, 1, 1, tzinfo=UTC)
    batch = pa.RecordBatch.from_pylist(
        [
            {"key": "k", "value": b"rows 1", "headers": [{"name": "a", "value": b"1"}] * 2, "client_time": time},
            {"key": None, "value": b"rows 2", "headers": [], "client_time": None},
            {"key": "ü", "value": b"rows 3", "headers": None, "client_time": None},
        ],
        pa.schema(
            [
                ("key", pa.string()),
                ("value", pa.binary()),
                ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
                ("client_time", pa.timestamp("us", tz="UTC")),
            ]
        ),
    )
    options = parse_sink_options({"endpoints": "127.0.0.1:1", "recordsPerRequest": "2"}, streaming=False)
    task = writer(client, Part("rows", 0, 0))
    sink.write_rows(task, options, iter([batch]))
    assert task.written == 2
    found = [record for record in client.log(1) if (record.value or b"").startswith(b"rows ")]
    assert [(r.key, r.value) for r in found] == [(b"k", b"rows 1"), (None, b"rows 2"), ("ü".encode(), b"rows 3")]
    assert found[0].headers == (("a", b"1"), ("a", b"1"))
    assert found[0].client_time_ms == time.timestamp() * 1000
    large = pa.RecordBatch.from_pylist([{"value": b"big %d" % n + b"x" * (600 << 10)} for n in range(3)])
    task = writer(client, Part("big", 0, 0))
    sink.write_rows(task, options, iter([large]))
    assert task.written == 3


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "endpoints is missing"),
        ({"operation": "delete"}, "operation is 'delete'; it may be append, put"),
        ({"recordsPerRequest": "0"}, "whole number from 1 on"),
        ({"startingOffsets": "1"}, "unknown option 'startingoffsets' for writing"),
        ({"writeId": "a/b"}, "without a slash"),
    ],
)
def test_wrong_options(options: dict[str, str], match: str) -> None:
    """Each is named, with what it may be."""
    with pytest.raises(UsageError, match=match):
        parse_sink_options({"endpoints": "127.0.0.1:1"} | options if options else {}, streaming=False)


def test_wrong_columns() -> None:
    """Columns that are no part of a record, of another type, or missing, are named before anything is written."""
    from pyspark.sql.types import StructType

    def schema(text: str) -> StructType:
        made = StructType()
        for name, kind in (column.split() for column in text.split(", ")):
            made = made.add(name, kind)
        return made

    def options(operation: str) -> SinkOptions:
        return parse_sink_options({"endpoints": "127.0.0.1:1", "operation": operation}, streaming=False)

    check_columns(schema("value string, key binary, client_time timestamp"), options("append"))
    for text, operation, match in (
        ("value binary, index long", "append", "column 'index' cannot be written"),
        ("value integer", "append", "column value is int; it must be binary or string"),
        ("key binary", "append", "column value is missing"),
        ("value binary", "put", "column key is missing: put needs key and value"),
        ("key binary, value binary, client_time timestamp", "put", "client_time is no part of a key"),
    ):
        with pytest.raises(UsageError, match=match):
            check_columns(schema(text), options(operation))


# ---------------------------------------------------------------------------------------------------------------
# In Spark.


def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task that dies at its third batch the first time."""
    from pyspark import TaskContext

    context = TaskContext.get()
    for number, batch in enumerate(batches):
        if number == 2 and context is not None and context.attemptNumber() == 0:
            raise RuntimeError("this attempt dies")
        yield batch


@pytest.fixture
def small_batches(spark: "SparkSession") -> Iterator["SparkSession"]:
    """A session that hands rows over by ten."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    yield spark
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "65536")


def test_a_data_frame_is_written_once_although_tasks_fail(
    small_batches: "SparkSession", node: str, client: SyncClient
) -> None:
    """Every task dies once, after it has written some of its rows. A repeated whole write with a writeId writes
    nothing; the keys of a write without one are removed.
    """
    rows = small_batches.range(0, 100, 1, 2).selectExpr("concat('df ', id) AS value", "cast(id AS string) AS key")
    frame = rows.mapInArrow(failing, "value string, key string")
    for options in ({"writeId": "once"}, {"writeId": "once"}, {}):
        frame.write.format("raftlog").options(endpoints=node, recordsPerRequest="7", **options).mode("append").save()
    assert sorted(appended(client, "df")) == sorted([b"df %d" % number for number in range(100)] * 2)
    kept = [item.key for item in client.range(PREFIX + b"once/", PREFIX + b"once0")]
    assert key_of("once", "done") in kept
    assert list(client.range(PREFIX + b"write-", PREFIX + b"write.")) == []


def test_a_streaming_query_writes_once_although_it_is_started_again(
    spark: "SparkSession", node: str, client: SyncClient, tmp_path: Path
) -> None:
    """Spark does not know that a batch was written (its commits are removed) and replays it, with and without the
    sink's own note of it. A new checkpoint is a new query.
    """
    source = tmp_path / "in"
    source.mkdir()
    frame = spark.readStream.schema("value string").json(str(source))

    def run() -> None:
        query = (
            frame.writeStream.format("raftlog")
            .option("endpoints", node)
            .option("recordsPerRequest", "3")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)

    def come(number: int) -> None:
        lines = "".join(f'{{"value": "stream {number} {row}"}}\n' for row in range(10))
        (tmp_path / "aside").write_text(lines)
        (tmp_path / "aside").rename(source / f"{number}.json")

    come(0)
    run()
    commits = tmp_path / "checkpoint" / "commits"
    for noted in (True, False):
        for path in commits.glob("*0*"):
            path.unlink()
        if not noted:
            (key,) = _done(client)
            client.delete(key)
        run()
    come(1)
    run()
    due = [b"stream %d %d" % (number, row) for number in range(2) for row in range(10)]
    assert sorted(appended(client, "stream")) == due


def _done(client: SyncClient) -> list[bytes]:
    """The notes of finished batches of streaming queries."""
    return [item.key for item in client.range(PREFIX + b"query-", PREFIX + b"query.") if item.key.endswith(b"/done")]


def test_own_columns_are_written_once_and_read_back(small_batches: "SparkSession", node: str) -> None:
    """Every task dies once, and the whole write comes twice: each row is in the log once. The source makes the same
    table of the records, with the column's time as event_time.
    """
    columns = "user string, at timestamp, amount double, tags array<string>"
    rows = small_batches.range(0, 100, 1, 2).selectExpr(
        "concat('own ', id % 7) AS user",
        "timestamp_millis(1700000000000 + id) AS at",
        "id / 4 AS amount",
        "array(concat('t', id)) AS tags",
    )
    frame = rows.mapInArrow(failing, columns)
    for _ in range(2):
        frame.write.format("raftlog").options(
            endpoints=node, recordsPerRequest="7", keyColumn="user", timeColumn="at", writeId="own"
        ).mode("append").save()
    back = (
        small_batches.read.format("raftlog")
        .options(endpoints=node, valueFormat="json", keyPrefix="own ")
        .schema("key BINARY, event_time TIMESTAMP, amount DOUBLE, tags ARRAY<STRING>, _rescued_data STRING")
        .load()
    )
    assert back.where("_rescued_data IS NOT NULL").count() == 0
    got = back.selectExpr("string(key) AS user", "event_time AS at", "amount", "tags")
    assert got.count() == 100
    assert got.exceptAll(rows).count() == rows.exceptAll(got).count() == 0
