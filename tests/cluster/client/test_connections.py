"""Connections of clients that a node or the client closes: nothing is sent on them, and none is left open."""

import asyncio
import os

import pytest

from raftlog.cluster.api.errors import Code
from raftlog.cluster.client.aio.client import (
    Client,
)
from raftlog.cluster.client.aio.connection import Connection
from raftlog.cluster.client.blocking import sockets
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.decisions import Failure, Policy, Random
from raftlog.cluster.client.errors import NotApplied
from raftlog.cluster.client.flow import LostAnswer, Response
from raftlog.cluster.client.http1 import encode_request
from raftlog.cluster.client.new_records import NewRecord
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.statemachine.commands import Operation
from tests.cluster.client.test_client import listening, request_head
from tests.cluster.fake_node import serve
from tests.support import hang_s, wait_until_async


async def test_a_connection_that_the_node_closes_first_has_sent_nothing() -> None:
    """A full node answers and closes a new connection without reading from it, perhaps before a busy client has sent
    its request. The request was not sent: it goes on at the next node at once, also without a session."""

    async def full(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async with listening(full) as url, asyncio.timeout(hang_s()):
        pool = Client(url)._carrier._pool
        connection = await pool._connection(url, 1.0)
        assert isinstance(connection, Connection)
        await wait_until_async(lambda: not connection.is_usable, what="the end of the connection")
        happened = await pool._answer(connection, b"GET / HTTP/1.1\r\n\r\n", 60.0, stream=False)
        assert isinstance(happened, LostAnswer)
        assert happened.failure is Failure.NOT_SENT


async def test_a_blocking_client_does_not_send_on_a_connection_that_the_node_has_closed() -> None:
    """A plain write on it would be unknown, though no node has seen it. The next one goes over a new connection."""
    ends = [asyncio.Event(), asyncio.Event()]
    left = iter(ends)

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()
        await writer.wait_closed()
        next(left).set()

    pool = sockets.SyncPool()
    async with listening(once) as url, asyncio.timeout(hang_s()):
        for ended in ends:
            happened = await asyncio.to_thread(pool.send, url, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 5.0)
            assert isinstance(happened, Response)
            await ended.wait()
    pool.close()


@pytest.mark.parametrize("is_blocking", [False, True], ids=["asyncio", "blocking"])
async def test_a_connection_that_is_answered_after_the_client_was_closed_is_closed_too(is_blocking: bool) -> None:
    """A request that is under way while its client is closed gets its answer, and its connection does not go back
    among the idle ones: no later `close` would end it. The node sees the end of the connection."""
    asked, answer, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answers_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_head(reader)
        asked.set()
        await answer.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await reader.read()
        ended.set()

    data = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    async with listening(answers_late) as url, asyncio.timeout(hang_s()):
        if is_blocking:
            blocking = sockets.SyncPool()
            sent = asyncio.create_task(asyncio.to_thread(blocking.send, url, data, 5.0))
            await asked.wait()
            blocking.close()
        else:
            pool = Client(url)._carrier._pool
            pool.close()  # while the connection is being made, say
            sent = asyncio.create_task(pool.send(url, data, 5.0))
            await asked.wait()
        answer.set()
        happened = await sent
        assert isinstance(happened, Response)
        await ended.wait()


async def test_idle_connections_give_their_places_to_new_ones() -> None:
    """A client of three nodes kept `connections_max` idle connections to each of them. Guard: `Pool._give_place`."""
    async with serve() as one, serve() as other, Client(one.url, connections_max=4) as client:
        pool = client._carrier._pool
        for served in (one, other, one):
            get = encode_request("GET", "/v1/kv/k", "127.0.0.1", (), None)
            happened = await asyncio.gather(*(pool.send(served.url, get, 5.0) for _ in range(4)))
            assert {each.head.status for each in happened if isinstance(each, Response)} == {404}
            assert len(pool._open) == len(pool._idle[served.url]) == 4


async def test_each_answer_lets_those_in_line_wait_anew() -> None:
    """Also a refusal. They give up when no request before them is answered for their patience."""
    async with serve() as served:
        async with Client(served.url, connections_max=1) as client:
            line = client._carrier._line
            came = line._advanced_at
            await client.get(b"k")
            answered = line._advanced_at
            with pytest.raises(NotApplied):
                await client.put(b"k", b"", if_revision=9)
            assert came < answered < line._advanced_at


class Enough(Exception):
    """The test has seen enough."""


@pytest.mark.parametrize("is_blocking", [False, True])
async def test_a_stream_that_breaks_off_again_and_again_is_opened_after_longer_pauses(
    is_blocking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that ends each stream at once is not asked in a tight loop."""
    rounds: list[int] = []

    def pause_ms(policy: Policy, number: int, random: Random) -> int:
        rounds.append(number)
        if len(rounds) == 4:
            raise Enough
        return 0

    def serve_stream(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        writer.close()

    module = "blocking.client" if is_blocking else "aio.carrier"
    monkeypatch.setattr(f"raftlog.cluster.client.{module}.pause_ms", pause_ms)
    async with await asyncio.start_server(serve_stream, "127.0.0.1", 0) as server:
        url = "http://{}:{}".format(*server.sockets[0].getsockname())
        with SyncClient(url, sessions=False, bound=True) as blocking:
            async with Client(url, sessions=False, bound=True) as client:
                follows, blocks = client.log(1, follow=True), blocking.log(1, follow=True)
                with pytest.raises(Enough):
                    await (asyncio.to_thread(next, blocks) if is_blocking else anext(follows))
    assert rounds == [1, 2, 3, 4]


async def test_a_closed_client_sends_nothing_more() -> None:
    """A request in line, a stream, and a session that was being opened made new connections after `close`, and the
    stream never ended. A request under way is answered. Guard: `Carrier._is_closed`, `OwnSession._is_closed`."""
    async with serve() as served:
        client = Client(served.url, connections_max=1)
        follows = asyncio.create_task(anext(client.log(3, follow=True)))
        await wait_until_async(lambda: served.node.barriers == 1, what="the stream")
        served.node.held = served.node.barrier_held = asyncio.Event()
        calls = [asyncio.create_task(each) for each in (client.append_many([NewRecord(b"v")]), client.get(b"k"))]
        await wait_until_async(lambda: client._carrier._line._waiting, what="the get in line")
        await client.close()
        served.node.held.set()
        ended: list[object] = await asyncio.gather(follows, *calls, return_exceptions=True)
        ended += await asyncio.gather(client.get(b"k"), client.put(b"k", b""), return_exceptions=True)
        assert [getattr(each, "code", None) for each in ended] == [Code.SHUTTING_DOWN] * 5
        assert not client._carrier._pool._open
        assert len(asyncio.all_tasks()) == 1, "no keepalives"


async def test_a_closed_blocking_client_sends_nothing_more() -> None:
    """A stream in another thread goes no further than the next thing that a node sends, and the session is ended."""
    async with serve() as served:
        client = SyncClient(served.url)
        await asyncio.to_thread(client.put, b"k", b"v")
        follows = asyncio.create_task(asyncio.to_thread(list, client.log(10, follow=True)))
        await wait_until_async(lambda: served.node.barriers == 1, what="the stream")
        await asyncio.to_thread(client.close)
        assert served.node.machine.session_count == 0
        served.node.submit_now((encode_block([BlockRecord(int(Operation.APPEND))] * 9), 9))
        ended = await asyncio.gather(
            follows,
            *(asyncio.to_thread(each, b"k") for each in (client.get, client.append, client.delete)),
            return_exceptions=True,
        )
        assert [getattr(each, "code", None) for each in ended] == [Code.SHUTTING_DOWN] * 4


async def test_a_client_does_nothing_in_a_process_that_was_forked_from_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both processes would write under the same sequences, and one write would be answered as a repetition of another.
    Closed there, the client leaves the session to its own process."""
    async with serve() as served, Client(served.url) as client:
        blocking = SyncClient(served.url)
        await client.append(b"parent")
        await asyncio.to_thread(blocking.append, b"parent")
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: -1)
            for call in (
                client.append(b"child"),
                client.put(b"child", b""),
                client.delete(b"child"),
                client.status(),
                anext(client.log()),
                asyncio.to_thread(blocking.append, b"child"),
                asyncio.to_thread(blocking.put, b"child", b""),
                asyncio.to_thread(blocking.status),
                asyncio.to_thread(next, blocking.log()),
            ):
                with pytest.raises(RuntimeError, match="make a client in each process"):
                    await call
            blocking.close()
            await client.close()
        assert (await client.append(b"parent again")).result == "applied"
        assert (await asyncio.to_thread(blocking.append, b"parent again")).result == "applied"
        await asyncio.to_thread(blocking.close)
