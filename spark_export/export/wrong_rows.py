"""Names the wrong rows of an export whose summary is not right: by their indexes, or by digests of smaller ranges.

It reads the stretches that an engine summed up, a file of one stretch after the other, in this process.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from raftlog.cluster.api.status import SetDigestHex
from raftlog.spark_export.columns.hashes import row_hashes, set_digest
from raftlog.spark_export.columns.schema import ARROW
from raftlog.spark_export.export.cells import Cell, Indexes, batches, indexes_of
from raftlog.spark_export.export.cluster_digest import EMPTY, PART_RECORDS, cell_of, merged
from raftlog.spark_export.export.manifest import Manifest
from raftlog.spark_export.export.place import Place, place_of

RangeDigest = Callable[[int, int], SetDigestHex]
"""Asks the cluster what the log rows of a range hash to."""

_EXAMPLES: Final = 5  # indexes named per finding
_FAN: Final = 64  # ranges into which a wrong one is divided: three rounds from a part to its rows


def name_rows(cells: Sequence[Cell], manifest: Manifest) -> list[str]:
    """Names indexes that lack, that occur twice, and rows whose index is none of this export's. Raises
    UnreadableError."""
    lacking: list[int] = []
    several: list[tuple[int, int]] = []
    for number in range(cell_of(manifest.first), cell_of(manifest.last) + 1):
        begin = max(manifest.first, number * PART_RECORDS + 1)
        end = min(manifest.last, (number + 1) * PART_RECORDS)
        indexes, times = np.unique(_indexes(_files(cells, number), begin, end), return_counts=True)
        lacking += np.setdiff1d(np.arange(begin, end + 1), indexes)[:_EXAMPLES].tolist()
        again = times > 1
        several += zip(indexes[again][:_EXAMPLES].tolist(), times[again].tolist(), strict=False)
        if len(lacking) >= _EXAMPLES and len(several) >= _EXAMPLES:
            break
    found = [f"missing: index {index}" for index in lacking[:_EXAMPLES]]
    found += [f"duplicated: index {index} is there {times} times" for index, times in several[:_EXAMPLES]]
    foreign = _foreign(cells, manifest.first, manifest.last)
    return found + [f"altered: row {row} of {file} has index {index}" for row, file, index in foreign]


def altered_rows(cells: Sequence[Cell], wrong: list[tuple[int, int]], asked: RangeDigest) -> list[str]:
    """Names rows that are altered, by dividing the ranges of which the digest is wrong until one row is left. Each
    range lies in one stretch. Raises UnreadableError."""
    rows: list[int] = []
    for first, last in wrong:
        rows += _narrowed(_files(cells, cell_of(first)), first, last, asked, _EXAMPLES - len(rows))
        if len(rows) >= _EXAMPLES:
            break
    more = ", and maybe more" if len(rows) >= _EXAMPLES else ""
    return [f"altered: index {row}{more if row == rows[-1] else ''}" for row in rows]


def _files(cells: Sequence[Cell], number: int) -> list[Place]:
    """The files with rows of that stretch."""
    return [place_of(each.file) for each in cells if each.cell == number]


def _indexes(files: Iterable[Place], first: int, last: int) -> Indexes:
    found = [indexes_of(batch) for file in files for batch in batches(file, ["index"], (first, last))]
    return np.concatenate([np.empty(0, np.int64), *found])


def _foreign(cells: Sequence[Cell], first: int, last: int) -> list[tuple[int, str, int | None]]:
    """Rows whose index is not from `first` to `last`: place in the file, name of the file, index."""
    found: list[tuple[int, str, int | None]] = []
    for file in sorted({each.file for each in cells}):
        row = 0
        for batch in batches(place_of(file), ["index"]):
            indexes = batch.column(0).to_pylist()
            found += [
                (row + at, Path(file).name, index)
                for at, index in enumerate(indexes)
                if index is None or not first <= index <= last
            ]
            row += len(indexes)
            if len(found) >= _EXAMPLES:
                return found[:_EXAMPLES]
    return found


def _narrowed(files: list[Place], first: int, last: int, asked: RangeDigest, most: int) -> list[int]:
    step = -(-(last - first + 1) // _FAN)
    found: dict[int, SetDigestHex] = {}
    for file in files:
        for batch in batches(file, ARROW.names, (first, last)):
            numbers, hashes = (indexes_of(batch) - first) // step, row_hashes(batch)
            for number in np.unique(numbers).tolist():
                found[number] = merged((found.get(number, EMPTY), set_digest(hashes[numbers == number])))
    rows: list[int] = []
    for place, begin in enumerate(range(first, last + 1, step)):
        end = min(begin + step - 1, last)
        if found.get(place, EMPTY) == asked(begin, end):
            continue
        rows += [begin] if begin == end else _narrowed(files, begin, end, asked, most - len(rows))
        if len(rows) >= most:
            break
    return rows
