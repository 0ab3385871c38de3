"""The Spark data source `raftlog`: the log as a table of rows, for batch reads."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from spark_export.errors import DataLossError, UsageError
from spark_export.offsets import SourceOptions, parse_options, resolve, split
from spark_export.schema import ARROW, spark_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_export.reader import Range


class RaftlogDataSource(DataSource):
    """`spark.read.format("raftlog").option("endpoints", …).load()`; docs/spark.md has the options and columns."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "raftlog"

    def schema(self) -> "StructType":
        """All columns; `.schema("key BINARY, index BIGINT")` before `load` reads only those."""
        return spark_schema()

    def reader(self, schema: "StructType") -> DataSourceReader:
        """A batch reader of these columns."""
        return LogReader(parse_options(self.options), _columns(schema))

    def streamReader(self, schema: "StructType") -> NoReturn:
        """Not yet."""
        raise NotImplementedError(
            "format raftlog does not stream yet: use spark.read with startingOffsets and endingOffsets"
        )


@dataclass
class LogPartition(InputPartition):
    """A range of the log for one task."""

    wanted: "Range"


class LogReader(DataSourceReader):
    """Plans ranges in the driver and reads each in a task, from any node."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        """The ranges: what the offsets mean now."""
        from spark_export.door import bounds
        from spark_export.reader import Range, trimmed

        options = self.options
        page = bounds(
            options.endpoints, is_linearizable=options.ending != "latest", patience_s=options.patience_s
        )  # fmt: skip
        if options.log_id not in (None, page.log):
            raise DataLossError(
                f"the endpoints serve log {page.log}, option log says {options.log_id}: indexes of one log mean "
                f"nothing in another. Name the endpoints of that log, or leave the option out."
            )
        start, stop = resolve(options.starting, options.ending, oldest=page.oldest, end=page.index + 1)
        if start < page.oldest:
            if options.fail_on_data_loss:
                raise trimmed(start, page.oldest)
            warnings.warn(f"indexes {start} to {page.oldest - 1} are no longer kept and are left out", stacklevel=2)
            start = min(page.oldest, stop)
        ranges = split(
            start, stop, at_least=options.min_partitions, records_max=options.max_records_per_partition
        )  # fmt: skip
        return [
            LogPartition(Range(options.endpoints, page.log, first, end, turn, options.patience_s))
            for turn, (first, end) in enumerate(ranges)
        ]

    def read(self, partition: InputPartition | None) -> "Iterator[pa.RecordBatch]":
        """The rows of one range; an empty plan arrives as a partition that is none of ours."""
        from spark_export.reader import read

        if not isinstance(partition, LogPartition):
            return iter(())
        return read(partition.wanted, self.columns, with_internal=self.options.include_internal)


def _columns(schema: "StructType") -> tuple[str, ...]:
    """The columns of a user's schema. Raises UsageError where one is not ours, or of another type."""
    names: Sequence[str] = schema.names
    for field in schema.fields:
        if field.name not in ARROW.names:
            raise UsageError(f"there is no column {field.name!r}; the columns are {', '.join(ARROW.names)}")
        expected = spark_schema()[field.name].dataType
        if field.dataType.simpleString() != expected.simpleString():
            raise UsageError(f"column {field.name} is {expected.simpleString()}, not {field.dataType.simpleString()}")
    return tuple(names)
