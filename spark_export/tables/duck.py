"""Answers SQL about the rows of a cluster or of an export, by DuckDB in this process.

`log` is the view of the rows. `events` has the columns of the newest import too, and a view of each name of an import
has those of that import (`value_schema.py`). The rows of an export are read by DuckDB itself from the files of its
manifest; those of a cluster are read again by each scan, all of the same range.
"""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from raftlog.cluster.api.text import how_to_install
from raftlog.cluster.importer.formats.rows import BOOLEANS, COMMA_NUMBER
from raftlog.cluster.importer.formats.schema import PREFIX
from raftlog.spark_export.columns.schema import USER_OPERATIONS, USER_RESULTS
from raftlog.spark_export.errors import ExportError, ExtraMissingError, NotCheckedError, UsageError
from raftlog.spark_export.fetch import imports
from raftlog.spark_export.tables.arrow import LogRows
from raftlog.spark_export.tables.value_schema import NESTED, ValueColumn, ValueSchema, of_stored

_TYPES: Final = {
    "integer": "BIGINT",
    "number": "DOUBLE",
    COMMA_NUMBER: "DOUBLE",
    "boolean": "BOOLEAN",
} | dict.fromkeys(NESTED, "JSON")
_FITTING: Final = {
    "integer": r"[+-]?[0-9]+(\.0+)?",
    "number": "[^_]*",
    COMMA_NUMBER: "[^_]*",
    "boolean": "|".join(BOOLEANS),
}
"""Patterns of the cells that a column takes. DuckDB alone would take 2.7 as 3, 0x1f and 1_000, and yes, 1 and 0 as
booleans; the Spark source takes none of them either."""

_IS_MISSING: Final = re.compile(r"(?:column|Table with name) \S+ (?:not found|does not exist)|No files found")
_GLOB: Final = frozenset("*?[")


class _WatchedRows:
    """The rows for DuckDB. It keeps the error of a failed read, of which DuckDB gives only a text."""

    def __init__(self, rows: LogRows) -> None:
        self.rows = rows
        self.failed: ExportError | None = None

    def __arrow_c_schema__(self) -> Any:
        return self.rows.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        reader = pa.RecordBatchReader.from_batches(self.rows.schema, self._batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self.rows
        except ExportError as error:
            self.failed = error
            raise


@dataclass(slots=True)
class Tables:
    """A connection of DuckDB with the views `log` and, where there are imports, `events` and one for each name."""

    connection: Any
    watched: _WatchedRows
    views: list[str] = field(default_factory=list)  # of imports, the newest first
    events: str = ""  # which imports the view `events` has

    def ask(self, sql: str) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
        """The names of the columns, no two alike, and the rows as they are taken. Raises UsageError for SQL that is not
        right, and what reading the log raises."""
        with self._told():
            self.connection.execute(sql)
            names: list[str] = []
            for name, *_ in self.connection.description or ():
                while name in names:
                    name += "_"
                names.append(name)
        return names, self._rows()

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        while True:
            with self._told():
                some = self.connection.fetchmany(1_000)
            if not some:
                return
            yield from some

    @contextmanager
    def _told(self) -> Iterator[None]:
        import duckdb

        try:
            yield
        except duckdb.Error as error:
            if self.watched.failed is not None:
                raise self.watched.failed from error
            reason = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
            mend = ""
            if "events" in reason and not self.views:
                mend = ". There is no view events: the log has no import"
            elif self.views and _IS_MISSING.search(reason):
                mend = (
                    f". events is of the import {self.events}; the view of each is {', '.join(map(_name, self.views))}"
                )
            raise UsageError(f"the SQL was not carried out: {reason}{mend}") from error
        except RuntimeError as error:
            if "interrupted" in str(error):  # what DuckDB makes of Ctrl-C
                raise KeyboardInterrupt from error
            raise


@contextmanager
def opened(rows: LogRows) -> Iterator[Tables]:
    """The views of these rows; what does not fit into memory goes to a temporary folder. Raises ExtraMissingError."""
    try:
        import duckdb
    except ImportError as error:
        raise ExtraMissingError(
            f"this command needs the package duckdb, which is not installed: {how_to_install('query')}"
        ) from error
    with tempfile.TemporaryDirectory(prefix="raftlog-query-") as folder:
        # An extension would be downloaded: what the package brings is enough.
        settings: dict[str, Any] = {"autoinstall_known_extensions": "false", "temp_directory": folder}
        connection = duckdb.connect(config=settings)
        try:
            connection.execute("SET TimeZone = 'UTC'")
            watched = _WatchedRows(rows)
            paths = rows.files()
            if paths is None or any(_GLOB & {*path} for path in paths):
                connection.register("log", watched)
            else:
                _view_of_files(connection, rows, paths)
            connection.execute("CREATE MACRO text(value) AS try(decode(value))")
            tables = Tables(connection, watched)
            taken = {"log", "events"}
            newest, by_name = of_stored(_stored(tables) if "value" in rows.columns else ())
            if newest is not None:
                view = _of_values(connection, "raftlog_cells_of_events", rows, newest)
                connection.execute(f"CREATE VIEW events AS {view}")
                tables.events = str(newest.source)
            for name, schema in by_name.items():
                view = _of_values(connection, f"raftlog_cells_{len(taken)}", rows, schema)
                while name.lower() in taken:  # to SQL upper and lower case are the same
                    name += "_"
                taken.add(name.lower())
                connection.execute(f"CREATE VIEW {_name(name)} AS {view}")
                tables.views.append(name)
            yield tables
        finally:
            connection.close()


def _view_of_files(connection: Any, rows: LogRows, paths: list[str]) -> None:
    """The view `log` of an export. Raises NotCheckedError for a file that is damaged or gone."""
    import duckdb

    try:
        connection.execute(f"CREATE VIEW log AS {_of_files(rows, paths)}")
    except duckdb.Error as error:
        reason = str(error).partition("\n")[0]
        raise NotCheckedError(
            f"a file of the export cannot be read: {reason}; raftlog verify names all such"
        ) from error


def _of_files(rows: LogRows, paths: list[str]) -> str:
    """The view of the files: the same columns and rows as `rows`."""
    files = ", ".join(map(_text, paths))
    columns = ", ".join(
        "coalesce(client_time, time) AS event_time" if name == "event_time" else _name(name) for name in rows.columns
    )
    where = f"index BETWEEN {rows.first} AND {rows.last}"
    if rows.records == "user":
        operations, results = (", ".join(map(_text, each)) for each in (USER_OPERATIONS, USER_RESULTS))
        where += f" AND operation IN ({operations}) AND result IN ({results})"
    return f"SELECT {columns} FROM read_parquet([{files}], hive_partitioning = false) WHERE {where}"


def _of_values(connection: Any, function: str, rows: LogRows, schema: ValueSchema) -> str:
    """The view of the records of the imports with the columns of their values behind those of the log.

    `function`: a name for the function that reads values that are no JSON."""
    if schema.form == "json":
        split = "CASE WHEN json_valid(text(value)) THEN text(value)::JSON END"
        cells = [f"raftlog_cells {_arrow(column)} {_text(_pointer(column.name))}" for column in schema.columns]
    else:
        cells_in = schema.cells_reader()

        def cells_of(values: pa.ChunkedArray) -> pa.Array:
            return pa.array(cells_in(values.to_pylist()), pa.list_(pa.string()))

        connection.create_function(function, cells_of, ["BLOB"], "VARCHAR[]", type="arrow", null_handling="special")
        split = f"{function}(value)"
        cells = [f"raftlog_cells[{place}]" for place in range(1, len(schema.columns) + 1)]
    for place, column in enumerate(schema.columns):
        if column.type == COMMA_NUMBER:
            cells[place] = f"replace({cells[place]}, ',', '.')"
    shown = [
        f"{_cast(cell, column.type)} AS {_name(name)}"
        for column, cell, name in zip(schema.columns, cells, schema.named(rows.columns), strict=True)
    ]
    sessions = ", ".join(map(str, schema.sessions))
    # Where an import read times, a record without one has none: the leader's would put it into a wrong window.
    read = " REPLACE (client_time AS event_time)" if schema.time is not None else ""
    return (
        f"SELECT * EXCLUDE (raftlog_cells){read}, {', '.join(shown)} FROM (SELECT *, {split} AS raftlog_cells FROM log "
        f"WHERE operation = 'append' AND session IN ({sessions}))"
    )


def _cast(cell: str, type: str) -> str:
    """The cell in the type of its column, null if it does not fit."""
    cast = f"try_cast({cell} AS {_TYPES.get(type, 'VARCHAR')})"
    return f"CASE WHEN regexp_full_match({cell}, {_text(_FITTING[type])}) THEN {cast} END" if type in _FITTING else cast


def _arrow(column: ValueColumn) -> str:
    """The operator that takes a member: as JSON, or as text."""
    return "->" if column.type in NESTED else "->>"


def _pointer(member: str) -> str:
    """The JSON pointer (RFC 6901) of a member, whatever its name."""
    return "/" + member.replace("~", "~0").replace("/", "~1")


def _stored(tables: Tables) -> list[tuple[bytes, bytes]]:
    """Keys and values of the schemas that imports have stored."""
    urls = tables.watched.rows.urls
    if urls is None:
        prefix = PREFIX.decode()
        sql = f"SELECT key, value FROM log WHERE operation = 'put' AND starts_with(text(key), {_text(prefix)})"
        _, rows = tables.ask(sql) if {"key", "operation"} <= {*tables.watched.rows.columns} else ([], iter(()))
        return [(key, value or b"") for key, value in rows]
    log = tables.watched.rows
    return [*imports.records(urls, log.timeout_s, is_linearizable=not log.is_stale)]


def _text(value: str) -> str:
    """A text of SQL."""
    return "'" + value.replace("'", "''") + "'"


def _name(value: str) -> str:
    """A name of SQL."""
    return '"' + value.replace('"', '""') + '"'
