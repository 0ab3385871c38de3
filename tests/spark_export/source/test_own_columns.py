"""A user's own columns in Spark itself: batch, SQL and streams; by schema, by sample and by the schema of an import."""

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from raftlog.cluster.importer.formats.dialect import Dialect
from raftlog.raft.codec.block import BlockRecord, encode_block, encode_headers
from raftlog.statemachine.commands import Operation
from tests.spark_export import logs
from tests.spark_export.imports import add_import, appended, schema
from tests.spark_export.server import Served, serving
from tests.spark_export.source.test_stream_query import begun

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

MINUTE_MS = 60_000
QUAKES = schema("csv", ("DateTime", "string"), ("Magnitude", "number"), dialect=Dialect())


def quake(minute: float | None, text: bytes) -> BlockRecord:
    """A row of CSV with a time of the client, some minutes after the start; None: without one."""
    own = None if minute is None else logs.START_MS + round(minute * MINUTE_MS)
    return BlockRecord(Operation.APPEND, None, text, encode_headers([]), own)


def quakes() -> logs.RealLog:
    """An import of four rows, of which one does not fit, each request sent twice; and an append of JSON by others."""
    log = appended()
    rows = [quake(0, b"2016,1.5"), quake(1, b'"20,16",big'), quake(11, b"2017,2"), quake(None, b"2018,3")]
    add_import(log, QUAKES, rows[:2], rows[2:], repeat=True)
    log.commit(encode_block([BlockRecord(Operation.APPEND, None, b'{"Magnitude": 9, "by": "hand"}')]))
    return log


def test_an_import_is_a_table(spark: "SparkSession") -> None:
    """No schema is given, by Python or SQL: its columns are there, with their types, each row once."""
    with serving(Served(quakes())) as url:
        frame = spark.read.format("raftlog").options(endpoints=url, importSource="quakes.csv").load()
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW own USING raftlog OPTIONS (endpoints '{url}', valueFormat 'auto')")
        try:
            total = spark.sql("SELECT sum(Magnitude), count(*), count(_rescued_data) FROM own").collect()[0]
        finally:
            spark.sql("DROP VIEW own")
        got = frame.select("DateTime", "Magnitude", "_rescued_data").collect()
    assert [tuple(row) for row in got] == [
        ("2016", 1.5, None),
        ("20,16", None, '{"Magnitude":"big"}'),
        ("2017", 2.0, None),
        ("2018", 3.0, None),
    ]
    assert tuple(total) == (15.5, 5, 2)


def test_a_schema_and_a_sample_give_the_same_rows(spark: "SparkSession") -> None:
    """Nested members by `.schema(…)` as DDL, and by inferSchema."""
    values = [{"user": {"name": "ü", "age": 5}, "tags": ["a"]}, {"user": {"name": "v"}, "tags": [], "more": 1}]
    with serving(Served(appended(*(json.dumps(value).encode() for value in values)))) as url:
        reader = spark.read.format("raftlog").options(endpoints=url, valueFormat="json")
        named = reader.schema("user STRUCT<name: STRING, age: BIGINT>, tags ARRAY<STRING>, _rescued_data STRING").load()
        inferred = reader.option("inferSchema", "true")
        sampled = spark.read.format("raftlog").options(endpoints=url, valueFormat="json", inferSchema="true").load()
        assert inferred is reader
        assert sampled.schema["user"].dataType.simpleString() == "struct<name:string,age:bigint>"
        columns = ("user.name", "user.age", "tags")
        assert named.select(*columns).collect() == sampled.select(*columns).collect()
        assert [row[0] for row in named.select("_rescued_data").collect()] == [None, '{"more":1}']
        assert [row[0] for row in sampled.select("more").collect()] == [None, 1]


def test_a_stream_closes_windows_by_the_watermark(spark: "SparkSession", tmp_path: Path) -> None:
    """Rows come in two batches: the first window closes once a later event moves the watermark on, and an event behind
    the watermark is left out. An import that began after the query is read by its own schema."""
    from pyspark.sql import functions as F

    log = appended()
    add_import(log, QUAKES, [quake(0, b"2016,1"), quake(1, b"2016,2")])
    first = len(log.entries)
    later = schema("csv", ("Magnitude", "number"), ("DateTime", "string"), source="later.csv", dialect=Dialect(";"))
    add_import(log, later, [quake(45, b"3;2017")])
    second = len(log.entries)
    log.commit(encode_block([quake(2, b'{"Magnitude": 100}')], session=0))
    node = Served(log, committed=log.entries[first - 1].index)
    with serving(node) as url:
        # the query's schema is that of the first import; the second has the same names in another order
        rows = spark.readStream.format("raftlog").options(endpoints=url, valueFormat="auto").load()
        counted = (
            rows.withWatermark("event_time", "10 minutes")
            .groupBy(F.window("event_time", "20 minutes"))
            .agg(F.sum("Magnitude").alias("total"), F.count("*").alias("n"))
            .select(F.col("window.start").alias("start"), "total", "n")
        )
        writer = counted.writeStream.format("parquet").options(
            path=str(tmp_path / "rows"), checkpointLocation=str(tmp_path / "checkpoint")
        )
        for end in (first, second, len(log.entries)):
            node.commit(end - 1)
            begun(writer.trigger(availableNow=True)).awaitTermination(120)
        found = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert [(row["total"], row["n"]) for row in found] == [(3.0, 2)]


def test_a_stream_rescues_what_changed_since_it_began(spark: "SparkSession", tmp_path: Path) -> None:
    """The columns stay those of the first start, by `.schema(…)`; new members and other types of later batches go to
    the rescued column. An endless query and its restart give each row once."""
    values = [{"n": 1}, {"n": "two"}, {"n": 3, "new": [1]}]
    log = appended(*(json.dumps(value).encode() for value in values))
    node = Served(log, committed=log.entries[0].index)

    def run(url: str) -> None:
        frame: DataFrame = (
            spark.readStream.format("raftlog")
            .options(endpoints=url, valueFormat="json")
            .schema("index BIGINT, n INT, event_time TIMESTAMP, _rescued_data STRING")
            .load()
        )
        writer = frame.writeStream.format("parquet").options(
            path=str(tmp_path / "rows"), checkpointLocation=str(tmp_path / "checkpoint")
        )
        begun(writer.trigger(availableNow=True)).awaitTermination(120)

    with serving(node) as url:
        run(url)
        node.commit(len(log.entries) - 1)
        run(url)
        found = spark.read.parquet(str(tmp_path / "rows")).orderBy("index").collect()
    assert [(row["n"], row["_rescued_data"]) for row in found] == [(1, None), (None, '{"n":"two"}'), (3, '{"new":[1]}')]
    assert all(isinstance(row["event_time"], datetime) for row in found)


@pytest.mark.parametrize("options", [{"valueFormat": "auto"}, {"valueFormat": "csv", "inferSchema": "true"}])
def test_an_empty_log_needs_a_schema(spark: "SparkSession", options: dict[str, Any]) -> None:
    """Nothing can be inferred from it, and the message says what to do. With a schema it is an empty table."""
    with serving(Served(logs.appends(0, 1))) as url:
        reader = spark.read.format("raftlog").options(endpoints=url, **options)
        with pytest.raises(Exception, match=r"no columns can be inferred: records looked at: 0; .*\.schema"):
            reader.load()
        assert reader.schema("a INT, event_time TIMESTAMP").load().count() == 0
