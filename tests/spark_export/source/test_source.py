"""`spark.read.format("raftlog")` gives the rows of the log, and refuses what it cannot give."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from raftlog.spark_export.columns.records import is_user_row
from raftlog.spark_export.columns.schema import SHOWN, spark_schema
from tests.spark_export import logs
from tests.spark_export.server import Served, serving
from tests.spark_export.source.stream_chaos import processes_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

LOG = logs.mixed(31, 60, records_max=3)
ROWS = list(logs.naive_rows(LOG.entries, LOG.effects))


def read(spark: "SparkSession", url: str, schema: str | None = None, **options: Any) -> "DataFrame":
    """The data source over that node, internal records included unless said otherwise."""
    reader = spark.read.format("raftlog").options(**{"endpoints": url, "records": "all", **options})
    return (reader.schema(schema) if schema else reader).load()


def test_every_row_arrives_as_it_is(spark: "SparkSession") -> None:
    """All columns of all rows, in any number of partitions; every third answer of the node is damaged or refused."""
    node = Served(LOG, faults=[lambda body: body, lambda body: body[:100], lambda body: body] * 9)
    with serving(node) as url:
        frame = read(spark, url, minPartitions=4)
        assert frame.schema == spark_schema(SHOWN)
        assert frame.rdd.getNumPartitions() == 4
        assert frame.toArrow().to_pylist() == [logs.shown(row) for row in ROWS]
        assert read(spark, url, maxRecordsPerPartition=50).count() == len(ROWS)


def test_a_repetition_is_counted_once(spark: "SparkSession") -> None:
    """The natural query counts each request once. With records=all the repetitions are there too, as internal records
    that the filter on columns recognises.
    """
    with serving(Served(logs.real(20, batch=False))) as url:
        plain = spark.read.format("raftlog").option("endpoints", url).load()
        everything = spark.read.format("raftlog").options(endpoints=url, records="all").load()
        assert {row[0] for row in everything.select("result").distinct().collect()} > {"applied", "repeated"}
        assert plain.where("result = 'repeated'").count() == 0
        assert plain.count() == everything.where(is_user_row()).count()
        assert everything.where(~is_user_row()).count() + plain.count() == everything.count()
    with pytest.raises(Exception, match="records is 'some'; it may be user, all"):
        spark.read.format("raftlog").options(endpoints=url, records="some").load().count()


@pytest.mark.parametrize(
    ("options", "start", "stop"),
    [
        ({"startingOffsets": "7", "endingOffsets": "19"}, 7, 19),
        ({"startingOffsets": "-10", "endingOffsets": "committed"}, len(ROWS) - 9, len(ROWS) + 1),
        ({"startingOffsets": str(len(ROWS) + 1)}, 0, 0),
    ],
)
def test_offsets_choose_the_range(spark: "SparkSession", options: dict[str, str], start: int, stop: int) -> None:
    """Indexes, counted from the end or not; a range without records is an empty table."""
    with serving(Served(LOG)) as url:
        got = [row["index"] for row in read(spark, url, **options).select("index").collect()]
    assert got == list(range(start, stop))


def test_a_schema_is_a_projection(spark: "SparkSession") -> None:
    """A user's schema reads only those columns; a column that is none, or of another type, is refused by name."""
    with serving(Served(LOG)) as url:
        got = read(spark, url, "value BINARY, index BIGINT").collect()
        assert [(row[0], row[1]) for row in got] == [(row["value"], row["index"]) for row in ROWS]
        with pytest.raises(Exception, match="there is no column 'offset'; the columns are index, term"):
            read(spark, url, "offset BIGINT").count()
        with pytest.raises(Exception, match="column index is bigint, not string"):
            read(spark, url, "index STRING").count()


def test_filters_on_the_index_narrow_the_range(spark: "SparkSession") -> None:
    """In a session of ours only the records between the bounds are asked for; with Spark's setting off Spark filters by
    itself, and the rows are the same."""
    node = Served(LOG, entries_per_chunk=1)
    with serving(node) as url:
        narrow = read(spark, url, minPartitions=2).where("index > 20 and index <= 40 and index in (25, 30, 99)")
        pushed = [row["index"] for row in narrow.select("index").collect()]
        ranges = [dict(parse_qsl(urlsplit(each).query)) for each in node.asked if "raw" in each]
        assert {(int(each["from"]), int(each["to"])) for each in ranges} == {(25, 33), (33, 41)}
        assert read(spark, url).where("index = 7").count() == 1
        assert read(spark, url).where("index > 20 and index < 20").count() == 0
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        with serving(node) as url:
            plain = read(spark, url).where("index > 20 and index <= 40 and index in (25, 30, 99)")
            assert pushed == [row["index"] for row in plain.select("index").collect()] == [25, 30]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_an_unreadable_range_is_an_error(spark: "SparkSession") -> None:
    """A trimmed start, another log, a wrong option, and no node: each says what and what to do."""
    with ExitStack() as stack:
        url = stack.enter_context(serving(Served(LOG, oldest=9)))
        with pytest.raises(Exception, match=r"index 3 is no longer kept: the log begins at index 9 now.*earliest"):
            read(spark, url, startingOffsets="3").count()
        assert read(spark, url, startingOffsets="3", failOnDataLoss="false").count() == len(ROWS) - 8
        assert read(spark, url).count() == len(ROWS) - 8
        with pytest.raises(Exception, match=r"serve log 0123.*option log says ffff"):
            read(spark, url, log="f" * 32).count()
        with pytest.raises(Exception, match="did you mean endingOffsets"):
            read(spark, url, endingOffset="3").count()
        with pytest.raises(Exception, match=r"no node gave .*the cluster's URLs"):
            read(spark, "http://127.0.0.1:1", timeoutSeconds="1").count()


def test_session_listens_on_loopback_only(spark: "SparkSession") -> None:
    """Nothing that the session started listens beyond loopback: read from the kernel's table of sockets."""
    inodes = {
        link.readlink().name
        for process, *_ in processes_of(os.getpid())
        for link in Path(f"/proc/{process}").glob("fd/*")
        if _is_socket(link)
    }
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                assert _is_loopback(fields[1].partition(":")[0]), f"listens on {fields[1]}"


def _is_socket(link: Path) -> bool:
    try:
        return link.readlink().name.startswith("socket:")
    except OSError:
        return False


def _is_loopback(address: str) -> bool:
    return address in ("0100007F", "0" * 24 + "01000000", "0000000000000000FFFF00000100007F")
