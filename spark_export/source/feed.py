"""Computes the change feed: one row per changed key, with the value before and after.

The value before a change is that of the key's newest earlier change, mostly in the same range. Otherwise it is looked
up at `prior_index`: record by record when few are needed, or by folding the log before the range. Values below the
oldest index that is kept are unknown: `before` is null and `before_known` false.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from raftlog.cluster.api.records import LogRecord
from raftlog.spark_export.columns.decode import change_rows, decode
from raftlog.spark_export.columns.frames import Frames
from raftlog.spark_export.columns.schema import FEED
from raftlog.spark_export.fetch import door
from raftlog.spark_export.fetch.door import TrimmedError
from raftlog.spark_export.fetch.ranges import Range
from raftlog.spark_export.fetch.reader import slabs
from raftlog.spark_export.source.state import folded

LOOKUP_RECORDS: Final = 2_000
"""So many records of the log are folded in the time that one look-up takes."""

_Change = dict[str, Any]


def feed(wanted: Range, key_prefix: bytes = b"", operations: tuple[str, ...] = ()) -> Iterator[pa.RecordBatch]:
    """The changes of the range in order, with the columns of `schema.FEED`. Raises as `reader.read`."""
    images = _Images(wanted)
    for frames, begin, end in slabs(wanted):
        changes = list(_changes(frames, begin, end))
        images.fetch(changes)
        rows = []
        for change in changes:
            row = images.completed(change)
            if change["key"].startswith(key_prefix) and (not operations or change["operation"] in operations):
                rows.append(row)
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=FEED)


def _changes(frames: Frames, begin: int, end: int) -> Iterator[_Change]:
    """Every key that the rows [begin, end) changed, with its value afterwards."""
    explicit = change_rows(frames)
    columns = ("index", "term", "time", "operation", "key", "value", "revision", "prior_index", "create", "version")
    batch = decode(frames, columns)
    mask = batch.column("version").is_valid().to_numpy(zero_copy_only=False)
    mask[list(explicit)] = True
    mask[:begin] = False
    mask[end:] = False
    places = np.flatnonzero(mask)
    for place, row in zip(places.tolist(), batch.take(pa.array(places)).to_pylist(), strict=True):
        common = {name: row[name] for name in ("index", "term", "time", "operation")}
        if place not in explicit:
            deleted = row["version"] == 0
            yield common | {
                "key": row["key"],
                "after": None if deleted else row["value"],
                "prior_index": row["prior_index"],
                "create": row["create"],
                "mod": row["revision"],
                "version": row["version"],
            }
            continue
        for change in explicit[place]:
            yield common | {
                "key": change["key"],
                "after": None if change["deleted"] else change["value"],
                "prior_index": change["prior_index"],
                "create": change["create"],
                "mod": change["mod"],
                "version": change["version"],
            }


class _Images:
    """What each key held before its next change, as far as the range went."""

    def __init__(self, wanted: Range) -> None:
        self._wanted = wanted
        self._held: dict[bytes, bytes | None] = {}  # after the newest change; None: deleted
        self._fetched: dict[tuple[bytes, int], bytes | None] = {}  # by key and the index that wrote it
        self._oldest: int | None = None
        self._is_folded = False

    def completed(self, change: _Change) -> _Change:
        """The change with the image before it."""
        key, prior = change["key"], change["prior_index"]
        known, before = True, None
        if prior:
            if key in self._held:
                before = self._held[key]
            else:
                known = (key, prior) in self._fetched
                before = self._fetched.get((key, prior))
        self._held[key] = change["after"]
        kind = "delete" if change["version"] == 0 else "update" if prior else "insert"
        return change | {"change": kind, "before": before, "before_known": known}

    def fetch(self, changes: list[_Change]) -> None:
        """Looks up what the changes need from below the range."""
        needed = {
            (change["key"], change["prior_index"]): None
            for change in changes
            if 0 < change["prior_index"] < self._wanted.start and change["key"] not in self._held
        }
        if not needed or self._is_folded:
            return
        if self._oldest is None:
            page = door.bounds(self._wanted.nodes, is_linearizable=False)
            self._oldest = page.oldest
        oldest = self._oldest
        needed = {pair: None for pair in needed if pair[1] >= oldest and pair not in self._fetched}
        if len(needed) * LOOKUP_RECORDS > self._wanted.start - oldest:
            self._fold(oldest)
            return
        for key, prior in needed:
            try:
                found, _ = door.record_at(self._wanted.nodes, {"from": prior, "encoding": "base64"})
            except TrimmedError:
                continue
            if found is not None and found.index == prior:
                self._fetched[key, prior] = _written(found, key)

    def _fold(self, oldest: int) -> None:
        wanted = self._wanted
        before = replace(wanted, start=oldest, stop=wanted.start)
        try:
            self._held = {**{key: live[0] for key, live in folded(before).items()}, **self._held}
        except TrimmedError:
            return
        self._is_folded = True


def _written(record: LogRecord, key: bytes) -> bytes | None:
    """What a record wrote under the key."""
    for change in record.changes or ():
        if door.data(change.key_b64) == key:
            return None if change.deleted else door.data(change.value_b64)
    return door.data(record.value_b64)
