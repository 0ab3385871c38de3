"""The positions of streams: what a cursor has read, and where it goes on at another node."""

from __future__ import annotations

import msgspec
import pytest

from raftlog.cluster.client.answers import Progress
from raftlog.cluster.client.cursors import BadStream, Cursor, LogCursor, RawCursor, WatchCursor
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
