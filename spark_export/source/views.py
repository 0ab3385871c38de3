"""Defines the views of a range: rows of the log, its changes, or the state at its end.

A view is made when a query is planned. Each streaming query starts a new process for that, so only tasks import the
modules that read and decode.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from raftlog.spark_export.columns.schema import FEED, KIND_SNAPSHOT, SHOWN, STATE, spark_schema
from raftlog.spark_export.errors import UsageError
from raftlog.spark_export.fetch.options import SourceOptions
from raftlog.spark_export.fetch.ranges import Range
from raftlog.spark_export.source.values import Projection, parsed, project

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class View:
    """Rows of the log."""

    projection: Projection
    options: SourceOptions

    def read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        """The rows of the range."""
        from raftlog.spark_export.fetch.reader import read
        from raftlog.spark_export.fetch.selection import of_options

        selection = of_options(self.options)
        if self.projection.is_plain:
            return read(wanted, self.projection.columns, selection=selection)
        columns = (*self.projection.columns, "index")
        return (self._shown(batch) for batch in read(wanted, columns, selection=selection))

    def snapshot(self, wanted: Range, revision: int) -> Iterator[pa.RecordBatch]:
        """The state at a revision as rows of the log: what would have to be put to make it, of kind `snapshot`."""
        from raftlog.spark_export.source.state import snapshot_at

        if self.options.operations and "put" not in self.options.operations:
            return
        for batch in snapshot_at(wanted, revision, self.options.key_prefix):
            rows = len(batch)
            own = {name: batch.column(name) for name in ("key", "value", "create", "version")}
            own["revision"] = batch.column("mod")
            own["index"] = pa.array([wanted.stop - 1] * rows, pa.int64())
            for name, text in (("kind", KIND_SNAPSHOT), ("operation", "put"), ("result", "applied")):
                own[name] = pa.array([text] * rows, pa.string())
            if self.projection.is_plain:
                yield _of(own, self.projection.schema, rows)
            else:
                names = (*self.projection.columns, "index")
                yield self._shown(_of(own, pa.schema([(name, SHOWN.field(name).type) for name in names]), rows))

    def _shown(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        last = batch.num_columns - 1
        wanted = batch.select(list(range(last)))
        return parsed(wanted, self.projection, batch.column(last).to_pylist())


@dataclass(frozen=True, slots=True)
class FeedView(View):
    """Changes of keys, with images."""

    def read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        """The changes that the range made."""
        from raftlog.spark_export.source.feed import feed

        names = self.projection.schema.names
        batches = feed(wanted, self.options.key_prefix, self.options.operations)
        return (batch.select(names) for batch in batches)


@dataclass(frozen=True, slots=True)
class StateView(View):
    """Live keys."""

    def read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        """The state after the last index of the range, which begins at index 1."""
        from raftlog.spark_export.source.state import state_at

        names = self.projection.schema.names
        return (batch.select(names) for batch in state_at(wanted, self.options.key_prefix))


def _of(own: dict[str, pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    arrays = [own.get(each.name, pa.nulls(rows, each.type)) for each in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def default_schema(options: Mapping[str, str]) -> "StructType":
    """The columns that a read with these options has when the user names none."""
    from pyspark.sql.types import StringType, StructField, StructType

    given = {name.lower(): value.strip().lower() for name, value in options.items()}
    if "asof" in given:
        return spark_schema(STATE)
    if given.get("changes") == "true":
        return spark_schema(FEED)
    whole = spark_schema(SHOWN)
    if given.get("valueformat", "raw") == "raw":
        return whole
    return StructType([StructField("value", StringType()) if each.name == "value" else each for each in whole.fields])


def view(options: SourceOptions, asked: "StructType") -> View:
    """What to show for these options and columns. Raises UsageError for a column that is not there."""
    if options.as_of is not None:
        return StateView(_fixed(asked, STATE, "asOf"), options)
    if options.changes:
        return FeedView(_fixed(asked, FEED, "changes"), options)
    return View(project(asked, options.value_format, options.mode), options)


def _fixed(asked: "StructType", of: pa.Schema, option: str) -> Projection:
    types = {each.name: each.dataType.simpleString() for each in spark_schema(of).fields}
    for each in asked.fields:
        if each.name not in types:
            raise UsageError(f"with {option} there is no column {each.name!r}; the columns are {', '.join(types)}")
        if each.dataType.simpleString() != types[each.name]:
            raise UsageError(f"column {each.name} is {types[each.name]}, not {each.dataType.simpleString()}")
    return Projection(pa.schema([of.field(name) for name in asked.names]), ())
