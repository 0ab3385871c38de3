"""The positions of streams: what a cursor has read, and where it goes on at another node."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import pytest

from raftlog.cluster.client.answers import Progress, Record, WatchEvent
from raftlog.cluster.client.cursors import BadStream, Cursor, LogCursor, RawChunk, RawCursor, WatchCursor
from raftlog.raft.codec.index_rows import IDX_ROW
from raftlog.raft.codec.raw import RAW_SIZE, RawHeader, encode_raw_header

RAW = RawHeader(0, 0, 0, 0, base=1, first=1, next=3, oldest=1, committed=9, last_user_index=9)


def line(**fields: object) -> bytes:
    """A line of a stream of text."""
    return msgspec.json.encode({"term": 1, "time_ms": 1, **fields}) + b"\n"


def record(index: int) -> bytes:
    """A record of the log, as a line."""
    return line(index=index, kind="commands", operation="append", value="v")


def event(index: int, revision: int) -> bytes:
    """An event of a watch, as a line."""
    return line(index=index, revision=revision, changes=[])


@pytest.mark.parametrize(
    ("cursor", "good", "bad"),
    [
        (LogCursor(1, follow=True), record(1) + record(2), b'{"index": 3, "te\n'),
        (WatchCursor(position=1), event(1, 2) + event(2, 3), b'{"index": 3, "te\n'),
        (RawCursor(1, 9), encode_raw_header(RAW), bytes(RAW_SIZE)),
    ],
)
def test_items_before_a_bad_one_of_the_same_read_are_read_again(
    cursor: Cursor[object], good: bytes, bad: bytes
) -> None:
    """The bytes cannot be read, so nothing of them is handed out: the position stays, and another node gives all."""
    before = cursor.request().target
    with pytest.raises(BadStream):
        cursor.feed(good + bad)
    assert cursor.request().target == before
    assert cursor.feed(good)


def test_a_watch_from_a_revision_to_come_skips_lower_ones_after_it_was_opened_again() -> None:
    """A line of progress sets the index at which the stream goes on, and that lies below the revision."""
    cursor = WatchCursor(from_revision=9)
    cursor.feed(msgspec.json.encode({"progress": 4}) + b"\n")
    assert "from=5" in cursor.request().target
    told = cursor.feed(event(5, 8) + event(6, 9) + event(7, 10))
    assert [each.revision for each in told if not isinstance(each, Progress)] == [9, 10]


def chunk(index: int) -> bytes:
    """A raw chunk with one entry of one record."""
    head = RawHeader(1, 5, 3, 0, base=1, first=index, next=index + 1, oldest=1, committed=9, last_user_index=9)
    return encode_raw_header(head) + bytes(IDX_ROW.size) + b"entry" + b"led"


def index_of(item: object) -> int:
    """Of a record, an event or a chunk."""
    if isinstance(item, RawChunk):
        assert (item.segment, item.ledger) == (b"entry", b"led")
        return item.header.first
    assert isinstance(item, Record | WatchEvent)
    return item.index


@pytest.mark.parametrize(
    ("make", "piece"),
    [
        (lambda: LogCursor(1, to=5), record),
        (lambda: WatchCursor(position=1), lambda index: event(index, index + 1)),
        (lambda: WatchCursor(from_revision=2), lambda index: event(index, index + 1)),
        (lambda: RawCursor(1, 5), chunk),
    ],
    ids=["log", "watch", "watch from a revision", "raw"],
)
def test_a_stream_that_breaks_off_behind_any_byte_gives_each_item_once(
    make: Callable[[], Cursor[object]], piece: Callable[[int], bytes]
) -> None:
    """The rest of a half item is never joined to what the next node sends."""
    whole = [piece(index) for index in range(1, 5)]
    for cut in range(len(b"".join(whole)) + 1):
        cursor = make()
        cursor.request()
        items = cursor.feed(b"".join(whole)[:cut])
        target = cursor.request().target
        begin = re.search(r"from=(\d+)", target)
        at = int(begin[1]) if begin is not None else 1
        for each in whole[at - 1 :]:
            items += cursor.feed(each)
        assert [index_of(each) for each in items] == [1, 2, 3, 4], (cut, target)
