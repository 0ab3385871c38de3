"""Writes one range of the log as one Parquet file: aside, checksummed on the way, and renamed when it is whole.

Runs in a task, on whichever executor; a task that is run twice writes the same file twice and leaves one.
"""

import hashlib
import io
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from raft.codec import Corrupt
from spark_export.manifest import DATA, FileEntry, file_name
from spark_export.reader import Range, read
from spark_export.schema import ARROW, SCHEMA_VERSION, USER_OPERATIONS, USER_RESULTS

_COMPRESSION: Final = "zstd"
_WORDS: Final = ["term", "time", "kind", "operation", "result", "session", "revision"]
"""Columns of few or slowly changing values: the others are not worth the search for repetitions."""
_GROUP_ROWS: Final = 1 << 18


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
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        super().close()


def write_range(wanted: Range, folder: Path) -> FileEntry:
    """Writes the records of the range to `folder` unless its file is there already; says what is in it."""
    name = file_name(wanted.start, wanted.stop - 1)
    path = folder / name
    if (entry := _adopted(wanted, path)) is not None:
        return entry
    aside = folder / f".{name}.{uuid.uuid4().hex}.tmp"
    try:
        entry = _write(wanted, aside, name)
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)
    return entry


def _write(wanted: Range, path: Path, name: str) -> FileEntry:
    user = 0
    rows = 0
    time_min, time_max = 1 << 62, -1 << 62
    schema = ARROW.with_metadata({"raftlog.log": wanted.log_id, "raftlog.schema": str(SCHEMA_VERSION)})
    sink = _Hashing(path)
    with (
        sink,
        pa.PythonFile(sink, mode="w") as file,
        pq.ParquetWriter(
            file, schema, compression=_COMPRESSION, use_dictionary=_WORDS, write_statistics=True
        ) as writer,
    ):  # fmt: skip
        for group in _groups(read(wanted)):
            user += count_user(group)
            rows += group.num_rows
            times = group.column("time").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
            bounds = pa.compute.min_max(times)
            time_min, time_max = min(time_min, bounds["min"].as_py()), max(time_max, bounds["max"].as_py())
            writer.write_table(group.cast(schema), row_group_size=_GROUP_ROWS)
        writer.add_key_value_metadata(
            {"raftlog.user": str(user), "raftlog.time_min_ms": str(time_min), "raftlog.time_max_ms": str(time_max)}
        )
    if rows != wanted.stop - wanted.start:
        raise Corrupt(f"got {rows} rows for [{wanted.start}, {wanted.stop})")
    return FileEntry(
        f"{DATA}/{name}", wanted.start, wanted.stop - 1, rows, user, sink.bytes, sink.sha256.hexdigest(), time_min,
        time_max,
    )  # fmt: skip


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


def count_user(table: pa.Table) -> int:
    """How many of the rows are user records."""
    is_user = pa.compute.and_(
        pa.compute.is_in(table.column("operation"), pa.array(USER_OPERATIONS)),
        pa.compute.is_in(table.column("result"), pa.array(USER_RESULTS)),
    )
    return int(pa.compute.sum(is_user).as_py() or 0)


def _adopted(wanted: Range, path: Path) -> FileEntry | None:
    """What an earlier run wrote for this range, or None where it wrote nothing, or not this."""
    try:
        footer = pq.read_metadata(path)
        notes = {key.decode(): value.decode() for key, value in (footer.metadata or {}).items() if b"raftlog" in key}
        if footer.num_rows != wanted.stop - wanted.start or notes["raftlog.log"] != wanted.log_id:
            return None
        numbers = [int(notes[f"raftlog.{name}"]) for name in ("user", "time_min_ms", "time_max_ms")]
        return FileEntry(
            f"{DATA}/{path.name}", wanted.start, wanted.stop - 1, footer.num_rows, numbers[0], path.stat().st_size,
            sha256_of(path), *numbers[1:],
        )  # fmt: skip
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return None


def sha256_of(path: Path) -> str:
    """Of the bytes of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
