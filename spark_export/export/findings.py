"""Finds out which rows of an export are wrong, once a check has failed: their indexes, and the files that changed."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from raftlog.cluster.api.status import SetDigestHex
from raftlog.spark_export.export.cluster_digest import EMPTY
from raftlog.spark_export.export.engine import Engine, Rows
from raftlog.spark_export.export.manifest import Manifest

_EXAMPLES: Final = 5  # indexes named per finding
_FILES_NAMED: Final = 3
_FAN: Final = 64  # ranges into which a wrong one is divided: three rounds from a part to its rows


def name_rows(log: Rows, manifest: Manifest) -> list[str]:
    """Names indexes that lack, that occur twice, and rows whose index is none of this export's."""
    first, last = manifest.first, manifest.last
    found = [f"missing: index {index}" for index in log.lacking(first, last, _EXAMPLES)]
    found += [f"duplicated: index {index} is there {times} times" for index, times in log.doubled(_EXAMPLES)]
    for row, file, index in log.foreign(first, last, _EXAMPLES):
        found.append(f"altered: row {row} of {file} has index {index}")
    return found


def altered_rows(log: Rows, wrong: list[tuple[int, int]], told: Callable[[int, int], SetDigestHex]) -> list[str]:
    """Names rows that are altered, by dividing the ranges of which the digest is wrong until one row is left."""
    rows: list[int] = []
    for first, last in wrong:
        rows += _narrowed(log, first, last, told, _EXAMPLES - len(rows))
        if len(rows) >= _EXAMPLES:
            break
    more = ", and maybe more" if len(rows) >= _EXAMPLES else ""
    return [f"altered: index {row}{more if row == rows[-1] else ''}" for row in rows]


def _narrowed(log: Rows, first: int, last: int, told: Callable[[int, int], SetDigestHex], most: int) -> list[int]:
    step = -(-(last - first + 1) // _FAN)
    found = log.digests(first, last, step)
    rows: list[int] = []
    for place, begin in enumerate(range(first, last + 1, step)):
        end = min(begin + step - 1, last)
        if found.get(place, EMPTY) == told(begin, end):
            continue
        rows += [begin] if begin == end else _narrowed(log, begin, end, told, most - len(rows))
        if len(rows) >= most:
            break
    return rows


def changed_files(engine: Engine, folder: Path, manifest: Manifest) -> list[str]:
    """Names files whose bytes are not those that were written; each is read by a task."""
    sums = {entry.name: entry.sha256 for entry in manifest.files}
    sums |= {entry.internal.name: entry.internal.sha256 for entry in manifest.files if entry.internal is not None}
    names = [name for name in sums if (folder / name).exists()]
    if not names:
        return []
    paths = [(folder / name).resolve() for name in names]

    def sha256(number: int) -> bytes:
        from raftlog.spark_export.export.parquet import sha256_of

        return sha256_of(paths[number]).encode()

    found = engine.run(sha256, len(paths))
    changed = [name for name, each in zip(names, found, strict=True) if each.decode() != sums[name]]
    return [f"altered: {name} is not the file that the export wrote (SHA-256)" for name in changed[:_FILES_NAMED]]


def shown(digest: SetDigestHex) -> str:
    """A digest for people: its count, xor and both sums."""
    return f"{digest.count}/{digest.xor}/{digest.sum_low}/{digest.sum_high}"
