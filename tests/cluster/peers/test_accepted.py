"""What an accepted peer connection refuses although every frame's CRC is right, or never comes to be looked at."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from raftlog.cluster.config.settings import LimitSettings
from raftlog.cluster.peers.hello import Purpose, encode_hello
from raftlog.cluster.protocol.forward_frames import encode_forward
from raftlog.cluster.protocol.request import Inflight
from raftlog.raft.codec.frame import FrameDecoder
from raftlog.raft.codec.message import decode_message, encode_message
from raftlog.raft.messages import RequestVote
from tests.cluster.peers.test_transport import hello_of, no_reason, transports, vote
from tests.support import hang_s, wait_until_async

pytestmark = pytest.mark.usefixtures("known_challenge")
BULK = encode_hello(hello_of(purpose=Purpose.BULK))


def _forward(first: int, count: int) -> bytes:
    """A frame that passes that many requests on, numbered from `first`."""
    return encode_forward(first, [Inflight(b"", 1, 9.0, 0, 0, None)] * count, 0.0)


async def _end_of(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(), hang_s())
    except ConnectionResetError:
        return b""


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_requests_that_come_twice_or_late_close_the_link() -> None:
    """A frame of requests that the link repeats or brings late is refused: what has no session would be done twice."""
    for frames, taken in (
        ((_forward(7, 2), _forward(7, 2)), 1),
        ((_forward(7, 2), _forward(8, 1)), 1),
        ((_forward(9, 1), _forward(7, 2)), 1),
        ((_forward(7, 2), _forward(9, 1), _forward(20, 3), _forward(9, 1)), 3),
    ):
        async with transports(1) as ((_,), (ear,), (port,)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(BULK)
            for number, frame in enumerate(frames[:-1], start=1):
                writer.write(frame)
                await wait_until_async(lambda number=number, ear=ear: len(ear.frames) == number)  # type: ignore[misc]
            writer.write(frames[-1])
            assert no_reason(await _end_of(reader))
            assert len(ear.frames) == taken
            await _close(writer)


@pytest.mark.usefixtures("known_challenge")
async def test_connections_that_say_nothing_keep_no_member_out() -> None:
    """At limits.peer_connections_max the oldest connection that has not shown its node makes room; a member's stays.

    Guard: `Transport.has_room`.
    """
    limits = LimitSettings(hello_timeout_ms=60_000, peer_connections_max=3)
    async with transports(1, limits=limits, listening=[1]) as ((one,), (ear,), (port,)):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await wait_until_async(lambda: len(one.incoming.open) == 3)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(encode_hello(hello_of()))
        await wait_until_async(lambda: len(one.incoming.current) == 1, what="the member is believed")
        silent += [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        for reader, _ in silent[:6]:
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), hang_s()) == b""
        assert (len(one.incoming.open), len(one.incoming.current), ear.closed) == (3, 1, [])
        for _, each in silent:
            each.close()
        writer.close()


async def test_frame_that_never_ends_closes_the_link() -> None:
    """A length with a wrong bit would swallow megabytes; the link is closed once it carries too little for that."""
    broken = bytearray(encode_message(vote()))
    broken[2] ^= 0x10  # a megabyte longer
    async with transports(1, silence_ms=30) as ((one,), (ear,), (port,)):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(encode_hello(hello_of()) + encode_message(vote(1)) + broken + encode_message(vote(2)))
        await wait_until_async(lambda: len(ear.messages) == 1)

        def is_closed() -> bool:
            one.check_silence()
            return ear.closed == [2]

        await wait_until_async(is_closed, what="the end of the link")
        assert ear.messages == [vote(1)]
        assert no_reason(await _end_of(reader))
        await _close(writer)


async def test_large_frame_on_a_slow_link_goes_on() -> None:
    """A frame that takes longer than that is let be while its bytes come, unless nothing else is heard of the peer."""
    async with transports(1, silence_ms=30) as ((one,), (ear,), (port,)):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        frame = encode_message(vote())
        writer.write(encode_hello(hello_of()) + frame[:-1])
        (accepted,) = await wait_until_async(lambda: list(one.incoming.current.values()))
        began = await wait_until_async(lambda: accepted._unfinished_since)
        accepted._came = 1 << 30
        accepted.check_unfinished(began + 10.0, is_silent=False)
        writer.write(frame[-1:])
        await wait_until_async(lambda: ear.messages == [vote()])
        assert not accepted._unfinished_since
        writer.write(frame[:-1])
        began = await wait_until_async(lambda: accepted._unfinished_since)
        accepted._came = 1 << 30
        accepted.check_unfinished(began + 10.0, is_silent=True)
        await wait_until_async(lambda: ear.closed == [2])
        await _close(writer)


async def test_a_link_on_which_frames_come_is_not_closed_though_the_newest_is_never_whole() -> None:
    """On a busy link every read may end within a frame. What counts is how long the same frame is unfinished."""
    async with transports(1) as ((one,), (ear,), (port,)):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        frame = encode_message(vote())
        writer.write(encode_hello(hello_of()) + frame[:5])
        (accepted,) = await wait_until_async(lambda: list(one.incoming.current.values()))
        began = await wait_until_async(lambda: accepted._unfinished_since)
        accepted._unfinished_since -= 100.0
        writer.write(frame[5:] + frame[:5])
        await wait_until_async(lambda: ear.messages == [vote()])
        assert accepted._unfinished_since >= began
        assert accepted._came <= len(frame)
        await _close(writer)


async def test_a_peer_that_was_only_just_asked_may_be_silent_for_long() -> None:
    """A silent leader asked nothing before: a young question does not prove that the leader answers."""
    async with transports(2) as ((one, two), (_, _), _):
        await wait_until_async(lambda: all([*one.connections().values(), *two.connections().values()]))
        assert not two.is_answering(1, within_s=100)
        one.send(RequestVote(sender=1, to=2, term=1, last_index=0, last_term=0))
        one.flush()
        await wait_until_async(lambda: two.is_answering(1, within_s=100))
        two.send(RequestVote(sender=2, to=1, term=1, last_index=0, last_term=0))
        two.flush()
        await wait_until_async(lambda: not two.is_answering(1, within_s=0.001))
        assert not two.is_answering(3, within_s=100)


def test_messages_decode_to_the_encoded_values() -> None:
    """The link adds nothing of its own to a message."""
    (frame,) = FrameDecoder().feed(encode_message(vote()))
    assert decode_message(frame) == vote()
