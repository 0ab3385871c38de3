"""Runs exports and verifications in Spark: tasks over its executors, checks in its built-in functions alone."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Window, functions as F

from raftlog.cluster.api.status import SetDigestHex
from raftlog.spark_export.columns.records import is_user_row
from raftlog.spark_export.columns.schema import ARROW, spark_schema
from raftlog.spark_export.export import delta
from raftlog.spark_export.export.arrow_engine import batches
from raftlog.spark_export.export.cluster_digest import PART_RECORDS
from raftlog.spark_export.export.digests import as_digest, log_row_hash, set_digest, state, state_row_hash
from raftlog.spark_export.export.engine import Cell, UnreadableError
from raftlog.spark_export.export.manifest import internal_files, read_manifest
from raftlog.spark_export.export.place import Place, StorePlace

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row, SparkSession


class SparkEngine:
    """An engine that works with a session of Spark."""

    def __init__(self, spark: "SparkSession") -> None:
        self.spark = spark

    def run(self, task: Callable[[int], bytes], count: int) -> list[bytes]:
        """One task of Spark for each number; the driver receives only the results."""

        def work(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
            import pyarrow as pa

            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield pa.record_batch([pa.array([task(number)], pa.binary())], names=["result"])

        rows = self.spark.range(0, count, 1, count).mapInArrow(work, "result binary").collect()
        return [bytes(row["result"]) for row in rows]

    def rows(self, paths: Sequence[Place]) -> "SparkRows":
        return SparkRows(_open(self.spark, paths))


class SparkRows:
    """The rows of an export as a DataFrame."""

    def __init__(self, log: "DataFrame") -> None:
        self._log = log

    def cells(self, is_dense: bool) -> list[Cell]:
        index, log = F.col("index"), self._log
        if "file" not in log.columns:
            log = log.withColumns({"file": F.col("_metadata.file_path"), "row": F.col("_metadata.row_index")})
        if is_dense:  # then index and place differ by one number in the whole file
            step = index - F.col("row")
        else:
            step = index - F.lag("index").over(Window.partitionBy("file").orderBy("row"))
        log = log.withColumn("step", step)
        millis = F.unix_millis("time")
        summary = log.groupBy("file", F.floor((F.coalesce("index", F.lit(0)) - 1) / PART_RECORDS).alias("cell")).agg(
            F.count(F.lit(1)).alias("rows"),
            F.min(index).alias("index_min"),
            F.max(index).alias("index_max"),
            F.min("step").alias("step_min"),
            F.max("step").alias("step_max"),
            F.min(millis).alias("time_min_ms"),
            F.max(millis).alias("time_max_ms"),
            F.sum(is_user_row().cast("bigint")).alias("user"),
            *set_digest(log_row_hash()),
        )
        with _readable():
            found = summary.collect()
        least = {row["file"]: row["step_min"] for row in found}

        def is_in_order(row: "Row") -> bool:
            if is_dense:
                return bool(row["step_min"] == row["step_max"] == least[row["file"]])
            return row["step_min"] is None or row["step_min"] > 0

        return [
            Cell(
                unquote(urlsplit(row["file"]).path) if row["file"].startswith("file:") else row["file"],
                row["cell"],
                row["rows"],
                row["index_min"],
                row["index_max"],
                is_in_order(row),
                row["time_min_ms"],
                row["time_max_ms"],
                row["user"],
                as_digest(row),
            )
            for row in found
        ]

    def state(self) -> SetDigestHex:
        with _readable():
            return as_digest(state(self._log).agg(*set_digest(state_row_hash())).collect()[0])

    def top_keys(self, most: int) -> list[tuple[bytes, int]]:
        counted = (
            self._log.where(is_user_row() & F.col("key").isNotNull())
            .groupBy("key")
            .agg(F.count(F.lit(1)).alias("times"))
        )
        with _readable():
            found = counted.orderBy(F.desc("times"), "key").limit(most).collect()
        return [(bytes(row["key"]), row["times"]) for row in found]


def open_log(spark: "SparkSession", folder: Place) -> "DataFrame":
    """All rows of an export, also internal ones, as far as its manifest says that they are in place."""
    manifest = read_manifest(folder)
    return _open(spark, [*delta.data_files(folder, manifest), *internal_files(folder, manifest)]).drop("file", "row")


def _open(spark: "SparkSession", paths: Sequence[Place]) -> "DataFrame":
    """The rows of files that Spark reads itself, or of objects that tasks read; those have the columns `file` and `row`
    too, as Spark has them of its files."""
    if any(isinstance(path, StorePlace) for path in paths):

        def work(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
            return (
                rows for batch in batches for number in batch.column(0).to_pylist() for rows in _rows(paths[number])
            )

        schema = spark_schema().add("file", "string").add("row", "long")
        return spark.range(0, len(paths), 1, len(paths)).mapInArrow(work, schema)
    return spark.read.schema(spark_schema()).parquet(*(str(path.resolve()) for path in paths))


def _rows(path: Place) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    row = 0
    for batch in batches(path, ARROW.names):
        numbers = pa.array(range(row, row + len(batch)), pa.int64())
        row += len(batch)
        yield batch.append_column("file", pa.array([str(path)] * len(batch))).append_column("row", numbers)


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise UnreadableError(str(error).partition("\n")[0]) from error
