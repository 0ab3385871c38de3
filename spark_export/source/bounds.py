"""Turns the starting and ending options into indexes of the present log: words, times and positions."""

import time
import warnings

from raftlog.cluster.api.records import LogPageJson
from raftlog.cluster.api.values import SHARD, Position
from raftlog.spark_export.errors import DataLossError, UsageError
from raftlog.spark_export.fetch import door
from raftlog.spark_export.fetch.offsets import StreamOffset, resolve
from raftlog.spark_export.fetch.options import Ago, At, Offset, SourceOptions
from raftlog.spark_export.fetch.ranges import trimmed


def batch_range(options: SourceOptions) -> tuple[str, int, int]:
    """Log id and [start, stop) of a batch read. Raises UsageError, DataLossError, UnreachableError."""
    starting, ending = _since(options, options.starting), _until(options)  # before the end is asked for: it only grows
    page = _page(options, is_linearizable=ending != "latest" or starting != options.starting)
    start, stop = resolve(
        _index(starting, page, "startingOffsets"),
        _index(ending, page, "endingOffsets"),
        oldest=page.oldest,
        end=page.index + 1,
    )
    return page.log, min(kept(options, start, page.oldest), stop), stop


def first_offset(options: SourceOptions) -> StreamOffset:
    """Where a stream begins."""
    starting = _since(options, options.starting)
    page = _page(options)
    if starting == "snapshot":
        from raftlog.spark_export.source.state import current

        return current(options.nodes, page.log)
    start, _ = resolve(_index(starting, page, "startingOffsets"), "latest", oldest=page.oldest, end=page.index + 1)
    return StreamOffset(page.log, kept(options, start, page.oldest))


def state_index(options: SourceOptions) -> tuple[str, int]:
    """Log id and the index as of which the state is asked for."""
    page = _page(options)
    if isinstance(options.as_of, At):
        found, later = door.record_at(options.nodes, {"from_time": options.as_of.time_ms + 1})
        index = later.index if found is None else found.index - 1
    else:
        index = options.as_of or page.index
    if index > page.index:
        raise UsageError(f"asOf is index {index}, but the log ends at {page.index}")
    return page.log, index


def kept(options: SourceOptions, start: int, oldest: int) -> int:
    """`start`, or the oldest index where that is allowed to be later. Raises DataLossError where it is not."""
    if start >= oldest:
        return start
    if options.fail_on_data_loss:
        raise trimmed(start, oldest)
    warnings.warn(f"indexes {start} to {oldest - 1} are no longer kept and are left out", stacklevel=2)
    return oldest


def _page(options: SourceOptions, *, is_linearizable: bool = True) -> LogPageJson:
    page = door.bounds(options.nodes, is_linearizable=is_linearizable)
    if options.log_id not in (None, page.log):
        raise DataLossError(
            f"the endpoints serve log {page.log}, option log says {options.log_id}: indexes of one log mean "
            f"nothing in another. Name the endpoints of that log, or leave the option out."
        )
    return page


def _index(offset: str | int | Position, page: LogPageJson, name: str) -> str | int:
    """A word or a number that `resolve` knows."""
    if not isinstance(offset, Position):
        return offset
    if offset.log != page.log:
        raise DataLossError(
            f"option {name} is a position of log {offset.log}, the endpoints serve {page.log}: indexes of one log mean "
            f"nothing in another"
        )
    return offset.next[SHARD]


def _since(options: SourceOptions, offset: Offset) -> str | int | Position:
    """A starting time as the index where it begins."""
    if isinstance(offset, Ago):
        found = _first_since(options, round(time.time() * 1000) - offset.ms)
        return "latest" if found is None else found
    if isinstance(offset, At):
        found = _first_since(options, offset.time_ms)
        if found is None and options.strategy == "error":
            raise UsageError(
                f"startingTimestamp {offset.time_ms} ms is behind the newest entry: choose an earlier one, or set "
                f"startingOffsetsByTimestampStrategy to latest or earliest"
            )
        return options.strategy if found is None else found
    return offset


def _until(options: SourceOptions) -> str | int | Position:
    """As `_since` for the end; a time behind the newest entry is the end of the log."""
    if isinstance(options.ending, Ago):
        raise UsageError("endingOffsets is no time ago: use endingTimestamp")
    if isinstance(options.ending, At):
        found = _first_since(options, options.ending.time_ms)
        return "committed" if found is None else found
    return options.ending


def _first_since(options: SourceOptions, time_ms: int) -> int | None:
    found, _ = door.record_at(options.nodes, {"from_time": max(time_ms, 0)})
    return None if found is None else found.index
