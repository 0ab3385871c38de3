"""Writes records as Parquet files: aside, checksummed on the way, and given their names when they are whole.

Runs in tasks, on whichever executor. A task that is run twice, or twice at once, leaves one file per range: a name is
given once, and who comes second takes the first one's file.
"""

import hashlib
import io
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raft.codec import Corrupt
from spark_export.errors import CannotWriteError, ExportError
from spark_export.manifest import DATA, FileEntry, Layout, file_name, range_of
from spark_export.ranges import Range
from spark_export.reader import read
from spark_export.schema import ARROW, SCHEMA_VERSION, USER_OPERATIONS, USER_RESULTS

_COMPRESSION: Final = "zstd"
_WORDS: Final = ["term", "time", "kind", "operation", "result", "session", "revision"]
"""Columns of few or slowly changing values: the others are not worth the search for repetitions."""
_GROUP_ROWS: Final = 1 << 18
_DAY_US: Final = 86_400_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
FLAT: Final = Layout()


class _Hashing(io.RawIOBase):
    """A file that hashes what is written to it."""

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
    """Writes the records of the range to files in `folder`, one for each folder of the layout that they reach into;
    those that are there already are taken as they are. Says what is in each. Raises CannotWriteError."""
    entries = []
    position = wanted.start
    while position < wanted.stop and (found := _adopted(wanted, folder, position)) is not None:
        entries.append(found)
        position = found.last + 1
    if position < wanted.stop:
        groups = _groups(read(replace(wanted, start=position)))
        for place, tables in _by_place(groups, layout):
            entry = _write(tables, wanted.log_id, folder, place)
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


def _write(tables: Iterator[pa.Table], log_id: str, folder: Path, place: str) -> FileEntry:
    user = rows = 0
    first = last = -1
    time_min, time_max = 1 << 62, -1 << 62
    schema = ARROW.with_metadata({"raftlog.log": log_id, "raftlog.schema": str(SCHEMA_VERSION)})
    aside = folder / f".{uuid.uuid4().hex}.tmp"
    with _told(folder):
        try:
            sink = _Hashing(aside)
            with (
                sink,
                pa.PythonFile(sink, mode="w") as file,
                pq.ParquetWriter(
                    file, schema, compression=_COMPRESSION, use_dictionary=_WORDS, write_statistics=True
                ) as writer,
            ):  # fmt: skip
                for table in tables:
                    indexes = table.column("index")
                    first = indexes[0].as_py() if first < 0 else first
                    last = indexes[-1].as_py()
                    user += count_user(table)
                    rows += table.num_rows
                    times = table.column("time").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
                    bounds = pa.compute.min_max(times)
                    time_min, time_max = min(time_min, bounds["min"].as_py()), max(time_max, bounds["max"].as_py())
                    writer.write_table(table.cast(schema), row_group_size=_GROUP_ROWS)
                notes = {"user": user, "time_min_ms": time_min, "time_max_ms": time_max}
                writer.add_key_value_metadata({f"raftlog.{name}": str(value) for name, value in notes.items()})
            if rows != last - first + 1:
                raise Corrupt(f"got {rows} rows for the indexes {first} to {last}")
            return _named(aside, FileEntry(
                "/".join(filter(None, (DATA, place, file_name(first, last)))), first, last, rows, user, sink.bytes,
                sink.sha256.hexdigest(), time_min, time_max,
            ), log_id, folder)  # fmt: skip
        finally:
            aside.unlink(missing_ok=True)


def _named(aside: Path, entry: FileEntry, log_id: str, folder: Path) -> FileEntry:
    """Gives the file its name, unless a whole one has it already: then that one counts, and is told."""
    path = folder / Path(entry.name).relative_to(DATA)
    path.parent.mkdir(exist_ok=True)  # not its parents: a folder that another run has taken away stays away
    try:
        os.link(aside, path)
    except FileExistsError:
        theirs = _entry_of(path, log_id, folder)
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
            f"{folder} cannot be written: {error.strerror or error}; make room or mend it, and run the same command "
            f"again: what is whole is kept"
        ) from error


def count_user(table: pa.Table) -> int:
    """How many of the rows are user records."""
    is_user = pa.compute.and_(
        pa.compute.is_in(table.column("operation"), pa.array(USER_OPERATIONS)),
        pa.compute.is_in(table.column("result"), pa.array(USER_RESULTS)),
    )
    return int(pa.compute.sum(is_user).as_py() or 0)


def _adopted(wanted: Range, folder: Path, start: int) -> FileEntry | None:
    """What an earlier run wrote from index `start` on, or None where it wrote nothing, or not this."""
    for path in sorted(folder.glob(f"**/index-{start:016d}-*.parquet")):
        entry = _entry_of(path, wanted.log_id, folder)
        if entry is not None and entry.last < wanted.stop:
            return entry
        path.unlink(missing_ok=True)
    return None


def _entry_of(path: Path, log_id: str, folder: Path) -> FileEntry | None:
    """What is in a file that a task wrote, or None where it is damaged or of another log."""
    try:
        indexes = range_of(path.name)
        footer = pq.read_metadata(path)
        notes = {key.decode(): value.decode() for key, value in (footer.metadata or {}).items() if b"raftlog" in key}
        if indexes is None or footer.num_rows != indexes[1] - indexes[0] + 1 or notes["raftlog.log"] != log_id:
            return None
        numbers = [int(notes[f"raftlog.{name}"]) for name in ("user", "time_min_ms", "time_max_ms")]
        return FileEntry(
            f"{DATA}/{path.relative_to(folder).as_posix()}", *indexes, footer.num_rows, numbers[0],
            path.stat().st_size, sha256_of(path), *numbers[1:],
        )  # fmt: skip
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return None


def sha256_of(path: Path) -> str:
    """Of the bytes of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---------------------------------------------------------------------------------------------------------------
# From small files.


def join_files(parts: Sequence[FileEntry], export: Path, folder: Path, log_id: str) -> FileEntry:
    """One file in `folder` with the rows of small ones that follow one another in the export. Raises CannotWriteError,
    and ExportError where one of them is not what the export wrote: damage is not to be passed on under a new sum."""

    def tables() -> Iterator[pa.Table]:
        due = parts[0].first
        for part in parts:
            data = (export / part.name).read_bytes()
            if hashlib.sha256(data).hexdigest() != part.sha256 or part.first != due:
                raise ExportError(f"{part.name} is not the file that the export wrote: run `raftlog verify {export}`")
            due = part.last + 1
            yield pq.read_table(pa.BufferReader(data))

    place = Path(parts[0].name).parent.relative_to(DATA)
    return _write(tables(), log_id, folder, "" if place == Path() else place.as_posix())
