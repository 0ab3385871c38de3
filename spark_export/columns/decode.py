"""Turns checked frames into Arrow columns, all rows at once.

Python does work per row only for rows with record headers and for requests whose changes are spelled out in the ledger
(transactions, range deletes). Keys and values of one length are copied by position. All others are taken from ONE
binary array over the segment's own bytes, whose offsets alternate between key, value and the bytes between them. All
flags together show once whether a property holds in every row or in none; such a property needs no mask.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raftlog.raft.codec.block import (
    BLOCK_SESSION,
    BLOCK_SIZE,
    BLOCK_TIME,
    RECORD_ARGUMENT,
    RECORD_HEADERS,
    RECORD_KEY,
    RECORD_SIZE,
    RECORD_VALUE,
    decode_headers,
)
from raftlog.raft.codec.entry import HEADER_SIZE
from raftlog.spark_export.columns.arrays import (
    Mask,
    Where,
    booleans,
    even,
    integers,
    nulls,
    numbers,
    some_of,
    texts,
    times,
)
from raftlog.spark_export.columns.frames import Frames
from raftlog.spark_export.columns.ledger import ChangeRow, Outcomes, outcomes
from raftlog.spark_export.columns.schema import (
    APPEND,
    COLUMNS,
    INTERNAL_FIRST,
    KIND_CONFIGURATION,
    KINDS,
    OPERATIONS,
    RESULT_APPLIED,
    RESULTS,
    SHOWN,
    TXN,
    USER_RESULTS,
)
from raftlog.spark_export.columns.slab import Ints, Rows, all_equal, at, each_of

Lengths = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]


def decode(frames: Frames, columns: Sequence[str] = COLUMNS) -> pa.RecordBatch:
    """The rows of the frames as a batch with these columns (names of `schema.SHOWN`), in this order.

    Raises Corrupt, CorruptEffects or UnknownEffects where the effects do not fit the entries.
    """
    rows = _Rows(frames)
    arrays = [_COLUMNS[name](rows) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([SHOWN.field(name) for name in columns]))


class _Rows:
    """The frames, with what several columns need computed once and only when asked for."""

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        self.count = frames.count
        self.record_flags = _Flags(frames.record.few("flags"))
        self.block_flags = _Flags(frames.block.few("flags"))

    @cached_property
    def outcomes(self) -> Outcomes:
        return outcomes(self.frames)

    def of_entry(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """One value per entry, as one per row."""
        values = np.ascontiguousarray(values)
        return values if len(values) == self.count else values[self.frames.entry_of_row]

    def of_block(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """One value per block, as one per row; zero (or false) where the row has no block."""
        spread = self.frames.block_of_row
        if spread is None:
            return np.ascontiguousarray(values)
        if self.frames.is_command is None:
            return values[spread]
        return np.append(values, np.zeros(1, values.dtype))[spread]  # -1 finds the zero at the end

    def has(self, flag: int) -> Where:
        """Rows whose record has this flag."""
        return self.record_flags.has(flag)

    def block_has(self, flag: int) -> Where:
        """Rows whose block has this flag."""
        has = self.block_flags.has(flag)
        if has is True and self.frames.is_command is not None:
            return self.frames.is_command
        return has if isinstance(has, bool) else self.of_block(has)

    @cached_property
    def configurations(self) -> Mask:
        """Which entries are configurations that the reader may see: zeros stand for the data of others."""
        frames = self.frames
        found: Mask = frames.entry["kind"] == KIND_CONFIGURATION
        places = np.flatnonzero(found)
        found[places] = [frames.segment[at + HEADER_SIZE] != 0 for at in frames.entry_at[places].tolist()]
        return found

    @cached_property
    def cuts(self) -> tuple[tuple[Ints, Lengths], tuple[Ints, Lengths]]:
        """Where in the segment each key and each value begins, and how long it is."""
        frames, record = self.frames, self.frames.record
        begin, key, value = frames.record_at + RECORD_SIZE, record["key"], record["value"]
        if frames.is_command is not None:
            other = ~frames.is_command
            entry = frames.entry_of_row[other]
            begin[other] = frames.entry_at[entry] + HEADER_SIZE
            value = value.copy()
            value[other] = np.where(frames.entry["kind"][entry] == KIND_CONFIGURATION, frames.entry["length"][entry], 0)
        return (begin, key), (begin + key, value)

    @cached_property
    def bytes(self) -> pa.Array:
        """Three binaries per row: key, value, and what lies before the next row's key."""
        (begin, _), (middle, value) = self.cuts
        offsets = np.empty(3 * self.count + 1, np.int32)
        offsets[:-1:3], offsets[1::3] = begin, middle
        np.add(middle, value, out=offsets[2::3], casting="unsafe")
        offsets[-1] = offsets[-2]
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.frames.segment)]
        return pa.Array.from_buffers(pa.binary(), 3 * self.count, buffers)

    def binary(self, which: int, valid: Where) -> pa.Array:
        """Keys (which=0) or values (which=1)."""
        if valid is False:
            return nulls("key", self.count)
        if valid is True and (each := self._of_one_length(which)) is not None:
            return even(each)
        return pc.take(self.bytes, integers(np.arange(which, 3 * self.count, 3), valid), boundscheck=False)

    def _of_one_length(self, which: int) -> Rows | None:
        """Keys or values that are all of one length, which is not 0."""
        frames = self.frames
        if frames.runs:  # then all that is before them is of one length, too
            sizes = [frames.record.few(name) for name in ("key", "value")[: which + 1]]
            lengths = [int(size[0]) for size in sizes if all_equal(size)]
            if len(lengths) == len(sizes) and lengths[which]:
                behind = HEADER_SIZE + BLOCK_SIZE + RECORD_SIZE + sum(lengths[:which])
                return each_of(frames.segment, np.dtype(f"V{lengths[which]}"), frames.runs, behind)
        starts, lengths_of = self.cuts[which]
        if (length := int(lengths_of[0])) and all_equal(lengths_of):
            return at(frames.segment, np.dtype(f"V{length}"), starts)
        return None


class _Flags:
    """The flags of many headers."""

    def __init__(self, flags: npt.NDArray[np.uint8]) -> None:
        self.flags = np.ascontiguousarray(flags)
        self.in_some = int(np.bitwise_or.reduce(self.flags)) if len(flags) else 0
        self.in_all = int(np.bitwise_and.reduce(self.flags)) if len(flags) else 0

    def has(self, flag: int) -> Where:
        """Which of them have this one."""
        if self.in_all & flag:
            return True
        return (self.flags & np.uint8(flag)) != 0 if self.in_some & flag else False


# ---------------------------------------------------------------------------------------------------------------
# Columns.


def _index(rows: _Rows) -> pa.Array:
    return numbers("index", np.arange(rows.frames.first, rows.frames.first + rows.count))


def _term(rows: _Rows) -> pa.Array:
    return numbers("term", rows.of_entry(rows.frames.entry["term"]))


def _time(rows: _Rows) -> pa.Array:
    return times("time", rows.of_entry(rows.frames.entry["time_ms"]))


def _kind(rows: _Rows) -> pa.Array:
    return texts("kind", KINDS, rows.of_entry(rows.frames.entry["kind"]))


def _operation(rows: _Rows) -> pa.Array:
    return texts("operation", OPERATIONS, rows.frames.record["operation"])


def _key(rows: _Rows) -> pa.Array:
    return rows.binary(0, rows.has(RECORD_KEY))


def _value(rows: _Rows) -> pa.Array:
    valid = rows.has(RECORD_VALUE)
    if rows.frames.is_command is not None:
        valid = valid | rows.of_entry(rows.configurations)
    return rows.binary(1, valid)


def _headers(rows: _Rows) -> pa.Array:
    has = rows.has(RECORD_HEADERS)
    if has is False:
        return nulls("headers", rows.count)
    record, segment = rows.frames.record, rows.frames.segment
    some = np.flatnonzero(has) if isinstance(has, np.ndarray) else np.arange(rows.count)
    start = rows.frames.record_at[some] + RECORD_SIZE + record["key"][some] + record["value"][some]
    ends = start + record["headers"][some]
    return some_of(
        "headers",
        rows.count,
        {
            row: [{"name": name, "value": value} for name, value in decode_headers(bytes(segment[a:b]))]
            for row, a, b in zip(some.tolist(), start.tolist(), ends.tolist(), strict=True)
        },
    )


def _client_time(rows: _Rows) -> pa.Array:
    record = rows.frames.record
    own = rows.has(RECORD_ARGUMENT)
    valid = rows.block_has(BLOCK_TIME)
    client = rows.of_block(rows.frames.block["time_ms"])
    if own is not False:
        own = own & (record["operation"] == APPEND)
        client, valid = np.where(own, record["argument"], client), valid | own
    if valid is False:
        return nulls("client_time", rows.count)
    return times("client_time", client if valid is True else np.where(valid, client, 0), valid)


def _event_time(rows: _Rows) -> pa.Array:
    client = _client_time(rows)
    return client if not client.null_count else pc.coalesce(client, _time(rows))


def _argument(rows: _Rows) -> pa.Array:
    record, has = rows.frames.record, rows.has(RECORD_ARGUMENT)
    if has is not False:
        has = has & (record["operation"] != APPEND)
    return numbers("argument", record["argument"], has)


def _of_session(name: str) -> Callable[[_Rows], pa.Array]:
    def column(rows: _Rows) -> pa.Array:
        return numbers(name, rows.of_block(rows.frames.block[name]), rows.block_has(BLOCK_SESSION))

    return column


def _result(rows: _Rows) -> pa.Array:
    return texts("result", RESULTS, _or_applied(rows, rows.of_block(rows.outcomes.result)))


def _or_applied(rows: _Rows, results: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if rows.frames.is_command is None:
        return results
    return np.where(rows.frames.is_command, results, np.uint8(RESULT_APPLIED))


def _revision(rows: _Rows) -> pa.Array:
    revisions = rows.of_block(rows.outcomes.revision)
    if rows.frames.is_command is not None:
        of_entry = rows.of_entry(rows.frames.revisions)
        revisions = np.where(rows.frames.is_command, revisions, of_entry)
    return numbers("revision", revisions)


def _succeeded(rows: _Rows) -> pa.Array:
    valid = (rows.frames.record["operation"] == TXN) & rows.of_block(rows.outcomes.has_row)
    if not valid.any():
        return nulls("succeeded", rows.count)
    return booleans(rows.of_block(rows.outcomes.succeeded), valid)


def _of_change(name: str) -> Callable[[_Rows], pa.Array]:
    def column(rows: _Rows) -> pa.Array:
        single = rows.outcomes.single
        if single is None:
            return nulls(name, rows.count)
        values = np.ascontiguousarray(single[name])
        return numbers(name, rows.of_block(values), rows.of_block(np.ascontiguousarray(single["valid"])))

    return column


def change_rows(frames: Frames) -> dict[int, list[ChangeRow]]:
    """The spelled-out changes by row."""
    return dict(_by_row(_Rows(frames)))


def _changes(rows: _Rows) -> pa.Array:
    explicit = rows.outcomes.explicit
    if not explicit:
        return nulls("changes", rows.count)
    return some_of("changes", rows.count, dict(_by_row(rows)))


def _by_row(rows: _Rows) -> Iterable[tuple[int, list[ChangeRow]]]:
    explicit = rows.outcomes.explicit
    of_row = rows.frames.block_of_row
    row_of: Iterable[tuple[int, int]] = ((block, block) for block in explicit)
    if of_row is not None:  # a request with changes has one record
        blocks = np.fromiter(explicit, np.int64, len(explicit))
        found = np.flatnonzero(np.isin(of_row, blocks))
        row_of = zip(found.tolist(), of_row[found].tolist(), strict=True)
    return ((row, explicit[block]) for row, block in row_of)


_COLUMNS: Final[dict[str, Callable[[_Rows], pa.Array]]] = {
    "index": _index,
    "term": _term,
    "time": _time,
    "kind": _kind,
    "operation": _operation,
    "key": _key,
    "value": _value,
    "headers": _headers,
    "client_time": _client_time,
    "event_time": _event_time,
    "argument": _argument,
    "session": _of_session("session"),
    "sequence": _of_session("sequence"),
    "result": _result,
    "revision": _revision,
    "succeeded": _succeeded,
    "prior_index": _of_change("prior_index"),
    "create": _of_change("create"),
    "version": _of_change("version"),
    "changes": _changes,
}


def keys(frames: Frames) -> pa.Array:
    """The keys of all rows."""
    return _key(_Rows(frames))


_IS_USER: Final = np.array([name in USER_RESULTS for name in RESULTS])


def user_records(frames: Frames) -> Mask:
    """Which rows are user records: a user's operation that was applied, or whose comparison failed."""
    rows = _Rows(frames)
    is_user: Mask = _IS_USER[rows.of_block(rows.outcomes.result)]
    is_user &= frames.record["operation"] < INTERNAL_FIRST
    return is_user if frames.is_command is None else is_user & frames.is_command
