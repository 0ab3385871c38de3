"""Defines the views of a range: rows of the log, its changes, or the state at its end.

A view is made when a query is planned. Each streaming query starts a new process for that, so only tasks import the
modules that read and decode.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from raftlog.spark_export.columns.schema import FEED, KIND_SNAPSHOT, SHOWN, STATE, spark_schema
from raftlog.spark_export.errors import UsageError
from raftlog.spark_export.fetch.options import SourceOptions, parse_options
from raftlog.spark_export.fetch.ranges import Range
from raftlog.spark_export.source.projection import Projection, project

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
        if self.projection.is_plain and self.options.import_source is None:
            return read(wanted, self.projection.columns, selection=selection)
        from raftlog.spark_export.source.parsing import Parser

        parser = Parser(self.projection, self.options)
        return parser.shown(read(wanted, parser.columns, selection=selection), wanted)

    def snapshot(self, wanted: Range, revision: int) -> Iterator[pa.RecordBatch]:
        """The state at a revision as rows of the log: what would have to be put to make it, of kind `snapshot`."""
        if self.options.operations and "put" not in self.options.operations:
            return iter(())
        if self.projection.is_plain and self.options.import_source is None:
            return self._state(wanted, revision, self.projection.columns)
        from raftlog.spark_export.source.parsing import Parser

        parser = Parser(self.projection, self.options)
        return parser.shown(self._state(wanted, revision, parser.columns), wanted)

    def _state(self, wanted: Range, revision: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        from raftlog.spark_export.source.state import snapshot_at

        schema = pa.schema([SHOWN.field(name) for name in columns])
        for batch in snapshot_at(wanted, revision, self.options.key_prefix):
            rows = len(batch)
            own = {name: batch.column(name) for name in ("key", "value", "create", "version")}
            own["revision"] = batch.column("mod")
            own["index"] = pa.array([wanted.stop - 1] * rows, pa.int64())
            for name, text in (("kind", KIND_SNAPSHOT), ("operation", "put"), ("result", "applied")):
                own[name] = pa.array([text] * rows, pa.string())
            yield _of(own, schema, rows)


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
    form = given.get("valueformat", "auto" if "importsource" in given else "raw")
    if form == "raw" or (form in ("json", "msgpack") and given.get("inferschema") != "true"):
        return whole if form == "raw" else _with_text(whole)
    from raftlog.spark_export.source.inference import members

    parsed = _of_either(options)
    found = [each for each in members(parsed) if each.name.lower() != parsed.rescued.lower()]
    return StructType([*whole.fields, *found, StructField(parsed.rescued, StringType())])


def _with_text(whole: "StructType") -> "StructType":
    """The columns with the value as JSON text."""
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([StructField("value", StringType()) if each.name == "value" else each for each in whole.fields])


def _of_either(options: Mapping[str, str]) -> SourceOptions:
    """The options of a batch or a stream: Spark asks for the columns before it says which it is."""
    try:
        return parse_options(options)
    except UsageError as error:
        try:
            return parse_options(options, streaming=True)
        except UsageError:
            raise error from None


def view(options: SourceOptions, asked: "StructType") -> View:
    """What to show for these options and columns. Raises UsageError for a column that is not there."""
    if options.as_of is not None:
        return StateView(_fixed(asked, STATE, "asOf"), options)
    if options.changes:
        return FeedView(_fixed(asked, FEED, "changes"), options)
    return View(project(asked, options.value_format, options.mode, options.rescued), options)


def _fixed(asked: "StructType", of: pa.Schema, option: str) -> Projection:
    types = {each.name: each.dataType.simpleString() for each in spark_schema(of).fields}
    for each in asked.fields:
        if each.name not in types:
            raise UsageError(f"with {option} there is no column {each.name!r}; the columns are {', '.join(types)}")
        if each.dataType.simpleString() != types[each.name]:
            raise UsageError(f"column {each.name} is {types[each.name]}, not {each.dataType.simpleString()}")
    return Projection(pa.schema([of.field(name) for name in asked.names]), ())
