"""Computes the key-value state as of an index or a revision: folded from the log, or read from the cluster.

Folding is exact for any index if the log begins at index 1. Otherwise the state as of that revision is read from the
cluster in pages. That works only as far back as the history of keys goes, which is bounded.
"""

import itertools
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from raftlog.spark_export.columns.schema import STATE
from raftlog.spark_export.errors import DataLossError
from raftlog.spark_export.fetch import door
from raftlog.spark_export.fetch.door import TrimmedError
from raftlog.spark_export.fetch.offsets import StreamOffset
from raftlog.spark_export.fetch.ranges import Range
from raftlog.spark_export.fetch.reader import read

Live = tuple[bytes, int, int, int]
"""Value, create, mod and version of a live key."""

_BATCH_ROWS: Final = 20_000
_FOLDED: Final = ("key", "value", "create", "revision", "version", "changes")


def current(nodes: door.NodeRotation, log_id: str) -> StreamOffset:
    """A stream's start that has the state of now before the tail behind it. Linearizable."""
    query: dict[str, object] = {"prefix": "", "limit": 1, "keys_only": "true"}
    page = door.ask(nodes, "/v1/kv", query, door.ranged)
    return StreamOffset(log_id, page.index + 1, page.revision)


def folded(wanted: Range) -> dict[bytes, Live]:
    """The live keys after the records of the range. Memory: all of them with their values."""
    live: dict[bytes, Live] = {}
    for batch in read(wanted, _FOLDED):
        is_single = batch.column("version").is_valid()
        spelled = batch.column("changes").is_valid()
        if not (is_single.true_count or spelled.true_count):
            continue
        changing = batch.filter(pa.compute.or_(is_single, spelled))
        columns = (changing.column(name).to_pylist() for name in _FOLDED)
        for key, value, create, revision, version, changes in zip(*columns, strict=True):
            if changes is None:
                _apply(live, key, value, create, revision, version)
                continue
            for change in changes:
                _apply(live, *(change[name] for name in STATE.names))
    return live


def _apply(live: dict[bytes, Live], key: bytes, value: bytes, create: int, mod: int, version: int) -> None:
    if version:
        live[key] = (value, create, mod, version)
    else:
        live.pop(key, None)


def state_at(wanted: Range, prefix: bytes = b"") -> Iterator[pa.RecordBatch]:
    """The live keys after the last index of the range, which begins at index 1, with the columns of `schema.STATE`."""
    try:
        live = folded(wanted)
    except DataLossError as error:
        where: dict[str, object] = {"from": wanted.stop - 1}
        found, _ = door.record_at(wanted.nodes, where)
        if found is None or found.index != wanted.stop - 1 or found.revision is None:
            raise DataLossError(f"asOf {wanted.stop - 1}: {error}") from error
        yield from state_of(wanted, found.revision, prefix)
        return
    yield from _batches((key, *rest) for key, rest in live.items() if key.startswith(prefix))


def snapshot_at(wanted: Range, revision: int, prefix: bytes = b"") -> Iterator[pa.RecordBatch]:
    """The same state, first asked of the cluster by its revision, and folded where that is no longer kept."""
    try:
        yield from state_of(wanted, revision, prefix)
    except TrimmedError:
        yield from _batches((key, *rest) for key, rest in folded(wanted).items() if key.startswith(prefix))


def state_of(wanted: Range, revision: int, prefix: bytes) -> Iterator[pa.RecordBatch]:
    """The live keys as of a revision, from any node that has applied the range. Raises TrimmedError, before anything
    was given, where that revision is not kept."""
    query: dict[str, object] = {"at": revision, "consistency": "stale", "min_index": wanted.stop - 1}
    found = list(door.keys(wanted.nodes, prefix, query, wanted.log_id))  # all at once: what comes later may be refused
    yield from _batches(
        (door.data(each.key_b64), door.data(each.value_b64), each.create, each.mod, each.version) for each in found
    )


def _batches(rows: Iterator[tuple[bytes, bytes, int, int, int]]) -> Iterator[pa.RecordBatch]:
    while some := list(itertools.islice(rows, _BATCH_ROWS)):
        columns = zip(*some, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, STATE, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=STATE)
