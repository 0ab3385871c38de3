"""Runs exports and verifications in Spark: tasks over its executors, the state in its built-in functions alone."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from raftlog.cluster.api.status import SetDigestHex
from raftlog.spark_export.columns.records import is_user_row
from raftlog.spark_export.columns.schema import ARROW, spark_schema
from raftlog.spark_export.export import delta
from raftlog.spark_export.export.cells import batches
from raftlog.spark_export.export.digests import as_digest, set_digest, state, state_row_hash
from raftlog.spark_export.export.engine import UnreadableError
from raftlog.spark_export.export.manifest import internal_files, read_manifest
from raftlog.spark_export.export.place import Place, StorePlace

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


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
    return _open(spark, [*delta.data_files(folder, manifest), *internal_files(folder, manifest)])


def _open(spark: "SparkSession", paths: Sequence[Place]) -> "DataFrame":
    """The rows of files that Spark reads itself, or of objects that tasks read."""
    if any(isinstance(path, StorePlace) for path in paths):

        def work(tasks: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
            numbers = (number for batch in tasks for number in batch.column(0).to_pylist())
            return (rows for number in numbers for rows in batches(paths[number], ARROW.names))

        return spark.range(0, len(paths), 1, len(paths)).mapInArrow(work, spark_schema())
    return spark.read.schema(spark_schema()).parquet(*(str(path.resolve()) for path in paths))


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise UnreadableError(str(error).partition("\n")[0]) from error
