"""Sums up the rows of an export: each file by stretches of indexes, with their counts, order, times and digest.

Any engine runs the tasks, one for each file. `batches` reads a file for all that look at rows in Python.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raftlog.cluster.api.status import SetDigestHex
from raftlog.spark_export.columns.hashes import row_hashes, set_digest
from raftlog.spark_export.columns.schema import ARROW
from raftlog.spark_export.export.cluster_digest import PART_RECORDS, merged
from raftlog.spark_export.export.engine import Engine, UnreadableError
from raftlog.spark_export.export.parquet import count_user
from raftlog.spark_export.export.place import Place, StorePlace, source

_BATCH_ROWS: Final = 1 << 14
"""Rows hashed at a time. Their columns stay in the processor's cache: four times as many take a third longer."""

Indexes = npt.NDArray[np.int64]


class Cell(msgspec.Struct, frozen=True):
    """The rows of one file that lie in one stretch of PART_RECORDS indexes. None: a column held nothing but nulls."""

    file: str  # absolute path, or URL of an object
    cell: int
    rows: int
    index_min: int | None
    index_max: int | None
    is_in_order: bool  # each index is greater than the one before it in the file
    time_min_ms: int | None
    time_max_ms: int | None
    user: int
    digest: SetDigestHex


_decode: Final = msgspec.json.Decoder(list[Cell] | str).decode  # a text: why a file cannot be read


def cells(engine: Engine, paths: Sequence[Place], is_dense: bool) -> list[Cell]:
    """A summary of every column of every row. With `is_dense`, only indexes without gaps are in order. Raises
    UnreadableError."""

    def task(number: int) -> bytes:
        try:
            return msgspec.json.encode(_cells(paths[number], is_dense))
        except UnreadableError as error:
            return msgspec.json.encode(str(error))

    found: list[Cell] = []
    for each in map(_decode, engine.run(task, len(paths))):
        if isinstance(each, str):
            raise UnreadableError(each)
        found += each
    return found


def _cells(path: Place, is_dense: bool) -> list[Cell]:
    found: dict[int, list[Cell]] = {}
    before: int | None = None
    for batch in batches(path, ARROW.names):
        indexes, hashes = indexes_of(batch), row_hashes(batch)
        numbers = (indexes - 1) // PART_RECORDS
        steps = np.diff(indexes, prepend=indexes[0] - 1 if before is None else before)
        in_order = steps == 1 if is_dense else steps > 0
        before = int(indexes[-1])
        times = batch.column("time").cast(pa.int64())
        for number in np.unique(numbers).tolist():
            here = numbers == number
            which = pa.array(here)
            own = batch.filter(which)
            index, time = pc.min_max(own.column("index")).as_py(), pc.min_max(times.filter(which)).as_py()
            found.setdefault(number, []).append(
                Cell(
                    str(path.resolve()),
                    number,
                    len(own),
                    index["min"],
                    index["max"],
                    bool(in_order[here].all()),
                    _millis(time["min"]),
                    _millis(time["max"]),
                    count_user(own),
                    set_digest(hashes[here]),
                )
            )
    return [_joined(parts) for parts in found.values()]


def _millis(micros: int | None) -> int | None:
    return None if micros is None else micros // 1000


def _joined(parts: list[Cell]) -> Cell:
    """The cells of one file and one stretch as one."""

    def least(values: Iterator[int | None]) -> int | None:
        return min((value for value in values if value is not None), default=None)

    def most(values: Iterator[int | None]) -> int | None:
        return max((value for value in values if value is not None), default=None)

    return Cell(
        parts[0].file,
        parts[0].cell,
        sum(part.rows for part in parts),
        least(part.index_min for part in parts),
        most(part.index_max for part in parts),
        all(part.is_in_order for part in parts),
        least(part.time_min_ms for part in parts),
        most(part.time_max_ms for part in parts),
        sum(part.user for part in parts),
        merged(part.digest for part in parts),
    )


def indexes_of(batch: pa.RecordBatch) -> Indexes:
    """The indexes of a batch, 0 where there is none."""
    found: Indexes = pc.fill_null(batch.column("index"), 0).to_numpy()
    return found


def batches(path: Place, columns: Sequence[str], indexes: tuple[int, int] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a file, with the types of the log's columns; a column that the file lacks is null.

    With `indexes` only the rows from the first to the last of them. Raises UnreadableError.
    """
    with _readable(path), pq.ParquetFile(source(path), pre_buffer=isinstance(path, StorePlace)) as file:
        groups = range(file.num_row_groups)
        here = [name for name in columns if name in file.schema_arrow.names]
        for batch in file.iter_batches(_BATCH_ROWS, list(groups), here):
            arrays = [
                batch.column(name).cast(ARROW.field(name).type)
                if name in here
                else pa.nulls(len(batch), ARROW.field(name).type)
                for name in columns
            ]
            found = pa.RecordBatch.from_arrays(arrays, schema=pa.schema([ARROW.field(name) for name in columns]))
            if indexes is not None:
                index = found.column("index")
                found = found.filter(pc.and_(pc.greater_equal(index, indexes[0]), pc.less_equal(index, indexes[1])))
            if len(found):
                yield found


@contextmanager
def _readable(path: Place) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise UnreadableError(f"{path.name}: {str(error).partition(chr(10))[0]}") from error
