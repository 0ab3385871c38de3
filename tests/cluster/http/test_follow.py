"""Tests the shared end of the log: followers of it are woken in rounds, and each piece is made once."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.http.exchange import follow
from raftlog.cluster.http.exchange.follow import LogTail, Piece
from raftlog.cluster.runtime import clock
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.statemachine.commands import Operation
from tests.cluster.fake_node import FakeNode, serve
from tests.cluster.http.http_probe import Stream, get, open_stream
from tests.support import hang_s, wait_until_async

READERS = 20


def tail_of(node: FakeNode, gather_s: float) -> LogTail:
    """The tail of a node that never stops."""
    return LogTail(node, clock.monotonic, node.wait_beyond, gather_s, 1.0)


async def test_a_round_wakes_exactly_the_readers_with_new_records() -> None:
    """Readers of a later index go on waiting; a reader that gives up is forgotten; at its time a reader goes
    without.
    """
    node = FakeNode()
    tail = tail_of(node, 0.05)
    late = clock.monotonic() + 60
    woken = [asyncio.create_task(tail.reach(3, late)) for _ in range(READERS)]
    later = asyncio.create_task(tail.reach(5, late))
    gone = asyncio.create_task(tail.reach(5, late))
    await tail.reach(4, clock.monotonic() + 0.01)
    node.add(b"3")
    await asyncio.gather(*woken)
    gone.cancel()
    node.add(b"4")
    await tail.reach(4, late)
    assert not later.done()
    node.add(b"5")
    await later
    assert not tail._readers


async def test_many_readers_make_the_next_round_later_but_never_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers whose share of the time would be minutes wait for `gather_s` and no longer; for as long as that what
    comes gathers. Guard: the `min` in `_run`, and the pause before a round."""
    monkeypatch.setattr(follow, "READER_S", 60.0)
    node = FakeNode()
    tail = tail_of(node, 0.1)
    node.add(b"3")
    await tail.reach(3, clock.monotonic() + 60)
    began = clock.monotonic()
    node.add(b"4")
    await tail.reach(4, clock.monotonic() + 60)
    assert 0.09 <= clock.monotonic() - began < 30


async def test_a_late_reader_is_answered_without_further_writes() -> None:
    """A reader that was busy sending while a record was applied, and the round for it went by, comes when the others
    wait for a later one already: it goes on at once. Nothing more is ever written here."""
    node = FakeNode()
    tail = LogTail(node, clock.monotonic, node.wait_beyond, 0.05, 600.0)
    late = clock.monotonic() + 600
    node.add(b"3")
    others = asyncio.create_task(tail.reach(4, late))
    await wait_until_async(lambda: tail._beyond == 3)
    await asyncio.sleep(0)
    async with asyncio.timeout(hang_s()):
        await tail.reach(3, late)
    assert not others.done()
    others.cancel()


async def test_a_stop_ends_the_wait_of_all_readers() -> None:
    """Every waiting reader gets the result of the round's one wait."""
    node = FakeNode()

    async def stopped(index: int, until: float) -> None:
        raise ApiError(Code.SHUTTING_DOWN, "this node is being stopped: ask another one")

    tail = LogTail(node, clock.monotonic, stopped, 0.05, 1.0)
    waiting = [asyncio.create_task(tail.reach(9, clock.monotonic() + 60)) for _ in range(3)]
    for each in waiting:
        with pytest.raises(ApiError) as told:
            await each
        assert told.value.code is Code.SHUTTING_DOWN


async def test_a_piece_is_made_once_and_again_when_more_is_applied() -> None:
    """Equal questions share the answer, also while it is being made and when one reader goes away. Waiting readers get
    a failure, which is not kept; few pieces are kept.
    """
    node = FakeNode()
    tail = tail_of(node, 0.05)
    made: list[str] = []
    hold = asyncio.Event()

    async def make() -> Piece:
        made.append("piece")
        await hold.wait()
        return (b"piece",), 4

    async def fail() -> Piece:
        made.append("failure")
        raise ApiError(Code.COMPACTED, "gone", oldest=7)

    asked = [asyncio.create_task(tail.piece("key", make)) for _ in range(READERS)]
    await wait_until_async(lambda: made)
    asked.pop(0).cancel()
    hold.set()
    assert {await each for each in asked} == {((b"piece",), 4)}
    await tail.piece("key", make)
    assert len(made) == 1
    node.add(b"3")
    await tail.piece("key", make)
    assert len(made) == 2
    for _ in range(2):
        with pytest.raises(ApiError) as told:
            await tail.piece("failing", fail)
        assert (told.value.code, told.value.more) == (Code.COMPACTED, {"oldest": 7})
    assert made[2:] == ["failure", "failure"], "it is made again"
    for number in range(3 * follow.PIECES_MAX):
        await tail.piece(number, make)
    assert len(tail._pieces) <= follow.PIECES_MAX


async def take(stream: Stream, until: int) -> tuple[list[int], int]:
    """The bounds of the raw chunks that come until that index, and how many there were."""
    ends: list[int] = []
    while not ends or ends[-1] < until:
        header = (await stream.raw()).header
        if header.rows:
            assert header.first == (ends[-1] if ends else 3)
            ends.append(header.next)
    return ends, len(ends)


async def test_followers_at_the_end_share_one_read_of_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every follower gets every record once, in few pieces, and the log is read for all of them together, not for
    each. Guard: `tail.piece` in http_log_stream."""
    node = FakeNode()
    reads: list[int] = []
    read_raw = node.read_raw

    async def counted(from_index: int, to_index: int, bytes_max: int) -> object:
        reads.append(from_index)
        return await read_raw(from_index, to_index, bytes_max)

    monkeypatch.setattr(node, "read_raw", counted)
    async with serve(node, watchers_max=READERS) as served, AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(open_stream(served.port, get("/v1/log?from=3&format=raw&follow=true")))
            for _ in range(READERS)
        ]
        for each in streams:
            await each.head()
        for number in range(200):
            node.add(b"%d" % number)
            await asyncio.sleep(0)
        taken = await asyncio.gather(*(take(each, 203) for each in streams))
    assert all(count < 100 for _, count in taken), "pieces gather"
    assert len(reads) < 3 * max(count for _, count in taken)


async def test_followers_at_the_end_share_no_piece_with_those_of_other_records() -> None:
    """Each follower gets the records of its own filter."""
    node = FakeNode()
    async with serve(node) as served, AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(
                open_stream(served.port, get(f"/v1/log?from=3&format=ndjson&follow=true&prefix={prefix}"))
            )
            for prefix in "ab"
        ]
        for number in range(20):
            block = [BlockRecord(Operation.APPEND, key, b"%d" % number) for key in (b"a", b"b")]
            node.submit_now((encode_block(block), 2))
            for prefix, each in zip("ab", streams, strict=True):
                line = await each.json()
                while "operation" not in line:  # a mark of progress
                    line = await each.json()
                assert (line["key"], line["value"]) == (prefix, str(number))


async def test_readers_hear_of_a_defect_in_the_rounds_and_the_next_reader_begins_new_ones() -> None:
    """An exception other than ApiError ended the rounds, and every reader waited for its whole time."""
    node = FakeNode()
    defects = [RuntimeError("a defect")]

    async def waits(index: int, until: float) -> None:
        if defects:
            raise defects.pop()
        await node.wait_beyond(index, until)

    tail = LogTail(node, clock.monotonic, waits, 0.01, 1.0)
    reader = asyncio.create_task(tail.reach(3, clock.monotonic() + 60))
    rounds = await until_begun(tail)
    with pytest.raises(ApiError, match="the rounds of the log's end failed: a defect"):
        async with asyncio.timeout(hang_s()):
            await reader
    with pytest.raises(RuntimeError, match="a defect"):
        await rounds
    node.add(b"3")
    async with asyncio.timeout(hang_s()):
        await tail.reach(3, clock.monotonic() + 60)


async def until_begun(tail: LogTail) -> asyncio.Task[None]:
    """The task of the rounds, once it is there."""
    while tail._rounds is None:
        await asyncio.sleep(0)
    return tail._rounds
