"""Runs exports and verifications in this process, without Java: a few threads, numpy and pyarrow.

It holds a batch of rows of each thread, and to verify the state every live key. So it suits logs of some millions of
records (`engine.ARROW_RECORDS_MAX`).
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raftlog.cluster.api.status import SetDigestHex
from raftlog.spark_export.columns.hashes import row_hashes, set_digest
from raftlog.spark_export.columns.records import is_user
from raftlog.spark_export.columns.schema import ARROW
from raftlog.spark_export.export.cluster_digest import PART_RECORDS, merged
from raftlog.spark_export.export.engine import Cell, UnreadableError
from raftlog.spark_export.export.parquet import count_user
from raftlog.spark_export.export.place import Place, StorePlace, source
from raftlog.statemachine import digest

THREADS_MAX: Final = 4
"""More would wait for Python's lock: half of the work of a row is in numpy and Arrow, which let go of it."""
_BATCH_ROWS: Final = 1 << 14
"""Rows hashed at a time. Their columns stay in the processor's cache: four times as many take a third longer."""
_STATE: Final = ["index", "key", "value", "create", "revision", "version", "changes"]

Indexes = npt.NDArray[np.int64]


class ArrowEngine:
    """An engine of a few threads."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or min(THREADS_MAX, os.cpu_count() or 1)

    def run(self, task: Callable[[int], bytes], count: int) -> list[bytes]:
        """Some tasks at a time. Once one fails, no further one begins."""
        with ThreadPoolExecutor(self._threads, "raftlog-export") as pool:
            asked = [pool.submit(task, number) for number in range(count)]
            try:
                return [each.result() for each in asked]
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def rows(self, paths: Sequence[Place]) -> "ArrowRows":
        return ArrowRows(paths, self._threads)


class ArrowRows:
    """The rows of an export, read a batch at a time."""

    def __init__(self, paths: Sequence[Place], threads: int) -> None:
        self._paths = paths
        self._threads = threads

    def cells(self, is_dense: bool) -> list[Cell]:
        with ThreadPoolExecutor(self._threads, "raftlog-verify") as pool:
            return [cell for cells in pool.map(lambda path: _cells(path, is_dense), self._paths) for cell in cells]

    def state(self) -> SetDigestHex:
        newest: dict[bytes, tuple[int, bytes | None, int, int, int]] = {}

        def take(index: int, key: bytes, *version: Any) -> None:
            if key not in newest or newest[key][0] <= index:
                newest[key] = (index, *version)

        for path in self._paths:
            for batch in batches(path, _STATE):
                own = batch.filter(batch.column("version").is_valid())
                for row in zip(*(own.column(name).to_pylist() for name in _STATE[:6]), strict=True):
                    take(*row)
                spelled = batch.filter(batch.column("changes").is_valid())
                for index, changes in zip(indexes_of(spelled).tolist(), spelled.column("changes"), strict=True):
                    for key, value, _, *numbers in (change.values() for change in changes.as_py() if change):
                        take(index, key, value, *numbers)
        try:
            live = (
                digest.state_row_hash(key, value, create, mod, version)
                for key, (_, value, create, mod, version) in newest.items()
                if version and value is not None
            )
            return SetDigestHex(*digest.set_digest(live).as_hex())
        except (TypeError, OverflowError, AttributeError) as error:
            raise UnreadableError(f"a change of a key lacks its key or a number: {error}") from error

    def top_keys(self, most: int) -> list[tuple[bytes, int]]:
        times: Counter[bytes] = Counter()
        for path in self._paths:
            for batch in batches(path, ["key", "operation", "result"]):
                times.update(batch.filter(is_user(batch)).column("key").drop_null().to_pylist())
        return sorted(times.items(), key=lambda item: (-item[1], item[0]))[:most]


def _cells(path: Place, is_dense: bool) -> list[Cell]:
    found: dict[int, list[Cell]] = {}
    before: int | None = None
    for batch in batches(path, ARROW.names):
        numbers = (indexes_of(batch) - 1) // PART_RECORDS
        hashes = row_hashes(batch)
        indexes = indexes_of(batch)
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
    return [_joined(cells) for cells in found.values()]


def _millis(micros: int | None) -> int | None:
    return None if micros is None else micros // 1000


def _joined(cells: list[Cell]) -> Cell:
    """The cells of one file and one stretch as one."""

    def least(values: Iterator[int | None]) -> int | None:
        return min((value for value in values if value is not None), default=None)

    def most(values: Iterator[int | None]) -> int | None:
        return max((value for value in values if value is not None), default=None)

    return Cell(
        cells[0].file,
        cells[0].cell,
        sum(cell.rows for cell in cells),
        least(cell.index_min for cell in cells),
        most(cell.index_max for cell in cells),
        all(cell.is_in_order for cell in cells),
        least(cell.time_min_ms for cell in cells),
        most(cell.time_max_ms for cell in cells),
        sum(cell.user for cell in cells),
        merged(cell.digest for cell in cells),
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
