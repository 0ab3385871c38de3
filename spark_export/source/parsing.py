"""Parses the values of a range in a task: chooses the parser of each record, and shows the columns of the projection.

With valueFormat=auto the parser is that of the import that wrote the record, by its session. The schemas of imports are
asked for once in a task, after its records were committed, so that those of all its records are there.
"""

import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raftlog.cluster.importer.formats.forms import MISSING, Parse, parse_of, parse_of_import
from raftlog.cluster.importer.formats.schema import PREFIX
from raftlog.spark_export.columns.schema import KIND_COMMANDS, KIND_SNAPSHOT, KINDS
from raftlog.spark_export.fetch.imports import Stored, chosen, stored
from raftlog.spark_export.fetch.options import RESCUED, SourceOptions
from raftlog.spark_export.fetch.ranges import Range
from raftlog.spark_export.source.projection import VALUE, Projection
from raftlog.spark_export.source.values import Misfits, parsed

_WITH_VALUES: Final = (KINDS[KIND_COMMANDS], KIND_SNAPSHOT)


class RowReader:
    """Reads the values of batches into rows. `names`: those of the columns of CSV without an import's schema."""

    def __init__(self, options: SourceOptions, names: Iterable[str], imports: Stored | None = None) -> None:
        self.options = options
        self.imports = imports
        self._plain = parse_of(options.value_format, options.csv.dialect, tuple(names))
        self._of_import: dict[int, Parse] = {}
        by_session = ("session", "key") if options.value_format == "auto" else ()
        self.columns = ("index", VALUE, *by_session, *(("kind",) if options.include_internal else ()))
        """Columns of the log that it needs."""

    def chosen(self, batch: pa.RecordBatch, wanted: Range) -> pa.RecordBatch:
        """The records that are to be shown: with auto all but the schemas of imports, or those of one import."""
        if self.options.value_format != "auto":
            return batch
        if self.imports is None:
            self.imports = chosen(stored(wanted.endpoints, wanted.patience_s), self.options.import_source)
        is_schema = pc.fill_null(pc.starts_with(batch.column("key"), pattern=PREFIX), False)
        mask = pc.invert(is_schema)
        if self.options.import_source is not None:
            mask = pc.and_(mask, pc.is_in(batch.column("session"), pa.array([*self.imports], pa.int64())))
        return batch if pc.all(mask).as_py() in (True, None) else batch.filter(mask)

    def rows(self, batch: pa.RecordBatch) -> list[Any]:
        """The rows of the values of a chosen batch: a dict of members, another value, Unreadable, or MISSING."""
        values = batch.column(VALUE).to_pylist()
        has_value = np.array([value is not None for value in values], bool)
        if self.options.include_internal:
            of_value_kind = pc.is_in(batch.column("kind"), pa.array(_WITH_VALUES)).to_numpy(zero_copy_only=False)
            has_value &= of_value_kind.astype(bool)
        found: list[Any] = [MISSING] * len(values)
        for parse, places in self._groups(batch, np.flatnonzero(has_value)):
            for place, row in zip(places, parse([values[place] for place in places]), strict=True):
                found[place] = row
        return found

    def _groups(self, batch: pa.RecordBatch, places: "np.ndarray[Any, Any]") -> Iterator[tuple[Parse, list[int]]]:
        """The parsers of the records at these places, each with its own places."""
        if not self.imports or self.options.value_format != "auto":
            yield self._plain, places.tolist()
            return
        sessions = pc.fill_null(batch.column("session"), 0).to_numpy(zero_copy_only=False)[places]
        for session in np.unique(sessions).tolist():
            yield self._parser_of(session), places[sessions == session].tolist()

    def _parser_of(self, session: int) -> Parse:
        schema = (self.imports or {}).get(session)
        if schema is None:
            return self._plain
        if session not in self._of_import:
            self._of_import[session] = parse_of_import(schema)
        return self._of_import[session]


class Parser:
    """Shows the batches of one task as the projection wants them."""

    def __init__(self, projection: Projection, options: SourceOptions) -> None:
        self._projection = projection
        self._reader = RowReader(options, options.csv.columns or _names(projection))
        self.columns = tuple(dict.fromkeys((*projection.columns, *self._reader.columns)))
        """Columns of the log that it needs."""

    def shown(self, batches: Iterable[pa.RecordBatch], wanted: Range) -> Iterator[pa.RecordBatch]:
        """The batches with the columns of the projection. Warns once of values that became null."""
        misfits = Misfits()
        for batch in batches:
            kept = self._reader.chosen(batch, wanted)
            if not len(kept):
                continue
            if self._projection.is_plain:
                yield kept.select(self._projection.schema.names)
                continue
            indexes = kept.column("index").to_pylist()
            yield parsed(kept, self._reader.rows(kept), self._projection, indexes, misfits)
        if misfits.count:
            warnings.warn(
                f"raftlog: parts of {misfits.count} values from index {wanted.start} to {wanted.stop - 1} became null; "
                f"the first: {misfits.first}. Add a column {RESCUED} STRING to .schema(…), or set mode=FAILFAST.",
                stacklevel=2,
            )


def _names(projection: Projection) -> list[str]:
    """The columns of CSV in the order of the user's schema."""
    if VALUE in projection.schema.names and pa.types.is_struct(projection.schema.field(VALUE).type):
        return [each.name for each in projection.schema.field(VALUE).type]
    return [*projection.members]
