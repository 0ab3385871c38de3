"""Micro-batches are planned so that nothing is skipped, nothing comes twice, and an idle log makes none."""

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from raftlog.spark_export.errors import DataLossError, UsageError
from raftlog.spark_export.fetch.options import parse_options
from raftlog.spark_export.fetch.ranges import Range, bytes_end
from raftlog.spark_export.fetch.reader import read
from raftlog.spark_export.source.stream import StreamPlanner
from tests.spark_export import logs
from tests.spark_export.server import LOG_ID, Served, serving
from tests.support import free_port, wait_until

LOG = logs.mixed(5, 60, records_max=4)
END = LOG.last.index + 1
HALF = LOG.entries[30].index + 1
ROWS = list(logs.naive_rows(LOG.entries, LOG.effects))


def half() -> Served:
    """A node whose log goes half-way, so far."""
    return Served(LOG, committed=HALF - 1)


@contextmanager
def planner(*nodes: Served, clock: Any = None, **options: Any) -> Iterator[StreamPlanner]:
    """A planner for these nodes, as a query that starts has one."""
    with ExitStack() as stack:
        urls = ",".join(stack.enter_context(serving(node)) for node in nodes)
        given = {"endpoints": urls, "timeoutSeconds": "5", **{name: str(value) for name, value in options.items()}}
        parsed = parse_options(given, streaming=True)
        yield StreamPlanner(parsed) if clock is None else StreamPlanner(parsed, clock)


def at(index: int, log: str = LOG_ID) -> dict[str, Any]:
    """The offset as Spark keeps it."""
    return {"log": log, "next": {"0": index}}


def begun(index: int, first: int = 1) -> dict[str, Any]:
    """The end of a first batch that begins at `first`."""
    return {**at(index), "first": {"0": first}}


def pinned(stream: StreamPlanner) -> Any:
    """The first, empty batch of a fresh query, in the order in which Spark asks; where it stands."""
    start = stream.initial()
    assert stream.latest(start, 10**6) == start
    assert stream.initial() == start
    assert stream.ranges(start, start) == []
    return start


def spans(ranges: list[Range]) -> list[tuple[int, int]]:
    """First and last plus one."""
    return [(each.start, each.stop) for each in ranges]


def rows_of(ranges: list[Range]) -> list[logs.Row]:
    """What tasks would read."""
    return [row for part in ranges for batch in read(part) for row in batch.to_pylist()]


def test_a_stream_reads_present_and_later_records() -> None:
    """From the first record on, then the newly committed ones, each batch beginning where the last one ended."""
    node = half()
    with planner(node) as stream:
        start = stream.initial()
        assert start == at(1)
        middle = stream.latest(start, 10**6)
        assert middle == begun(HALF)
        assert stream.initial() == start
        assert spans(stream.ranges(start, middle)) == [(1, HALF)]
        node.commit(-1)
        end = stream.latest(middle, 10**6)
        assert (end, stream.report()) == (at(END), at(END))
        assert spans(stream.ranges(middle, end)) == [(HALF, END)]


def test_a_query_killed_before_its_first_batch_skips_nothing() -> None:
    """The query began at `latest` and was killed once its position was written down, and the log grew. The new process
    is asked for the first batch again with another `latest`. It gives nothing for it, and continues from the old
    position.
    """
    node = half()
    with planner(node, startingOffsets="latest") as stream:
        written = pinned(stream)
        assert written == at(HALF)
    node.commit(-1)
    with planner(node, startingOffsets="latest") as stream:
        now = stream.initial()
        assert now == at(END)
        assert stream.ranges(now, written) == []
        end = stream.latest(written, 10**6)
        assert spans(stream.ranges(written, end)) == [(HALF, END)]


@pytest.mark.parametrize("starting", ["earliest", "7", json.dumps(at(7))])
def test_a_query_killed_within_its_first_batch_reads_that_again(starting: str) -> None:
    """Its beginning is the same record at every start, so its first batch has rows. A new process is asked for it with
    the start of that moment, and reads the rows that the end of the batch names: the same rows, and the next batch
    begins where it ends. Records trimmed meanwhile are an error, not a gap.
    """
    node = half()
    first = 1 if starting == "earliest" else 7
    with planner(node, startingOffsets=starting) as stream:
        start = stream.initial()
        end = stream.latest(start, 10**6)
        assert end == begun(HALF, first)
        before = rows_of(stream.ranges(start, end))
        assert stream.latest(end, 10**6) is end
    node.commit(-1)
    with planner(node, startingOffsets=starting) as stream:
        stream.initial()
        assert rows_of(stream.ranges(at(HALF), end)) == before == [row for row in ROWS if first <= row["index"] < HALF]
        assert stream.latest(end, 10**6) == at(END)
    node.oldest = 9
    with planner(node, startingOffsets="earliest") as stream:
        now = stream.initial()
        assert now == at(9)
        with pytest.raises(DataLossError, match=f"index {first} is no longer kept.*index 9"):
            rows_of(stream.ranges(now, end))


def test_an_available_now_query_does_not_end_at_its_first_batch() -> None:
    """Restarted within the empty first batch, it must not take its own start for the end."""
    with planner(half()) as stream:
        stream.stop_at_end()
        start = stream.initial()
        assert stream.ranges(start, start) == []
        assert stream.latest(start, 10**6) == at(HALF)


def test_an_unfinished_batch_is_read_again_as_it_was() -> None:
    """A new process is asked for the offsets of the checkpoint: the same rows, however they are split this time, and
    although the log has grown."""
    node = half()
    with planner(node) as stream:
        stream.latest(stream.initial(), 10**6)
        before = rows_of(stream.ranges(at(9), at(20)))
    node.commit(-1)
    with planner(node, minPartitions=4) as stream:
        ranges = stream.ranges(at(9), at(20))
        again = rows_of(ranges)
        assert len(ranges) == 4
    assert again == before == [row for row in ROWS if 9 <= row["index"] < 20]


def test_nothing_new_waits_in_the_cluster() -> None:
    """An idle query asks about once a second, and gives the very offset that it was given; a record ends the wait."""
    node = half()
    with planner(node, startingOffsets="latest") as stream:
        start = pinned(stream)
        assert stream.latest(start, 10**6) is start
        asked = len(node.asked)
        assert stream.latest(start, 10**6) is start
        assert len(node.asked) == asked + 1
        assert "wait=1000" in node.asked[-1]
        answers: list[Any] = []
        waiting = threading.Thread(target=lambda: answers.append(stream.latest(start, 10**6)))
        waiting.start()
        wait_until(lambda: len(node.asked) > asked + 1, what="the planner asks")
        node.commit(-1)
        waiting.join()
        assert answers in ([at(END)], [start])  # its second may have been over just then
        assert stream.latest(start, 10**6) == at(END)


def test_internal_records_alone_make_no_batch() -> None:
    """New leaders' entries, clocks, sessions and refusals go along with the next user record."""
    users = {row["index"] for row in ROWS if logs.is_user(row)}
    last, place = next(
        (before.index, place)
        for place, (before, after) in enumerate(itertools.pairwise(LOG.entries))
        if not users & set(range(after.first, after.index + 1)) and users & set(range(before.first, before.index + 1))
    )
    node = Served(LOG, committed=last)
    with planner(node, records="all") as stream:
        start = at(last + 1)
        node.commit(place + 1)
        for _ in range(3):
            assert stream.latest(start, 10**6) is start
        node.commit(-1)
        wait_until(lambda: stream.latest(start, 10**6) == at(END))


def test_limits_cut_batches() -> None:
    """A limit on entries or bytes bounds a batch. No request is made when the known records fill a batch. A trigger
    that wants everything gets it.
    """
    node = Served(LOG, entries_per_chunk=2)
    with planner(node, maxEntriesPerTrigger=10) as stream:
        start: Any = stream.initial()
        ends = [start := stream.latest(start, 10) for _ in range(3)]
        assert ends == [begun(11), at(21), at(31)]
        assert len(node.asked) <= 4
        assert stream.latest(at(31), None, is_limited=False) == at(END)
    with planner(node, maxBytesPerTrigger=2_000) as stream:
        start = stream.initial()
        cuts: list[int] = []
        while (end := stream.latest(start, 10**6)) != start:
            cuts.append(end["next"]["0"])
            start = end
        assert stream._page is not None
        assert cuts[-2] <= stream._page.last_user_index < cuts[-1]  # no batch of records that no user wrote
        assert len(cuts) > 5
        assert cuts == sorted(set(cuts))


def test_bytes_are_counted_by_chunks() -> None:
    """What a byte limit allows is what chunks hold, within one in proportion, and never nothing."""
    log = logs.appends(40, 1)
    node = Served(log, entries_per_chunk=5)
    with serving(node) as url:
        wanted = Range((url,), LOG_ID, 2, 42)
        assert bytes_end(wanted, 1) == 3
        assert bytes_end(wanted, 10**9) == 42
        ends = [bytes_end(wanted, size) for size in range(500, 12_000, 500)]
    assert ends == sorted(ends)
    assert [end - 2 for end in ends[1:8:2]] == [3, 6, 9, 12]  # records of a bit more than 300 bytes


def test_few_records_wait_for_more() -> None:
    """Fewer than minEntriesPerTrigger wait, but no longer than maxTriggerDelay, and never in a query that ends."""
    now = [0.0]
    node = half()
    options = {"minEntriesPerTrigger": 1000, "maxTriggerDelay": "60s"}
    with planner(node, clock=lambda: now[0], **options) as stream:
        start = pinned(stream)
        assert stream.latest(start, 10**6) is start
        now[0] = 59.9
        assert stream.latest(start, 10**6) is start
        now[0] = 60.1
        assert stream.latest(start, 10**6) == at(HALF)
        node.commit(-1)
        assert stream.latest(at(HALF), 10**6) == at(HALF)
        now[0] = 121.0
        assert stream.latest(at(HALF), 10**6) == at(END)
    with planner(node, **options) as stream:
        stream.stop_at_end()
        assert stream.latest(stream.initial(), 10**6) == begun(END)


def test_an_available_now_query_ends_at_the_log_end() -> None:
    """Later commits are not read, and at its end it gives its start."""
    node = half()
    with planner(node, maxEntriesPerTrigger=HALF // 2) as stream:
        stream.stop_at_end()
        start: Any = stream.initial()
        node.commit(-1)
        while (end := stream.latest(start, HALF // 2)) != start:
            start = end
        assert start == at(HALF)


def test_a_trimmed_start_is_an_error_with_the_fix() -> None:
    """Never a silent gap: the oldest index and the remedies are named. Only failOnDataLoss=false begins later."""
    node = Served(LOG, oldest=9)
    with planner(node) as stream, pytest.raises(DataLossError, match=r"index 3 is no longer kept.*index 9.*earliest"):
        stream.latest(at(3), 10**6)
    with planner(node, startingOffsets="3") as stream, pytest.raises(DataLossError, match="index 9 now"):
        stream.initial()
    with planner(node) as stream:
        ranges = stream.ranges(at(3), at(20))
        with pytest.raises(DataLossError, match="index 9 now"):
            rows_of(ranges)
    with planner(node, failOnDataLoss="false") as stream:
        with pytest.warns(UserWarning, match="3 to 8 .* left out"):
            end = stream.latest(at(3), 10**6)
        with pytest.warns(UserWarning, match="3 to 8 .* left out"):
            ranges = stream.ranges(at(3), end)
        assert spans(ranges) == [(9, END)]


def test_a_replaced_log_is_an_error() -> None:
    """Offsets carry the log's id: a cluster that was replaced is refused, also where its indexes would fit, and so is
    one that has lost its end."""
    other = "f" * 32
    with planner(Served(LOG)) as stream, pytest.raises(DataLossError, match=rf"reads log {other}.*serve {LOG_ID}"):
        stream.latest(at(3, other), 10**6)
    with planner(Served(LOG)) as stream:
        ranges = stream.ranges(at(3, other), at(9, other))
        with pytest.raises(DataLossError, match=f"serves log {LOG_ID}, expected {other}"):
            rows_of(ranges)
    with planner(Served(LOG)) as stream, pytest.raises(DataLossError, match="reads log"):
        stream.ranges(at(3), at(9, other))
    with (
        planner(Served(LOG)) as stream,
        pytest.raises(DataLossError, match=rf"before index {END + 5}.*ends at {END - 1}"),
    ):
        stream.latest(at(END + 5), 10**6)
    with planner(Served(LOG), log=other) as stream, pytest.raises(DataLossError, match="option log says"):
        stream.initial()
    with planner(Served(LOG)) as stream, pytest.raises(DataLossError, match="no position of this source"):
        stream.latest({"next": 5}, 10**6)


def test_dead_nodes_are_passed_over() -> None:
    """The planner goes to the node that answers, stays there, and sends a small batch's one task there too."""
    node = half()
    with serving(node) as url:
        endpoints = f"http://127.0.0.1:{free_port()},{url}"
        stream = StreamPlanner(parse_options({"endpoints": endpoints}, streaming=True))
        start = stream.initial()
        (wanted,) = stream.ranges(start, stream.latest(start, 10**6))
        assert wanted.endpoints[wanted.turn % 2] == url


@pytest.mark.parametrize(
    ("options", "index"),
    [
        ({"startingOffsets": "earliest"}, 1),
        ({"startingOffsets": "latest"}, HALF),
        ({"startingOffsets": "7"}, 7),
        ({"startingOffsets": "-7"}, HALF - 7),
        ({"startingOffsets": "-10m"}, HALF),
        ({"startingOffsets": "-99999d"}, 1),
        ({"startingOffsets": json.dumps(at(12))}, 12),
        ({"startingTimestamp": logs.START_MS + 7 * 11}, LOG.entries[10].first),
        ({"startingTimestamp": logs.START_MS + 7 * 10 + 1}, LOG.entries[10].first),
        ({"startingTimestamp": 0}, 1),
        ({"startingTimestamp": 2**40, "startingOffsetsByTimestampStrategy": "latest"}, HALF),
        ({"startingTimestamp": 2**40 * 2, "startingOffsetsByTimestampStrategy": "earliest"}, 1),
    ],
)
def test_a_stream_begins_at_its_starting_option(options: dict[str, Any], index: int) -> None:
    """Words, indexes, counts from the end, times, durations, positions; asked twice, the answer is the same although
    the log has grown."""
    if options.get("startingTimestamp") == 2**40:
        options = {**options, "startingTimestamp": 2**41}
    node = half()
    with planner(node, **options) as stream:
        assert stream.initial() == at(index)
        node.commit(-1)
        assert stream.initial() == at(index)


def test_impossible_starting_options_are_refused() -> None:
    """A time behind the newest entry without a strategy, an index behind the end, a position of another log."""
    for options, error, match in (
        ({"startingTimestamp": 2**41}, UsageError, "behind the newest entry.*Strategy"),
        ({"startingOffsets": HALF + 1}, UsageError, f"ends before index {HALF}"),
        ({"startingOffsets": json.dumps(at(3, "x"))}, DataLossError, "position of log x"),
    ):
        with planner(half(), **options) as stream, pytest.raises(error, match=match):
            stream.initial()


def test_a_stream_can_start_from_the_state() -> None:
    """The start says as of which revision; the state is a batch of its own, behind the empty first one, and is planned
    again as it was; then comes the log behind it."""
    log = logs.real(8, batch=False)
    last = log.entries[-20].index
    node = Served(log, committed=last)
    revision = max(row["revision"] for row in node.rows)
    with planner(node, startingOffsets="snapshot") as stream:
        start = pinned(stream)
        assert start == {**at(last + 1), "snapshot": {"revision": revision}}
        assert stream.state_revision(start, start) is None
        node.commit(-1)
        end = stream.latest(start, 10**6)
        assert end == at(last + 1)
        assert stream.state_revision(start, end) == revision
        assert (stream.state_range(start).start, stream.state_range(start).stop) == (1, last + 1)
        assert stream.ranges(start, end) == []
        tail = stream.latest(end, 10**6)
        assert stream.state_revision(end, tail) is None
        assert spans(stream.ranges(end, tail)) == [(last + 1, log.last.index + 1)]
    with planner(node, startingOffsets="snapshot") as stream:  # killed within the batch of the state
        assert stream.state_revision(start, end) == revision
    with planner(node, startingOffsets="snapshot") as stream:  # killed within the empty first one
        now = stream.initial()
        assert now["next"]["0"] == log.last.index + 1
        assert stream.state_revision(now, start) is None
        assert stream.ranges(now, start) == []
        assert stream.latest(start, 10**6) == end
