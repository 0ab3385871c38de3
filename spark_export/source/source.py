"""Defines the Spark data source `raftlog`: the log as a table of rows, for batch reads and streaming queries.

Only the glue to Spark is here. `bounds` interprets the options, `stream` plans micro-batches, and `reader` reads
ranges. Batch and streaming read the same way.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from raftlog.spark_export.fetch.options import SourceOptions, parse_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from raftlog.spark_export.fetch.ranges import Range
    from raftlog.spark_export.source.stream import StreamPlanner
    from raftlog.spark_export.source.views import View

_PUSHES: Final = "pyspark.sql.worker.data_source_pushdown_filters"
"""Spark loads this module in the process where it asks a reader about filters. A reader that could be asked is an error
everywhere else, unless spark.sql.python.filterPushdown.enabled is set."""


class RaftlogDataSource(DataSource):
    """`spark.read.format("raftlog").option("endpoints", …).load()`; docs/spark.md has the options and columns."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "raftlog"

    def schema(self) -> "StructType":
        """All columns; `.schema("key BINARY, index BIGINT")` before `load` reads only those."""
        from raftlog.spark_export.source.views import default_schema

        return default_schema(self.options)

    def reader(self, schema: "StructType") -> DataSourceReader:
        """A batch reader of these columns."""
        from raftlog.spark_export.source.views import view

        options = parse_options(self.options)
        kind = FilteringLogReader if _PUSHES in sys.modules and options.as_of is None else LogReader
        return kind(options, view(options, schema))

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:
        """A reader of these columns for one streaming query."""
        from raftlog.spark_export.source.views import view

        options = parse_options(self.options, streaming=True)
        return LogStreamReader(options, view(options, schema))

    def writer(self, schema: "StructType", overwrite: bool) -> DataSourceWriter:
        """Appends rows to the log, or puts them into the store: `df.write`."""
        from raftlog.spark_export.sink.sink import BatchWriter, checked_options

        return BatchWriter(checked_options(self.options, schema, overwrite, streaming=False))

    def streamWriter(self, schema: "StructType", overwrite: bool) -> DataSourceStreamArrowWriter:
        """The same for a streaming query: `df.writeStream`."""
        from raftlog.spark_export.sink.sink import StreamWriter, checked_options

        return StreamWriter(checked_options(self.options, schema, overwrite, streaming=True))


@dataclass
class LogPartition(InputPartition):
    """A range of the log for one task; or, with `revision`, the state at that one."""

    wanted: "Range"
    revision: int | None = None


class LogReader(DataSourceReader):
    """Plans ranges in the driver and reads each in a task, from any node."""

    def __init__(self, options: SourceOptions, shown: "View") -> None:
        self.options = options
        self.shown = shown
        self.first = 0  # what pushed filters leave of all indexes
        self.stop: int | None = None

    def partitions(self) -> list[InputPartition]:
        """The ranges: what the offsets mean now."""
        from raftlog.spark_export.fetch.offsets import split
        from raftlog.spark_export.fetch.ranges import Range
        from raftlog.spark_export.source.bounds import batch_range, state_index

        options = self.options
        if options.as_of is not None:
            log, index = state_index(options)
            return [LogPartition(Range.of(options, log, 1, index + 1))]
        log, start, stop = batch_range(options)
        start, stop = max(start, self.first), stop if self.stop is None else min(stop, self.stop)
        ranges = split(start, stop, at_least=options.min_partitions, records_max=options.max_records_per_partition)
        return [LogPartition(Range.of(options, log, first, end, turn)) for turn, (first, end) in enumerate(ranges)]

    def read(self, partition: InputPartition | None) -> "Iterator[pa.RecordBatch]":
        """The rows of one range; an empty plan arrives as a partition that is none of ours."""
        if not isinstance(partition, LogPartition):
            return iter(())
        return self.shown.read(partition.wanted)


class FilteringLogReader(LogReader):
    """As LogReader, where Spark asks which filters narrow the range: those that compare `index` do."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Takes the bounds of `index`; gives back what Spark must still look at."""
        for condition in filters:
            if not self._takes(condition):
                yield condition

    def _takes(self, condition: Filter) -> bool:
        """Narrows the range; whether that is all that the condition says."""
        if getattr(condition, "attribute", None) != ("index",):
            return False
        match condition:
            case EqualTo(value=value) | EqualNullSafe(value=value) if isinstance(value, int):
                self._narrow(value, value + 1)
            case GreaterThan(value=value):
                self._narrow(value + 1, None)
            case GreaterThanOrEqual(value=value):
                self._narrow(value, None)
            case LessThan(value=value):
                self._narrow(0, value)
            case LessThanOrEqual(value=value):
                self._narrow(0, value + 1)
            case In(value=values):
                numbers = [each for each in values if each is not None]
                if numbers:
                    self._narrow(min(numbers), max(numbers) + 1)
                return False  # what lies between is for Spark to leave out
            case IsNotNull():
                pass
            case _:
                return False
        return True

    def _narrow(self, first: int, stop: int | None) -> None:
        self.first = max(self.first, first)
        if stop is not None:
            self.stop = stop if self.stop is None else min(self.stop, stop)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query: plans its batches in the driver, reads their ranges in tasks."""

    def __init__(self, options: SourceOptions, shown: "View") -> None:
        self.options = options
        self.shown = shown
        self._planner: StreamPlanner | None = None

    @property
    def planner(self) -> "StreamPlanner":
        """Made where it is first needed: tasks have none."""
        if self._planner is None:
            from raftlog.spark_export.source.stream import StreamPlanner

            self._planner = StreamPlanner(self.options)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins."""
        return dict(self.planner.initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        """maxEntriesPerTrigger; the planner keeps the other limits."""
        return ReadMaxRows(self.options.entries_max)

    def prepareForTriggerAvailableNow(self) -> None:
        """Everything committed by now is read, nothing later."""
        self.planner.stop_at_end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends; waits up to a second for news."""
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return dict(self.planner.latest(start, rows, is_limited=not isinstance(limit, ReadAllAvailable)))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end of the log, as far as it is known, for the query's progress."""
        offset = self.planner.report()
        return None if offset is None else dict(offset)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The ranges of one batch."""
        revision = self.planner.state_revision(start, end)
        if revision is not None:
            return [LogPartition(self.planner.state_range(start), revision)]
        return [LogPartition(wanted) for wanted in self.planner.ranges(start, end)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The rows of one range."""
        if not isinstance(partition, LogPartition):
            return iter(())
        if partition.revision is not None:
            return self.shown.snapshot(partition.wanted, partition.revision)
        return self.shown.read(partition.wanted)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the position is in the checkpoint; a consumer group hears of it when the next batch is due."""

    def stop(self) -> None:
        """The query has ended."""
        if self._planner is not None:
            self._planner.done()
