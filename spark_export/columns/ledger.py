"""Reads the result of each request of a slab from the effects: results, revisions and changes, per block.

Rows and changes of fixed size are gathered all at once. An entry in which some change spells out its key and value is
decoded by itself with `raftlog.statemachine.effects`.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from raftlog.raft.codec.checks import Corrupt
from raftlog.spark_export.columns.effects import Effects
from raftlog.spark_export.columns.frames import Frames
from raftlog.spark_export.columns.schema import KIND_COMMANDS, RESULT_APPLIED, RESULTS
from raftlog.spark_export.columns.slab import Heads, Ints, Rows, at, changes_at
from raftlog.statemachine.effects import (
    CHANGE_DELETED,
    CHANGE_SIZE,
    EFFECTS_HEADER_SIZE,
    EFFECTS_PLAIN,
    ROW_SIZE,
    ROW_SUCCEEDED,
    CorruptEffects,
    KeyChange,
    UnknownEffects,
    decode_effects,
)

# The layouts of statemachine/effects.py; tests/spark_export/columns/test_frames.py holds them to the bytes.
ROW: Final = np.dtype(
    [
        ("result", "u1"),
        ("flags", "u1"),
        ("reserved", "<u2"),
        ("changes", "<u4"),
        ("revision", "<u8"),
        ("first_answer", "<u8"),
    ]
)
CHANGE: Final = np.dtype(
    [
        ("prior_index", "<u8"),
        ("create", "<u8"),
        ("version", "<u8"),
        ("flags", "u1"),
        ("reserved", "u1"),
        ("key", "<u2"),
        ("value", "<u4"),
    ]
)
SINGLE: Final = np.dtype([("prior_index", "<i8"), ("create", "<i8"), ("version", "<i8"), ("valid", "?")])

ChangeRow = dict[str, Any]
"""One explicit change as the column `changes` shows it, and its prior_index, which that column leaves out."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Per block: `has_row` is false for requests of an entry whose effects are plain."""

    result: npt.NDArray[np.uint8]
    revision: Ints
    succeeded: npt.NDArray[np.bool_]
    has_row: npt.NDArray[np.bool_]
    single: Rows | None  # the one change of a put or delete of one key; None: there is none in the slab
    explicit: dict[int, list[ChangeRow]]  # by block


def outcomes(frames: Frames) -> Outcomes:
    """What each request did. Raises CorruptEffects or UnknownEffects where the effects do not fit the requests."""
    blocks, effects, revision = frames.entry_of_block, frames.effects, frames.revisions
    if not frames.is_block_per_entry:
        revision = revision[blocks]
    result = np.full(len(blocks), RESULT_APPLIED, np.uint8)
    succeeded = np.zeros(len(blocks), bool)
    if isinstance(effects, int):
        return Outcomes(result, revision, succeeded, succeeded, None, {})
    _check_row_counts(frames, effects.head)
    if not effects.head["rows"].any():
        return Outcomes(result, revision, succeeded, succeeded, None, {})

    has_row = effects.head["rows"][blocks] > 0
    with_row = np.flatnonzero(has_row)
    entry = blocks[with_row]
    starts = changes_at(entry)  # the entries that have rows, by their first row
    ordinal = np.arange(len(with_row)) - np.repeat(starts, np.diff(starts, append=len(with_row)))
    row = at(frames.ledger, ROW, effects.at[entry] + EFFECTS_HEADER_SIZE + ROW_SIZE * ordinal)
    if (row["flags"] & ~np.uint8(ROW_SUCCEEDED)).any() or row["reserved"].any():
        raise UnknownEffects(f"effects after index {frames.first} have a row flag that this code does not know")
    if ((row["result"] < 1) | (row["result"] >= len(RESULTS))).any():
        raise UnknownEffects(f"effects after index {frames.first} have a result that this code does not know: upgrade")
    result[with_row] = row["result"]
    revision[with_row] = row["revision"]
    succeeded[with_row] = (row["flags"] & np.uint8(ROW_SUCCEEDED)) != 0

    single, explicit = _changes(frames, effects, row, with_row, entry, starts)
    return Outcomes(result, revision, succeeded, has_row, single, explicit)


def _check_row_counts(frames: Frames, effects: Heads) -> None:
    """Plain effects have no rows, others one per request; entries without requests have none."""
    is_plain = (effects["flags"] & np.uint8(EFFECTS_PLAIN)) != 0
    expected = np.zeros(1, np.int64)
    if not is_plain.all():
        requests = np.bincount(frames.entry_of_block, minlength=len(effects))
        expected = np.where(is_plain | (frames.entry["kind"] != KIND_COMMANDS), 0, requests)
    if (effects["rows"] != expected).any():
        raise CorruptEffects(f"effects after index {frames.first} have other rows than the entry has requests")


def _changes(
    frames: Frames, effects: Effects, row: Rows, with_row: Ints, entry: Ints, starts: Ints
) -> tuple[Rows | None, dict[int, list[ChangeRow]]]:
    """The single changes as columns, and the explicit ones as they are. `starts`: first row of each entry."""
    count = row["changes"].astype(np.int64)
    first_entry = entry[starts]
    rows_of = np.diff(starts, append=len(row))
    total = np.add.reduceat(count, starts)
    room = effects.head["length"][first_entry].astype(np.int64) - ROW_SIZE * rows_of
    is_fixed = room == CHANGE_SIZE * total
    if (room < CHANGE_SIZE * total).any():
        raise CorruptEffects(f"effects after index {frames.first} are too short for their changes")
    fixed = np.repeat(is_fixed, rows_of)
    changed = np.flatnonzero(fixed & (count > 0))
    explicit: dict[int, list[ChangeRow]] = {}
    slow = np.flatnonzero(~is_fixed)
    if not len(changed) and not len(slow):
        return None, explicit

    single = np.zeros(len(frames.entry_of_block), SINGLE)
    if len(changed):
        if (count[changed] > 1).any():
            raise CorruptEffects(f"a request after index {frames.first} has several changes without their keys")
        before = np.cumsum(count) - count
        before -= np.repeat(before[starts], rows_of)
        base = effects.at[entry] + EFFECTS_HEADER_SIZE + ROW_SIZE * np.repeat(rows_of, rows_of)
        change = at(frames.ledger, CHANGE, (base + CHANGE_SIZE * before)[changed])
        if (change["flags"] & ~np.uint8(CHANGE_DELETED)).any() or change["key"].any() or change["value"].any():
            raise UnknownEffects(f"effects after index {frames.first} have a change flag that this code does not know")
        block = with_row[changed]
        if (frames.block["count"][block] > 1).any():
            raise Corrupt(f"a request after index {frames.first} has a change and several records")
        for name in ("prior_index", "create", "version"):
            single[name][block] = change[name]
        single["valid"][block] = True
    for place in slow.tolist():
        where = int(effects.at[first_entry[place]])
        _spelled_out(frames, where, with_row[starts[place] :], single, explicit)
    return single, explicit


def _spelled_out(frames: Frames, where: int, blocks: Ints, single: Rows, explicit: dict[int, list[ChangeRow]]) -> None:
    """The changes of the entry with effects there, explicit ones among them; `blocks` begins with the entry's."""
    effects = decode_effects(frames.ledger, where)
    for request, block in zip(effects.requests, blocks, strict=False):
        changes = request.changes
        if len(changes) == 1 and not changes[0].is_explicit:
            single[block] = (changes[0].prior_index, changes[0].create, changes[0].version, True)
        elif not all(change.is_explicit for change in changes):
            raise CorruptEffects(f"a request of entry {effects.index} lacks the keys of its changes")
        elif changes:
            if int(frames.block["count"][block]) != 1:
                raise Corrupt(f"a request of entry {effects.index} has changes and several records")
            explicit[int(block)] = [_change_row(change, request.revision) for change in changes]


def _change_row(change: KeyChange, revision: int) -> ChangeRow:
    return {
        "key": change.key,
        "value": change.value,
        "deleted": change.is_delete,
        "create": change.create,
        "mod": revision,
        "version": change.version,
        "prior_index": change.prior_index,
    }
