"""Defines ranges of indexes, their split over tasks, and positions as Spark stores them."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from raftlog.cluster.api.values import SHARD
from raftlog.spark_export.errors import DataLossError, UsageError

RECORDS_PER_PARTITION: Final = 500_000
"""A task of about 70 MB: large enough for its fixed cost, small enough to be repeated."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The next index that a stream reads, of which log; with `revision` the state at that revision comes before it.
    `first`, in the end of a query's first batch, is where that batch begins."""

    log: str
    next: int
    revision: int | None = None
    first: int | None = None

    def as_json(self) -> dict[str, Any]:
        """As it stands in checkpoints. Spark compares the text, so keys and their order never change."""
        offset: dict[str, Any] = {"log": self.log, "next": {SHARD: self.next}}
        if self.revision is not None:
            offset["snapshot"] = {"revision": self.revision}
        if self.first is not None:
            offset["first"] = {SHARD: self.first}
        return offset


def parse_offset(offset: Mapping[str, Any]) -> StreamOffset:
    """What a checkpoint holds. Raises DataLossError for what this source did not write."""
    try:
        snapshot, first = offset.get("snapshot"), offset.get("first")
        parsed = StreamOffset(
            str(offset["log"]),
            int(offset["next"][SHARD]),
            None if snapshot is None else int(snapshot["revision"]),
            None if first is None else int(first[SHARD]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataLossError(
            f"the checkpoint holds {dict(offset)!r}, which is no position of this source: use the checkpoint folder "
            f"that this query began with, or a new one"
        ) from error
    if list(offset["next"]) != [SHARD]:
        raise DataLossError(f"the checkpoint names shards {list(offset['next'])}: this raftlog reads {SHARD!r} alone")
    return parsed


def resolve(starting: str | int, ending: str | int, *, oldest: int, end: int) -> tuple[int, int]:
    """The range [start, stop) that the offsets mean in a log that keeps [oldest, end). `start` may lie below `oldest`:
    whether that is an error is for the caller. Raises UsageError where they lie beyond the end."""
    stop = end if isinstance(ending, str) else ending
    if stop > end:
        raise UsageError(f"endingOffsets is {stop}, but the log ends before index {end} (endingOffsets is exclusive)")
    if isinstance(starting, str):
        start = stop if starting == "latest" else oldest
    elif starting < 0:
        start = max(stop + starting, oldest)
    else:
        start = starting
    if start > end:
        raise UsageError(f"startingOffsets is {start}, but the log ends before index {end}")
    if start > stop:
        raise UsageError(f"startingOffsets {start} lies beyond endingOffsets {stop}")
    return start, stop


def split(start: int, stop: int, *, at_least: int, records_max: int) -> list[tuple[int, int]]:
    """[start, stop) as consecutive ranges of almost equal size, none with more than `records_max`.

    There are `at_least` ranges, or one per record if there are fewer records.
    """
    count = stop - start
    if count <= 0:
        return []
    pieces = min(max(at_least, -(-count // records_max)), count)
    cuts = [start + count * piece // pieces for piece in range(pieces + 1)]
    return list(pairwise(cuts))
