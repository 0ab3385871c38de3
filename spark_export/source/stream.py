"""Plans the micro-batches of a streaming query: where it begins, how far each batch goes, and which ranges it has.

One planner lives as long as the query, in Spark's one process for it, called by one thread. It keeps only values that
it can ask for again. Values that must last are in the offsets, which Spark writes to the checkpoint before each batch.

- **The first batch.** Spark does not store the initial offset. A query killed within the first batch asks for it again,
  and gets a later `latest`, or a later `earliest` after a trim. So the end offset of the first batch also says where
  that batch begins. When a restart may give another beginning, the first batch is empty: it only stores the position
  before any record is read.
- **An idle log causes few requests.** Spark asks a hundred times a second. The planner waits in the cluster for up to a
  second until there are new records, by a linearizable read. So a node that was cut off cannot hold a query back.
- **The group learns of a batch when the next one begins after it.** The consumer group gets the position then
  (`raftlog.spark_export.source.group`). Spark commits a batch only when the next one is due, which on a quiet log is
  never.
- **An idle query stays idle.** Only a user record makes a batch: internal ones (a new leader's entry, say) go along.
"""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from raftlog.cluster.api.records import LogPageJson
from raftlog.cluster.api.values import Position
from raftlog.spark_export.errors import DataLossError
from raftlog.spark_export.fetch import door
from raftlog.spark_export.fetch.offsets import StreamOffset, parse_offset, split
from raftlog.spark_export.fetch.options import SourceOptions
from raftlog.spark_export.fetch.ranges import Range, bytes_end
from raftlog.spark_export.source import bounds

if TYPE_CHECKING:
    from raftlog.spark_export.source.group import Group

POLL_S: Final = 1.0
"""How long one question for news waits. A query is stopped meanwhile all the same."""

Offset = Mapping[str, Any]


class StreamPlanner:
    """What Spark's stream reader asks for, as values; offsets go in and out as JSON objects."""

    def __init__(self, options: SourceOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._rotation = options.nodes
        self._initial: StreamOffset | None = None
        self._is_pinned = False  # or restarted behind the first batch
        self._page: LogPageJson | None = None  # the newest answer
        self._target: LogPageJson | None = None  # the end of a query that reads what there is and stops
        self._waiting_since: float | None = None  # for minEntriesPerTrigger
        self._group = _group_of(options, clock)

    def initial(self) -> Offset:
        """Where a fresh query begins. Spark asks twice; both times it must be the same."""
        if self._initial is None:
            self._initial = bounds.first_offset(self._options) if self._group is None else self._group.first()
        return self._initial.as_json()

    def stop_at_end(self) -> None:
        """From now on nothing that is committed later is read."""
        self._target = self._page = door.bounds(self._rotation)

    def latest(self, start: Offset, entries_max: int | None, *, is_limited: bool = True) -> Offset:
        """Where the batch that begins at `start` ends; `start` itself where there is nothing to read yet.

        Raises DataLossError where `start` is not kept, belongs to another log, or lies behind the end of this one.
        """
        begin = parse_offset(start)
        is_first = self._is_first(begin)
        is_pin = is_first and not _begins_alike(self._options)
        self._is_pinned = True
        group = self._group
        if group is not None and self._page is not None:  # the log is known to be the query's
            group.reached(begin)
        first = begin.next if is_first else None
        end = start if is_pin else self._end(start, begin, first, entries_max, is_limited)
        if group is not None:
            group.reached(begin, is_last=self._target is not None and not is_pin and end == start)
        return end

    def _is_first(self, begin: StreamOffset) -> bool:
        """Whether the query's first batch begins there, of this process or of one that was killed within it."""
        return not self._is_pinned and self._initial == begin

    def _end(
        self, start: Offset, begin: StreamOffset, first: int | None, entries_max: int | None, is_limited: bool
    ) -> Offset:
        page = self._news(begin, entries_max)
        self._check(begin, page)
        if begin.revision is not None:
            return StreamOffset(begin.log, begin.next).as_json()  # the state is a batch of its own
        low = bounds.kept(self._options, begin.next, page.oldest)
        end = page.index + 1
        if not self._is_due(page, low):
            return start
        if is_limited:
            if entries_max is not None:
                end = min(end, low + entries_max)
            if self._options.bytes_max is not None:
                wanted = Range(self._options.endpoints, begin.log, low, end, self._rotation.place)
                end = bytes_end(wanted, self._options.bytes_max)
        return StreamOffset(begin.log, end, first=first).as_json() if end > begin.next else start

    def done(self) -> None:
        """The query has ended."""
        if self._group is not None:
            self._group.close()

    def report(self) -> Offset | None:
        """The newest position known, for the query's progress."""
        return None if self._page is None else StreamOffset(self._page.log, self._page.index + 1).as_json()

    def ranges(self, start: Offset, end: Offset) -> list[Range]:
        """The ranges of a batch, one per task. Equal offsets give equal rows, however the range is split."""
        first, stop = parse_offset(start), parse_offset(end)
        if first.log != stop.log:
            raise _replaced(stop.log, first.log)
        is_first = self._is_first(first)
        self._is_pinned = True
        if is_first and stop.first is None:
            return []  # restarted within the first batch, which was empty: `start` is where a query would begin now
        options = self._options
        begin = first.next if stop.first is None else stop.first
        if not options.fail_on_data_loss and first.revision is None:
            page = self._page or door.bounds(self._rotation, is_linearizable=False)
            begin = bounds.kept(options, begin, page.oldest)
        ranges = split(begin, stop.next, at_least=options.min_partitions, records_max=options.max_records_per_partition)
        # The node that answered last has everything up to the end: a batch of one task goes there.
        return [
            Range.of(options, first.log, low, high, self._rotation.place + number)
            for number, (low, high) in enumerate(ranges)
        ]

    def state_revision(self, start: Offset, end: Offset) -> int | None:
        """The revision of the state that this batch consists of; None: it is one of the log."""
        first = parse_offset(start)
        is_log = self._is_first(first) or parse_offset(end).revision is not None
        return None if is_log else first.revision

    def state_range(self, start: Offset) -> Range:
        """What that state is the state after."""
        first = parse_offset(start)
        return Range.of(self._options, first.log, 1, first.next, self._rotation.place)

    def _news(self, begin: StreamOffset, entries_max: int | None) -> LogPageJson:
        """The newest page: the last one received if it fills a batch, otherwise the cluster's answer."""
        if self._target is not None:
            return self._target
        page = self._page
        if page is None or page.index + 1 < begin.next:
            page = door.bounds(self._rotation)
        else:
            waiting = page.index + 1 - begin.next
            if begin.revision is None and page.last_user_index >= begin.next:
                if entries_max is not None and waiting >= entries_max:
                    return page
                wait_s = self._delay_left(waiting)
            else:
                wait_s = POLL_S
            page = door.bounds_after(self._rotation, page.index, round(1000 * min(wait_s, POLL_S)))
        self._page = page
        return page

    def _is_due(self, page: LogPageJson, first: int) -> bool:
        """Whether a batch is worth it: a user record, and as many entries as are asked for, or the delay is over."""
        if self._target is not None:
            return page.last_user_index >= first or self._options.include_internal
        if page.last_user_index < first:
            return False
        if self._delay_left(page.index + 1 - first) > 0:
            return False
        self._waiting_since = None
        return True

    def _delay_left(self, waiting: int) -> float:
        """How long `waiting` entries are still too few for a batch."""
        if waiting >= self._options.entries_min:
            return 0.0
        now = self._clock()
        if self._waiting_since is None:
            self._waiting_since = now
        return max(0.0, self._waiting_since + self._options.delay_max_s - now)

    def _check(self, begin: StreamOffset, page: LogPageJson) -> None:
        if begin.log != page.log or self._options.log_id not in (None, page.log):
            raise _replaced(self._options.log_id or begin.log, page.log)
        if begin.next > page.index + 1:
            raise DataLossError(
                f"the query stands before index {begin.next}, but log {page.log} ends at {page.index}: the cluster "
                f"lost what it had committed. Check it with `raftlog verify`; to go on, use a new checkpoint folder."
            )


def _begins_alike(options: SourceOptions) -> bool:
    """Whether a query that is started later begins at the same record, as long as that is kept."""
    starting = options.starting
    is_index = isinstance(starting, Position) or (isinstance(starting, int) and starting >= 0)
    return options.group is None and (is_index or starting == "earliest")


def _group_of(options: SourceOptions, clock: Callable[[], float]) -> "Group | None":
    if options.group is None:
        return None
    from raftlog.spark_export.source.group import (
        Group,  # with the cluster's client: each query begins a process, few have a group
    )

    return Group(options.group, options, clock)


def _replaced(expected: str, served: str) -> DataLossError:
    return DataLossError(
        f"the query reads log {expected}, the endpoints serve {served}: the cluster was replaced or restored, and "
        f"indexes of one log mean nothing in another. Name the endpoints of log {expected}, or use a new checkpoint "
        f"folder."
    )
