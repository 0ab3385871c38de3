"""Writes records as Parquet files: aside, checksummed on the way, and given their names when they are whole.

Runs in tasks, on any executor. A task that runs twice, or twice at once, leaves one file per range. A file gets its
name only once; the second task uses the file of the first.
"""

import hashlib
import io
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raftlog.raft.codec.checks import Corrupt
from raftlog.spark_export.columns.records import is_user
from raftlog.spark_export.columns.schema import ARROW, SCHEMA_VERSION
from raftlog.spark_export.errors import CannotWriteError, ExportError
from raftlog.spark_export.export.manifest import DATA, INTERNAL, Companion, FileEntry, Layout, file_name, range_of
from raftlog.spark_export.export.place import Place
from raftlog.spark_export.fetch.ranges import Range
from raftlog.spark_export.fetch.reader import read

_COMPRESSION: Final = "zstd"
_WORDS: Final = ["term", "time", "kind", "operation", "result", "session", "revision"]
"""Columns of few or slowly changing values: the others are not worth the search for repetitions."""
_GROUP_ROWS: Final = 1 << 18
_DAY_US: Final = 86_400_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
FLAT: Final = Layout()


class _Hashing(io.RawIOBase):
    """A file that hashes the bytes written to it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self.sha256 = hashlib.sha256()
        self.bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.sha256.update(view)
        self.bytes += view.nbytes
        return self._file.write(view)

    def close(self) -> None:
        if not self._file.closed:
            try:
                self._file.flush()
                os.fsync(self._file.fileno())
            finally:
                self._file.close()
        super().close()


# ---------------------------------------------------------------------------------------------------------------
# From the log.


def write_range(wanted: Range, folder: Path, layout: Layout = FLAT) -> list[FileEntry]:
    """Writes the records of the range to files in `folder`, one for each folder of the layout that the range touches;
    internal records beside it, if the layout asks for user records.

    Files that exist already are kept as they are. Returns the content of each. Raises CannotWriteError.
    """
    entries = []
    position = wanted.start
    while position < wanted.stop and (found := _adopted(wanted, folder, position, layout)) is not None:
        entries.append(found)
        position = found.last + 1
    if position < wanted.stop:
        groups = _groups(read(replace(wanted, start=position)))
        for place, tables in _by_place(groups, layout):
            entry = _write(tables, wanted.log_id, folder, place, layout)
            entries.append(entry)
            position = entry.last + 1
    if position != wanted.stop:
        raise Corrupt(f"got the records up to index {position - 1} of [{wanted.start}, {wanted.stop})")
    return entries


def _groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches gathered to the size of a row group."""
    gathered: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        gathered.append(batch)
        rows += batch.num_rows
        if rows >= _GROUP_ROWS:
            yield pa.Table.from_batches(gathered)
            gathered, rows = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered)


def _by_place(groups: Iterator[pa.Table], layout: Layout) -> Iterator[tuple[str, Iterator[pa.Table]]]:
    """The tables cut where the folder changes: per folder its tables. Each must be used up before the next."""
    waiting = ((place, table) for group in groups for place, table in _cut(group, layout))
    current = next(waiting, None)

    def of(place: str) -> Iterator[pa.Table]:
        nonlocal current
        while current is not None and current[0] == place:
            yield current[1]
            current = next(waiting, None)

    while current is not None:
        yield current[0], of(current[0])


def _cut(table: pa.Table, layout: Layout) -> Iterator[tuple[str, pa.Table]]:
    """The table in slices of one folder each. Index and time never go back, so few slices are enough."""
    if layout.partition_by == "none":
        yield "", table
        return
    if layout.partition_by == "day":
        numbers = table.column("time").cast(pa.int64()).to_numpy() // _DAY_US
    else:
        numbers = table.column("index").to_numpy() // layout.partition_records
    cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for begin, end in pairwise(cuts):
        yield f"{layout.column}={_value(int(numbers[begin]), layout)}", table.slice(begin, end - begin)


def _value(number: int, layout: Layout) -> str:
    """What the folder of that number is named for: a date, or the index where it begins."""
    if layout.partition_by == "day":
        return (_EPOCH + timedelta(days=number)).date().isoformat()
    return str(number * layout.partition_records)


class _File:
    """A Parquet file under way, beside its place."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self.aside = folder / f".{uuid.uuid4().hex}.tmp"
        self.rows = 0
        self._schema = schema
        self._open = ExitStack()
        self._open.callback(self.aside.unlink, missing_ok=True)
        self.sink = self._open.enter_context(_Hashing(self.aside))
        file = self._open.enter_context(pa.PythonFile(self.sink, mode="w"))
        options = {"compression": _COMPRESSION, "use_dictionary": _WORDS, "write_statistics": True}
        self._writer = self._open.enter_context(pq.ParquetWriter(file, schema, **options))

    def add(self, table: pa.Table) -> None:
        """Writes these rows."""
        if table.num_rows:
            self.rows += table.num_rows
            self._writer.write_table(table.cast(self._schema), row_group_size=_GROUP_ROWS)

    def finish(self, notes: dict[str, int | str]) -> None:
        """Makes the file whole, with these notes in its footer."""
        self._writer.add_key_value_metadata({f"raftlog.{name}": str(value) for name, value in notes.items()})
        self._writer.close()
        self.sink.close()

    def drop(self) -> None:
        """Closes the file, and removes it where it did not get a name."""
        self._open.close()


def _write(tables: Iterator[pa.Table], log_id: str, folder: Path, place: str, layout: Layout) -> FileEntry:
    user = count = 0
    first = last = -1
    time_min, time_max = 1 << 62, -1 << 62
    schema = ARROW.with_metadata({"raftlog.log": log_id, "raftlog.schema": str(SCHEMA_VERSION)})
    with _told(folder), ExitStack() as stack:
        main = _File(folder, schema)
        stack.callback(main.drop)
        beside = None
        if layout.records == "user":
            (folder.parent / INTERNAL).mkdir(exist_ok=True)
            beside = _File(folder.parent / INTERNAL, schema)
            stack.callback(beside.drop)
        for table in tables:
            indexes = table.column("index")
            first = indexes[0].as_py() if first < 0 else first
            last = indexes[-1].as_py()
            mask = is_user(table)
            user += int(pa.compute.sum(mask).as_py() or 0)
            count += table.num_rows
            times = table.column("time").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
            bounds = pa.compute.min_max(times)
            time_min, time_max = min(time_min, bounds["min"].as_py()), max(time_max, bounds["max"].as_py())
            if beside is None:
                main.add(table)
            else:
                main.add(table.filter(mask))
                beside.add(table.filter(pa.compute.invert(mask)))
        if count != last - first + 1:
            raise Corrupt(f"got {count} rows for the indexes {first} to {last}")
        notes: dict[str, int | str] = {"user": user, "time_min_ms": time_min, "time_max_ms": time_max}
        for file in filter(None, (beside, main)):
            file.finish(notes)
        name = "/".join(filter(None, (place, file_name(first, last))))
        companion = None
        if beside is not None:
            companion = Companion(f"{INTERNAL}/{name}", beside.rows, beside.sink.bytes, beside.sink.sha256.hexdigest())
            path = folder.parent / companion.name
            path.parent.mkdir(exist_ok=True)
            beside.aside.rename(path)
        entry = FileEntry(
            f"{DATA}/{name}",
            first,
            last,
            main.rows,
            user,
            main.sink.bytes,
            main.sink.sha256.hexdigest(),
            time_min,
            time_max,
            companion,
        )
        return _named(main.aside, entry, log_id, folder, layout)


def _named(aside: Path, entry: FileEntry, log_id: str, folder: Path, layout: Layout) -> FileEntry:
    """Gives the file its name. If a whole file has the name already, that file counts, and its entry is returned."""
    path = folder / Path(entry.name).relative_to(DATA)
    path.parent.mkdir(exist_ok=True)  # not its parents: a folder that another run has taken away stays away
    try:
        os.link(aside, path)
    except FileExistsError:
        theirs = _entry_of(path, log_id, folder, layout)
        if theirs is not None:
            return theirs
        aside.replace(path)
    except PermissionError:  # a file system without hard links
        aside.rename(path)
    return entry


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    """What the disk says, as an error for people."""
    try:
        yield
    except OSError as error:
        raise CannotWriteError(
            f"{folder} cannot be written: {error.strerror or error}; free disk space or fix the folder, and run the "
            f"same command again: complete files are kept"
        ) from error


def count_user(rows: pa.Table | pa.RecordBatch) -> int:
    """How many of the rows are user records."""
    return int(pa.compute.sum(is_user(rows)).as_py() or 0)


def _adopted(wanted: Range, folder: Path, start: int, layout: Layout) -> FileEntry | None:
    """What an earlier run wrote from index `start` on, or None where it wrote nothing, or not this."""
    for path in sorted(folder.glob(f"**/index-{start:016d}-*.parquet")):
        entry = _entry_of(path, wanted.log_id, folder, layout)
        if entry is not None and entry.last < wanted.stop:
            return entry
        path.unlink(missing_ok=True)
    return None


def _entry_of(path: Path, log_id: str, folder: Path, layout: Layout) -> FileEntry | None:
    """The content of a file that a task wrote, or None if it or its companion is damaged, or of another log."""
    try:
        indexes = range_of(path.name)
        place = path.relative_to(folder).as_posix()
        notes = _notes(path)
        companion = None
        if layout.records == "user":
            beside = folder.parent / INTERNAL / place
            companion = Companion(
                f"{INTERNAL}/{place}", pq.read_metadata(beside).num_rows, beside.stat().st_size, sha256_of(beside)
            )
            if _notes(beside)["raftlog.log"] != log_id:
                return None
        if indexes is None or notes["raftlog.log"] != log_id:
            return None
        user, time_min, time_max = (int(notes[f"raftlog.{name}"]) for name in ("user", "time_min_ms", "time_max_ms"))
        entry = FileEntry(
            f"{DATA}/{place}",
            *indexes,
            pq.read_metadata(path).num_rows,
            user,
            path.stat().st_size,
            sha256_of(path),
            time_min,
            time_max,
            companion,
        )
        return entry if entry.count == entry.last - entry.first + 1 else None
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return None


def _notes(path: Path) -> dict[str, str]:
    footer = pq.read_metadata(path).metadata or {}
    return {key.decode(): value.decode() for key, value in footer.items() if b"raftlog" in key}


def sha256_of(path: Place) -> str:
    """Of the bytes of a file."""
    with path.open("rb") if isinstance(path, Path) else path.open() as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---------------------------------------------------------------------------------------------------------------
# From small files.


def join_files(parts: Sequence[FileEntry], export: Place, folder: Path, log_id: str, layout: Layout) -> FileEntry:
    """One file in `folder` with the rows of small ones that follow one another in the export. Raises CannotWriteError,
    and ExportError where one of them is not what the export wrote: damage is not to be passed on under a new sum."""

    def tables() -> Iterator[pa.Table]:
        due = parts[0].first
        for part in parts:
            sums = [part.sha256] if part.internal is None else [part.internal.sha256, part.sha256]
            files = [(export / name).read_bytes() for name in part.names]
            if [hashlib.sha256(data).hexdigest() for data in files] != sums or part.first != due:
                raise ExportError(f"{part.name} is not the file that the export wrote: run `raftlog verify {export}`")
            due = part.last + 1
            found = [pq.read_table(pa.BufferReader(data)) for data in files]
            yield found[0] if len(found) == 1 else pa.concat_tables(found).sort_by("index")

    place = Path(parts[0].name).parent.relative_to(DATA)
    return _write(tables(), log_id, folder, "" if place == Path() else place.as_posix(), layout)
