"""Limits on a connection of the fast path: half-sent heads, and how many connections there may be."""

from __future__ import annotations

import asyncio
import gc

import pytest
from aiohttp.web import BaseRequest

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.http.exchange.answer import HttpAnswer
from raftlog.cluster.http.exchange.call import Call
from raftlog.cluster.http.fast import connection
from raftlog.cluster.http.fast.connection import FastConnection
from tests.cluster.http.fast.fast_wire import Server, request, turns
from tests.support import wait_until_async

GET = request("GET", "/v1/kv/k")


@pytest.mark.parametrize(
    "begun", [b"GET /v1/kv/a HT", b"GET /v1/kv/a HTTP/1.1\r\nHost: local", b"GET /v1/kv/[a] HTTP/1.1\r\nX", b"\r\nGE"]
)
async def test_a_head_that_does_not_end_is_answered_and_its_connection_closed(begun: bytes) -> None:
    """Also where it is aiohttp that waits for the rest, which has no such deadline. Guard: `HeadWatch.begin`."""
    async with Server(fast_path=True, head_timeout_ms=50) as server:
        wire = server.connect()
        await wire.feed(begun)
        await wait_until_async(lambda: wire.written, what="an answer")
        problem = wire.replies()[0].problem()
        await wire.feed(b" more", b" and more")
        await wait_until_async(lambda: wire.is_closed, what="the end of the connection")
    assert (problem.code, problem.outcome) == ("deadline", "unknown")
    assert "limits.head_timeout_ms" in problem.message


async def test_a_head_that_comes_slowly_but_in_time_is_served() -> None:
    """Its deadline ends with the head: a body, a long poll or the next request may come later."""
    async with Server(fast_path=True, head_timeout_ms=100) as server:
        for first in (GET, request("GET", "/v1/kv/[a]")):
            wire = server.connect()
            await wire.feed(first[:10], first[10:])
            assert len(wire.replies()) == 1
            count = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0.2, count.set_result, None)
            await count
            assert not wire.is_closed
            await wire.feed(GET)
            assert len(wire.replies()) == 2


async def test_a_head_without_end_is_refused_before_it_takes_much_memory() -> None:
    """Each line is short enough for aiohttp, and there are few enough of them; all together are too long."""
    async with Server(fast_path=True, head_fields_max=1_000_000) as server:
        wire = server.connect()
        await wire.feed(b"GET /v1/kv/[a] HTTP/1.1\r\n", *[b"x%d: %b\r\n" % (line, b"y" * 8_000) for line in range(40)])
        problem = wire.replies()[0].problem()
    assert problem.code == "too_large"
    assert "limits.head_bytes_max" in problem.message


async def test_one_connection_too_many_is_answered_and_closed() -> None:
    """Those that are there go on; when one of them ends the next one is taken."""
    async with Server(fast_path=True, connections_max=2) as server:
        first, second, third = (server.connect() for _ in range(3))
        await third.feed(GET)
        problem = third.replies()[0].problem()
        assert (problem.code, problem.outcome, problem.retryable) == ("busy", "unknown", True)
        assert "limits.connections_max" in problem.message
        await wait_until_async(lambda: third.is_closed, what="the end of the connection")
        await first.feed(GET)
        assert len(first.replies()) == 1
        second.close()
        await turns()
        fourth = server.connect()
        await fourth.feed(GET)
        assert fourth.replies()[0].status == first.replies()[0].status


async def test_one_address_cannot_take_all_connections() -> None:
    """5,000 connections of one address: those above its share are answered and closed, and another address still gets
    in. What has ended is given back."""
    async with Server(fast_path=True, address_connections_max=1_000) as server:
        many = [server.connect("10.0.0.1") for _ in range(5_000)]
        refused = [wire for wire in many if wire.written]
        assert len(refused) == 4_000
        problem = refused[0].replies()[0].problem()
        assert (problem.code, problem.outcome, problem.retryable) == ("busy", "unknown", True)
        assert "limits.address_connections_max" in problem.message
        other = server.connect("10.0.0.2")
        await other.feed(GET)
        assert other.replies()[0].status == 404
        for wire in many:
            wire.close()
        await turns()
        await (again := server.connect("10.0.0.1")).feed(GET)
        assert again.replies()[0].status == 404


async def test_unread_answers_are_counted_until_read_or_closed() -> None:
    """Large reads are refused where too much waits for others, small ones and writes are not. Guard: `_out` in
    `FastConnection.pause_writing`."""
    async with Server(fast_path=True, answers_bytes_max=400_000) as server:
        slow, other = server.connect(), server.connect()
        await other.feed(request("PUT", "/v1/kv/large", body=b"v" * 100_000), request("PUT", "/v1/kv/k", body=b"v"))
        slow.unsent = 300_000
        for end in (slow.protocol.resume_writing, slow.close):
            slow.protocol.pause_writing()
            other = server.connect()
            await other.feed(request("GET", "/v1/kv/large"))
            assert b"limits.answers_bytes_max" in other.replies()[0].body
            end()
            await turns()
            last = server.connect()
            await last.feed(request("GET", "/v1/kv/large"), GET)
            assert [reply.status for reply in last.replies()] == [200, 200]


ODD = request("POST", "/v1/log", "Transfer-Encoding: chunked") + b"1\r\na\r\n0\r\n\r\n"
HEAD = request("POST", "/v1/log", "Content-Length: 300000")


async def test_bytes_behind_a_request_wait_are_counted_and_not_read_on() -> None:
    """Also where the connection is aiohttp's for good, which would read on: a client could leave 600 KB in each of
    16,384 connections behind a long poll. Guard: `SlowConnection._pass_on`."""
    async with Server(fast_path=True) as server:
        wire, bodies = server.connect(), server.service.load.bodies
        server.node.held = asyncio.Event()
        await wire.feed(ODD, HEAD + b"b" * 200_000)
        assert (bodies.used, wire.is_read) == (1 + len(HEAD) + 200_000, False)
        server.node.held.set()
        await turns()
        assert wire.is_read
        await wire.feed(b"b" * 100_000)
        assert [reply.status for reply in wire.replies()] == [200, 200]
        assert bodies.used == 0


@pytest.mark.parametrize("size", [1_000_000, 100_000], ids=["in one piece", "in pieces of one turn"])
async def test_a_large_body_behind_another_request_is_read_to_its_end(size: int) -> None:
    """aiohttp's parser keeps bytes that the body has no room for, and asks for them later. Further pieces that come
    before aiohttp serves the request are no part of its head. Guard: `SlowConnection.data_received`,
    `SlowConnection._pass_on`."""
    async with Server(fast_path=True) as server:
        wire = server.connect()
        await wire.feed(ODD)
        data = request("POST", "/v1/log", body=b"b" * 1_000_000)
        for start in range(0, len(data), size):
            wire.protocol.data_received(data[start : start + size])
        await turns()
        assert [reply.status for reply in wire.replies()] == [200, 200]


async def test_without_room_bytes_behind_a_request_end_the_connection_with_its_answer() -> None:
    """As on the fast path: requests that the node has not read get no answer."""
    async with Server(fast_path=True, bodies_bytes_max=200_000) as server:
        first, second = server.connect(), server.connect()
        server.node.held = asyncio.Event()
        for wire in (first, second):
            await wire.feed(ODD, HEAD + b"b" * 100_000)
        assert server.service.load.bodies.used == 2 + len(HEAD) + 100_000
        server.node.held.set()
        await turns()
        assert [reply.status for reply in second.replies()] == [200]
        assert (first.is_closed, second.is_closed) == (False, True)


async def test_unfinished_heads_that_aiohttp_reads_are_counted() -> None:
    """16,384 of them may have 128 KB each. One without room is answered busy."""
    async with Server(fast_path=True, bodies_bytes_max=100_000) as server:
        begun = b"GET /v1/kv/[a] HTTP/1.1\r\nX: " + b"y" * 30_000
        for number in range(1, 4):
            await server.connect().feed(begun)
            assert server.service.load.bodies.used == number * len(begun)
        last = server.connect()
        await last.feed(begun)
        assert last.replies()[0].problem().code == "busy"
        for wire in server.wires:
            wire.close()
        await turns()
        assert server.service.load.bodies.used == 0


async def test_a_body_in_tiny_chunks_leaves_turns_to_others() -> None:
    """Ten clients send 40,000 chunks of one byte in one read each: others are answered meanwhile, and in the end the
    bodies are stored whole. Guard: `SlowConnection._pass_on`, CHUNKS_MAX."""
    async with Server(fast_path=True, body_stall_ms=60_000, deadline_default_ms=60_000) as server:
        senders = [server.connect() for _ in range(10)]
        for wire in senders:
            wire.protocol.data_received(
                request("PUT", "/v1/kv/k", "Transfer-Encoding: chunked") + b"1\r\na\r\n" * 40_000 + b"0\r\n\r\n"
            )
        assert not any(wire.is_read for wire in senders)
        other = server.connect()
        await other.feed(GET)
        assert other.replies()[0].status == 404
        assert not all(wire.written for wire in senders)
        await wait_until_async(lambda: all(wire.written and wire.is_read for wire in senders), what="the answers")
        assert (stored := server.node.machine.get(b"k")) is not None
        assert stored.value == b"a" * 40_000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        GET,
        GET[:20],
        request("PUT", "/v1/kv/k", body=b"v"),
        request("GET", "/v1/kv/[a]"),
        request("GET", "/version"),
        request("GET", "/v1/log?format=ndjson&follow=true&consistency=stale"),
        ODD,
        HEAD,
        HEAD + b"b" * 20_000,
        request("POST", "/v1/log", "Transfer-Encoding: chunked") + b"1\r\na\r\n1\r\n",
        request("POST", "/v1/log", "Transfer-Encoding: chunked") + b"1\r\nabc",
        request("POST", "/v1/log", "Content-Length: 9999999", "X-[odd]: 1"),
        b"no HTTP\r\n\r\n",
    ],
)
async def test_an_ended_connection_leaves_no_circle_of_objects(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector of a node runs over older objects after hours: circles, with the bytes that they lead to,
    would take gigabytes until then."""
    monkeypatch.setattr(connection, "BODY_WAIT_SECONDS", 0.0)
    async with Server(fast_path=True) as server:
        gc.collect()
        gc.disable()
        try:
            server.node.refusal = ApiError(Code.BUSY, "the node's queue is full")
            wire = server.connect()
            await wire.feed(data)
            await turns()
            server.node.refusal = None
            wire.close()
            await turns()
            server.wires.clear()
            del wire.protocol, wire
            left = [
                type(each).__name__
                for each in gc.get_objects()
                if isinstance(each, (FastConnection, BaseRequest, Call))
            ]
        finally:
            gc.enable()
    assert not left


async def test_an_answer_that_its_client_did_not_take_leaves_no_circle_of_objects() -> None:
    """20 clients that asked for ranges of 5 MB and went made a node hold 100 MB until the garbage collector came.
    Guard: `forget_frames` in `HttpAnswer.prepare`."""
    async with Server(fast_path=True) as server:
        other = server.connect()
        await other.feed(request("PUT", "/v1/kv/large", body=b"v" * 100_000))
        gc.collect()
        gc.disable()
        try:
            wire = server.connect()
            wire.unsent, write = 300_000, wire.write

            def written(data: bytes) -> None:
                write(data)
                if len(data) > 100_000:
                    wire.protocol.pause_writing()

            wire.write = written  # type: ignore[method-assign]
            await wire.feed(request("GET", "/v1/kv?prefix=large"))
            assert b"200 OK" in wire.written
            wire.protocol.connection_lost(ConnectionResetError(104, "Connection reset by peer"))
            await turns()
            left = [each for each in gc.get_objects() if isinstance(each, HttpAnswer) and len(each.body) > 100_000]
        finally:
            gc.enable()
    assert not left


@pytest.mark.parametrize(
    "target",
    [
        "/v1/log?from=99&wait=60000",
        "/v1/kv/a?min_index=99",
        "/v1/kv?prefix=&min_index=99",
        "/v1/watch?prefix=",
        "/v1/log?format=ndjson&follow=true",
    ],
)
async def test_a_client_that_goes_gives_its_place_back_at_once(target: str) -> None:
    """Else 8,192 long polls of clients that have gone keep a node busy for a minute. Guard:
    `SlowConnection.connection_lost`."""
    async with Server(fast_path=True) as server:
        wire = server.connect()
        await wire.feed(request("GET", target))
        assert server.service.load.open_requests == 1
        wire.close()
        await turns()
        assert (server.service.load.open_requests, server.service.load.streams.open) == (0, 0)
