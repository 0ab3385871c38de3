"""Reads a range of the log, or of an export, as Arrow batches: for pandas, polars, DuckDB, or any Arrow library.

    from raftlog import arrow

    rows = arrow.log("http://127.0.0.1:7001", columns=["index", "key", "value"])
    rows.table().to_pandas()

`LogRows` can be read any number of times and gives the same rows each time: its range is fixed when it is made. A
reader of it holds some slabs in memory, not the range. docs/query.md is the guide.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from raftlog.cluster.api.text import how_to_install

try:
    import numpy  # noqa: F401  # what decodes the log
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds
except ImportError as error:
    raise ImportError(
        f"raftlog.arrow needs the package {error.name}, which is not installed: {how_to_install('arrow')}"
    ) from error

from raftlog.spark_export.columns.records import RECORDS, Records, is_user
from raftlog.spark_export.columns.schema import EVENT_TIME, SHOWN
from raftlog.spark_export.errors import DataLossError, UsageError
from raftlog.spark_export.export import delta
from raftlog.spark_export.export.manifest import Manifest, internal_files, range_of, read_manifest
from raftlog.spark_export.export.place import Place, StorePlace, place_of, source
from raftlog.spark_export.fetch import door
from raftlog.spark_export.fetch.door import PATIENCE_S
from raftlog.spark_export.fetch.ranges import Range
from raftlog.spark_export.fetch.reader import read

__all__ = ["SCHEMA", "LogRows", "Records", "export", "log"]

SCHEMA: Final = SHOWN
"""All columns, in order: those of docs/spark.md, with `event_time`."""

BATCH_ROWS: Final = 65_536
"""Most rows of a batch from an export. A batch from a cluster holds what one slab of about 4 MiB does."""

_NEEDED: Final = ("operation", "result")


@dataclass(frozen=True, slots=True)
class LogRows:
    """The records `first` to `last` of one log, both included; an Arrow stream (`__arrow_c_stream__`)."""

    log_id: str
    first: int
    last: int
    columns: tuple[str, ...]
    records: Records
    place: "_Cluster | _Export"

    @property
    def schema(self) -> pa.Schema:
        """The columns that were asked for."""
        return pa.schema([SCHEMA.field(name) for name in self.columns])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """The batches in the order of indexes. Raises UnreachableError, DataLossError; never ends short."""
        if self.first > self.last:
            return iter(())
        return self.place.batches(self.first, self.last, self.columns, self.records)

    def reader(self) -> pa.RecordBatchReader:
        """The batches as pyarrow's stream, which can be read once."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def table(self) -> pa.Table:
        """All rows in memory."""
        return pa.Table.from_batches(list(self), self.schema)

    @property
    def urls(self) -> tuple[str, ...] | None:
        """The nodes, where these are rows of a running cluster."""
        return self.place.urls if isinstance(self.place, _Cluster) else None

    @property
    def is_stale(self) -> bool:
        """Whether one node gave the range, because there was no leader."""
        return isinstance(self.place, _Cluster) and self.place.is_stale

    @property
    def timeout_s(self) -> float:
        """How long no node may answer."""
        return self.place.timeout_s if isinstance(self.place, _Cluster) else PATIENCE_S

    def files(self) -> list[str] | None:
        """The Parquet files that hold these rows, maybe with others, where these are rows of an export in a folder."""
        return None if isinstance(self.place, _Cluster) else self.place.files(self.records)

    def __arrow_c_schema__(self) -> Any:
        """The schema, for other Arrow libraries."""
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """A new stream of the batches, for other Arrow libraries."""
        return self.reader().__arrow_c_stream__(requested_schema)


def log(
    endpoints: str | Sequence[str],
    first: int | None = None,
    last: int | None = None,
    *,
    columns: Sequence[str] | None = None,
    records: Records = "user",
    timeout_s: float = PATIENCE_S,
    may_be_stale: bool = False,
) -> LogRows:
    """The rows of a running cluster, from `first` (None: the oldest index) to `last` (None: the committed end).

    Without a leader it waits for one, or, if it `may_be_stale`, has the rows that one node has.

    Every byte is checked on the way, and a node that fails is replaced by the next one. Raises UsageError,
    UnreachableError, and DataLossError where `first` is no longer kept.
    """
    urls = door.parse_endpoints(endpoints if isinstance(endpoints, str) else ",".join(endpoints))
    names, kept = _columns(columns), _records(records)
    page, is_stale = door.bounds_now(urls, patience_s=timeout_s, is_leader_due=not may_be_stale)
    start, end = _range(first, last, page.oldest, page.index, f"the log at {', '.join(urls)}")
    if start < page.oldest:
        raise DataLossError(
            f"index {start} is no longer kept: the log begins at index {page.oldest} now. Begin there, or read the "
            f"older records from an export"
        )
    return LogRows(page.log, start, end, names, kept, _Cluster(urls, page.log, timeout_s, is_stale))


def export(
    folder: str | Path,
    first: int | None = None,
    last: int | None = None,
    *,
    columns: Sequence[str] | None = None,
    records: Records = "user",
) -> LogRows:
    """The rows of an export in a folder or a store, by its manifest. Raises UsageError, and NotCheckedError where there
    is no export.

    The files are read as they are; `raftlog verify` proves them.
    """
    names, kept = _columns(columns), _records(records)
    where = folder if isinstance(folder, Path) else place_of(folder)
    manifest = read_manifest(where)
    start, end = _range(first, last, manifest.first, manifest.last, f"the export in {folder}")
    if start < manifest.first:
        raise UsageError(f"the export in {folder} begins at index {manifest.first}, not at {start}: begin there")
    return LogRows(manifest.log, start, end, names, kept, _Export(where, manifest))


def _columns(asked: Sequence[str] | None) -> tuple[str, ...]:
    if asked is None:
        return tuple(SCHEMA.names)
    if isinstance(asked, str):
        raise UsageError(f"columns is {asked!r}; give a list of names, as [{asked!r}]")
    for name in asked:
        if name not in SCHEMA.names:
            raise UsageError(f"there is no column {name!r}; the columns are {', '.join(SCHEMA.names)}")
    return tuple(dict.fromkeys(asked))


def _records(asked: str) -> Records:
    for word in RECORDS:
        if asked == word:
            return word
    raise UsageError(f"records is {asked!r}; it may be user or all")


def _range(first: int | None, last: int | None, oldest: int, newest: int, what: str) -> tuple[int, int]:
    start, end = oldest if first is None else first, newest if last is None else last
    if start < 1 or end > newest or start > end + 1:
        raise UsageError(f"there are no records {start} to {end}: {what} has the indexes {oldest} to {newest}")
    return start, end


@dataclass(frozen=True, slots=True)
class _Cluster:
    """Rows of a running cluster."""

    urls: tuple[str, ...]
    log_id: str
    timeout_s: float
    is_stale: bool

    def batches(self, first: int, last: int, columns: Sequence[str], records: Records) -> Iterator[pa.RecordBatch]:
        """As the source of Spark reads them."""
        wanted = Range(self.urls, self.log_id, first, last + 1, patience_s=self.timeout_s)
        return read(wanted, columns, with_internal=records == "all")


def _dataset(paths: Sequence[Place]) -> ds.Dataset:
    if isinstance(paths[0], Path):
        return ds.dataset([str(path) for path in paths], format="parquet", schema=SCHEMA)
    form = ds.ParquetFileFormat()
    return ds.FileSystemDataset([form.make_fragment(source(path)) for path in paths], SCHEMA, form)


@dataclass(frozen=True, slots=True)
class _Export:
    """Rows of Parquet files. An export of user records keeps the others in files beside them."""

    folder: Place
    manifest: Manifest

    def batches(self, first: int, last: int, columns: Sequence[str], records: Records) -> Iterator[pa.RecordBatch]:
        """The rows of one range of files after the other, each in the order of indexes."""
        is_split = self.manifest.layout.records == "user"
        names = [name for name in columns if name != EVENT_TIME]
        hidden = ["index", *(["time", "client_time"] if EVENT_TIME in columns else [])]
        if records == "user" and not is_split:
            hidden += _NEEDED
        names += [name for name in hidden if name not in names]
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        for begin, end, paths in self._parts(with_internal=records == "all" and is_split):
            if end < first or begin > last:
                continue
            begin, end = max(begin, first), min(end, last)
            index = ds.field("index")
            table = _dataset(paths).to_table(names, filter=(index >= begin) & (index <= end)).sort_by("index")
            if records == "user" and not is_split:
                table = table.filter(is_user(table))
            if EVENT_TIME in columns:
                times = pc.coalesce(table.column("client_time"), table.column("time"))
                table = table.append_column(SCHEMA.field(EVENT_TIME), times)
            yield from (batch for batch in table.select(schema.names).cast(schema).to_batches(BATCH_ROWS) if len(batch))

    def files(self, records: Records) -> list[str] | None:
        """The absolute paths of the files; None for objects of a store."""
        if isinstance(self.folder, StorePlace):
            return None
        with_internal = records == "all" and self.manifest.layout.records == "user"
        paths = {path.resolve() for _, _, paths in self._parts(with_internal=with_internal) for path in paths}
        return sorted(map(str, paths))

    def _parts(self, *, with_internal: bool) -> Iterator[tuple[int, int, list[Place]]]:
        """Ranges of indexes in order, each with the files that hold its rows."""
        if self.manifest.layout.table == "parquet":
            for entry in self.manifest.files:
                names = entry.names if with_internal else (entry.name,)
                yield entry.first, entry.last, [self.folder / name for name in names]
            return
        # A Delta table may have been rewritten: any of its files may hold rows of a range.
        data = delta.files(self.folder, self.manifest)
        beside = {range_of(path.name): path for path in internal_files(self.folder, self.manifest)}
        for begin in range(self.manifest.first, self.manifest.last + 1, self.manifest.layout.records_per_file):
            end = min(begin + self.manifest.layout.records_per_file - 1, self.manifest.last)
            near: list[Place] = [path for span, path in beside.items() if span and span[0] <= end and span[1] >= begin]
            yield begin, end, [*data, *(near if with_internal else [])]
