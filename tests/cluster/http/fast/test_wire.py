"""What HTTP/1.1 allows and forbids on one connection, the same on the fast path and on aiohttp's alone."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import cast

import pytest

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.http.fast import bounds, connection
from raftlog.cluster.http.fast.byte_flow import ConnectionState
from raftlog.cluster.http.fast.head import HeadParser, Kind, RequestHead
from tests.cluster.fake_node import serve
from tests.cluster.http.fast.fast_wire import Server, Wire, request, turns
from tests.cluster.http.http_probe import open_stream
from tests.cluster.http.test_corners import FRAMING
from tests.support import hang_s, wait_until_async

PUT = request("PUT", "/v1/kv/k", body=b"value")
GET = request("GET", "/v1/kv/k")
APPEND = request("POST", "/v1/log", body=b"record")
BATCH = request("POST", "/v1/log", "Content-Type: application/json", body=b'[{"value":"a"},{"value":"b"}]')
PAGE = request("GET", "/v1/log?from=1&limit=10")
LIVE = request("GET", "/livez")
CHUNKED = request("POST", "/v1/log", "Transfer-Encoding: chunked") + b"3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\n\r\n"


@pytest.fixture(params=[False, True], ids=["aiohttp", "fast"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    """The server without and with the fast path."""
    async with Server(fast_path=request.param) as server:
        yield server


async def test_hot_requests_never_reach_aiohttp(lent: list[str]) -> None:
    """Put, get, append, a batch and a page of the log make no handler; the next cold request makes one, and a hot one
    behind it is served by the fast path again."""
    async with Server(fast_path=True) as server:
        wire = server.connect()
        await wire.feed(PUT, GET, APPEND, BATCH, PAGE)
        assert [reply.status for reply in wire.replies()] == [200] * 5
        assert len(server.runner.server.connections) == 0  # type: ignore[union-attr]
        await wire.feed(LIVE, GET, LIVE, PUT)
        assert [reply.status for reply in wire.replies()] == [200] * 9
        assert lent == ["/livez", "/livez"]


async def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    """Hot and cold, with and without bodies, all in one packet: every answer, in the order of the requests, and what a
    later request reads is what an earlier one wrote."""
    wire = server.connect()
    await wire.feed(PUT + GET + LIVE + APPEND + request("HEAD", "/v1/kv/k") + BATCH + GET + CHUNKED + PAGE)
    replies = wire.replies(4)
    assert [reply.status for reply in replies] == [200] * 9
    assert replies[1].json()["kv"]["value"] == "value"
    assert replies[3].json()["first"] == 4
    assert (replies[5].json()["first"], replies[5].json()["last"]) == (5, 6)
    assert replies[7].json()["index"] == 7
    assert [record["value"] for record in replies[8].json()["records"]] == ["value", "record", "a", "b", "abcdefg"]


@pytest.mark.parametrize("piece", [1, 2, 7])
async def test_requests_cut_at_every_byte(server: Server, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the packets are cut, the answers are the same."""
    monkeypatch.setattr(connection, "BODY_WAIT_SECONDS", 10.0)
    data = PUT + GET + LIVE + BATCH + GET + CHUNKED + PAGE
    whole, cut = server.connect(), server.connect()
    await whole.feed(data)
    await cut.feed(*(data[at : at + piece] for at in range(0, len(data), piece)))
    assert [reply.status for reply in cut.replies()] == [reply.status for reply in whole.replies()] == [200] * 7
    assert cut.replies()[1].json()["kv"]["version"] == 2
    assert cut.replies()[5].json()["count"] == 1


async def test_a_body_that_comes_late_goes_to_aiohttp(lent: list[str]) -> None:
    """The fast path waits a moment for a body, then aiohttp does, with its deadline; the connection comes back."""
    async with Server(fast_path=True) as server:
        wire = server.connect()
        await wire.feed(PUT[:-5])
        await wait_until_async(lambda: lent, deadline_s=5)
        await wire.feed(PUT[-5:], GET)
        assert [reply.status for reply in wire.replies()] == [200, 200]
        assert len(lent) == 1


async def test_a_late_body_behind_another_request_is_cut_where_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its head came in one packet with a whole request, its body in two more, and another request behind it. Each is
    served once, as it was sent, whichever parser reads the late one. (Earlier bytes were once counted as part of it.)
    """
    monkeypatch.setattr(connection, "BODY_WAIT_SECONDS", 60.0)
    late = request("POST", "/v1/log", body=b"b" * 300)
    async with Server(fast_path=True) as server:
        wire = server.connect()
        await wire.feed(PUT + late[:-200], late[-200:-100])
        for _ in range(2):  # as if the moment were over in which the rest may come, and another without any of it
            timer = wire.protocol._body_timer  # type: ignore[attr-defined]
            timer._run()
            timer.cancel()
        assert wire.protocol._left == 100, "the rest that has not arrived"  # type: ignore[attr-defined]
        await wire.feed(late[-100:] + PUT + GET)  # a request as long as the one that was read before
        assert [reply.status for reply in wire.replies()] == [200] * 4
        assert wire.replies()[3].json()["kv"]["version"] == 2


async def test_a_large_body_in_many_packets_stays_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as something of it comes it is waited for, whatever else happens on the connection; nothing of it is lost
    or doubled. Guard: `_body` in `_advance`; the timer that is set again, and its bound."""
    monkeypatch.setattr(connection, "BODY_WAIT_SECONDS", 60.0)  # what it does then is asked for by name
    value = bytes(range(256)) * 400
    put = request("PUT", "/v1/kv/large", body=value)
    async with Server(fast_path=True, value_bytes_max=1 << 20) as server:
        wire = server.connect()
        served = cast(connection.FastConnection, wire.protocol)
        await wire.feed(put[:300])
        for at in range(300, len(put), 20_000):
            await wire.feed(put[at : at + 20_000])
            if at == 300:
                served._look_at_body()
                served.pause_writing()
                served.resume_writing()
        await wire.feed(GET.replace(b"/k ", b"/large "))
        assert wire.replies()[1].json()["kv"]["value_b64"] == base64.b64encode(value).decode()
        assert served._handler is None
        await wire.feed(put[:300])
        served._look_at_body()  # nothing came since
        assert served._state is ConnectionState.SLOW
        await wire.feed(put[300:])
        monkeypatch.setattr(bounds, "BODY_WAITS_MAX", 1)
        await wire.feed(put[:300], put[300:400])
        served._look_at_body()  # something did, but it takes long
        assert served._state is ConnectionState.SLOW
        await wire.feed(put[400:])
        assert [reply.status for reply in wire.replies()] == [200] * 4


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("PUT", "/v1/kv/k", b"v"),
        ("PUT", "/v1/kv/k", b"v" * 2_000),
        ("PUT", "/v1/kv/%zz", b"v"),
        ("PUT", "/v1/kv/" + "k" * 5_000, b"v"),
        ("PUT", "/v1/kv/k?if_revision=1", b"v"),
        ("PUT", "/v1/kv/", b"v"),
        ("PUT", "/v1/kv?key=a", b"v"),
        ("POST", "/v1/log", b"v"),
        ("POST", "/v1/log?key=a", b"v"),
        ("POST", "/v1/log", b""),
        ("GET", "/v1/kv/k", None),
        ("GET", "/v1/kv/none", None),
        ("GET", "/v1/kv/k?at=1", None),
        ("GET", "/v1/log", None),
        ("GET", "/v1/log?from=0", None),
        ("GET", "/v1/log?limit=1&format=msgpack", None),
    ],
)
async def test_a_request_without_options_is_answered_as_if_each_header_was_looked_at(
    method: str, target: str, body: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: `RequestHead.has_options`. Without it the gate and the handlers skip checks that would find nothing."""
    data = request(method, target, "User-Agent: x", "Accept: */*", body=body)
    head = HeadParser(32 << 10, 64).parse(data, 0)
    assert head.kind is Kind.HOT
    assert not head.has_options
    told: list[bytes] = []
    for has_options in (False, True):
        parse = HeadParser.parse

        def parsed(self: HeadParser, data: bytes, start: int, *, is_all: bool = has_options) -> RequestHead:
            found = parse(self, data, start)  # noqa: B023
            return found._replace(has_options=True) if is_all else found

        with monkeypatch.context() as patch:
            patch.setattr(HeadParser, "parse", parsed)
            async with Server(fast_path=True, value_bytes_max=1_000) as server:
                wire = server.connect()
                await wire.feed(request("PUT", "/v1/kv/k", body=b"first"), data)
                assert len(wire.replies()) == 2
                told.append(wire.told)
    assert told[0] == told[1]


UNUSUAL = [
    ("name in another case", request("PUT", "/v1/kv/k", "cOnTeNt-LeNgTh: 1") + b"v", 200),
    ("no space after the colon", request("PUT", "/v1/kv/k", "Content-Length:1") + b"v", 200),
    ("tabs and spaces around a value", request("PUT", "/v1/kv/k", "Content-Length: \t 1 \t ") + b"v", 200),
    ("an empty value", request("GET", "/v1/kv", "X-Empty:"), 200),
    ("a value beyond ASCII", b"GET /v1/kv HTTP/1.1\r\nHost: localhost\r\nX: \xc3\xa9\r\n\r\n", 200),
    ("a header twice", request("GET", "/v1/kv", "X: 1", "X: 2"), 200),
    ("keep-alive said aloud", request("GET", "/v1/kv", "Connection: Keep-Alive"), 200),
    ("a body of no bytes", request("PUT", "/v1/kv/k", "Content-Length: 0"), 200),
    ("a get with a body", request("GET", "/v1/kv", "Content-Length: 1") + b"x", 200),
    ("a target in absolute form", request("GET", "http://localhost/v1/kv"), 200),
    ("chunks", CHUNKED, 200),
    ("chunks for a put", request("PUT", "/v1/kv/k", "Transfer-Encoding: chunked") + b"1\r\nv\r\n0\r\n\r\n", 200),
    ("a body that says how it is packed", request("PUT", "/v1/kv/k", "Content-Encoding: gzip", body=b"v"), 415),
    ("a body as it is", request("PUT", "/v1/kv/k", "Content-Encoding: identity", body=b"v"), 200),
    ("an empty host", b"GET /v1/kv/k HTTP/1.1\r\nHost:\r\n\r\n", 421),
    ("a foreign origin", request("PUT", "/v1/kv/k", "Origin: http://evil.example", body=b"v"), 403),
    ("an unknown parameter", request("PUT", "/v1/kv/k?x=1", body=b"v"), 400),
    ("an unknown header of ours", request("PUT", "/v1/kv/k", "Raftlog-Sesion: 1", body=b"v"), 400),
    ("a key with escapes", request("PUT", "/v1/kv/a%2Fb/c%00", body=b"v"), 200),
    ("a bad escape", request("PUT", "/v1/kv/a%2", body=b"v"), 400),
    ("no such key", request("GET", "/v1/kv/none"), 404),
    ("no such method", request("PATCH", "/v1/kv/k"), 405),
    ("a stale read", request("GET", "/v1/kv?consistency=stale"), 200),
    ("msgpack asked for", request("GET", "/v1/log?format=msgpack"), 200),
    ("the bare value", request("GET", "/v1/kv", "Accept: application/octet-stream"), 200),
]


@pytest.mark.parametrize(("data", "status"), [row[1:] for row in UNUSUAL], ids=[row[0] for row in UNUSUAL])
async def test_unusual_but_legal(server: Server, data: bytes, status: int) -> None:
    """Each is served or refused for what it asks, and the connection goes on to the next request."""
    wire = server.connect()
    await wire.feed(data + GET)
    replies = wire.replies()
    assert [reply.status for reply in replies] == [status, replies[1].status]
    assert not wire.is_closed


async def test_expect_is_answered_before_the_body(server: Server) -> None:
    """`100 Continue` comes after the head, the answer after the body; then the connection goes on."""
    wire = server.connect()
    await wire.feed(request("PUT", "/v1/kv/k", "Expect: 100-continue", "Content-Length: 1"))
    assert wire.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    await wire.feed(b"v", GET)
    assert [reply.status for reply in wire.replies()] == [200, 200]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (request("PUT", "/v1/kv/k", "Connection: close", body=b"v"), "close"),
        (request("PUT", "/v1/kv/k", body=b"v", version="1.0"), "close"),
        (request("PUT", "/v1/kv/k", "Connection: keep-alive", body=b"v", version="1.0"), "keep-alive"),
    ],
)
async def test_the_connection_closes_when_either_side_asks(server: Server, data: bytes, says: str) -> None:
    """`Connection: close` and HTTP/1.0 end the connection after the answer, unless an old client asks to keep it."""
    wire = server.connect()
    await wire.feed(PUT, data, GET)
    replies = wire.replies()
    assert replies[1].headers["connection"] == says
    assert (len(replies), wire.is_closed) == ((2, True) if says == "close" else (3, False))


SMUGGLED = request("DELETE", "/v1/kv/k")
SMUGGLING = [
    ("chunks and length", request("PUT", "/v1/kv/k", "Transfer-Encoding: chunked", "Content-Length: 5") + b"0\r\n\r\n"),
    ("an unknown coding", request("PUT", "/v1/kv/k", "Transfer-Encoding: xchunked", "Content-Length: 1") + b"v"),
    ("a trailer", request("PUT", "/v1/kv/k", "Transfer-Encoding: chunked") + b"1\r\nv\r\n0\r\nX: y\r\n\r\n"),
    ("a negative length", request("PUT", "/v1/kv/k", "Content-Length: -1") + b"v"),
    ("a folded length", request("PUT", "/v1/kv/k", "Content-Length:\r\n 1") + b"v"),
    ("a bare line feed in a value", request("PUT", "/v1/kv/k", "X: a\nContent-Length: 1") + b"v"),
    ("a null byte", request("PUT", "/v1/kv/k", "X: a\x00b", "Content-Length: 1") + b"v"),
    ("two spaces in the line", b"PUT  /v1/kv/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nv"),
    ("a tab in the line", b"PUT\t/v1/kv/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nv"),
    ("an unknown version", request("PUT", "/v1/kv/k", body=b"v", version="1.2")),
    ("an upgrade", request("PUT", "/v1/kv/k", "Connection: Upgrade", "Upgrade: h2c", body=b"v")),
    ("no host", b"PUT /v1/kv/k HTTP/1.1\r\nContent-Length: 1\r\n\r\nv"),
    ("a blank line first", b"\r\n" + request("PUT", "/v1/kv/k", body=b"v")),
]


@pytest.mark.parametrize("data", [*FRAMING, *(data for _, data in SMUGGLING)])
async def test_no_request_is_smuggled(data: bytes) -> None:
    """Where two readers could disagree about the end of a request, the fast path has no opinion: with it and without
    it the answers are the same, behind requests of either kind, however the packets are cut. (aiohttp alone forgets the
    good requests of a packet that has a malformed one in it; so those before come in one of their own.)"""
    told: list[list[bytes]] = []
    for fast in (False, True):
        async with Server(fast_path=fast) as server:
            wires: list[Wire] = []
            for before in (b"", PUT, LIVE, PUT + LIVE + PUT):
                stream = data + SMUGGLED + GET
                for pieces in ([stream], [stream[:9], stream[9:]], [data, SMUGGLED + GET]):
                    wires.append(server.connect())
                    await wires[-1].feed(before, *pieces)
            told.append([wire.told + bytes([wire.is_closed]) for wire in wires])
    assert told[0] == told[1]


@pytest.mark.parametrize("fast", [False, True], ids=["aiohttp", "fast"])
async def test_heads_and_bodies_are_bounded(fast: bool) -> None:
    """Lines, headers, their number and bodies over their limits are refused as the settings say."""
    async with Server(fast_path=fast, head_bytes_max=9_000, head_fields_max=20, body_bytes_max=100) as server:
        for data, status, code in (
            (request("PUT", "/v1/kv/k", *[f"X{number}: y" for number in range(17)], body=b"v"), 200, ""),
            (request("PUT", "/v1/kv/k", *[f"X{number}: y" for number in range(30)], body=b"v"), 400, Code.BAD_REQUEST),
            (request("PUT", "/v1/kv/" + "k" * 9_500, body=b"v"), 413, Code.TOO_LARGE),
            (request("PUT", "/v1/kv/k", "X: " + "y" * 9_500, body=b"v"), 413, Code.TOO_LARGE),
            (request("PUT", "/v1/kv/k", "X: " + "y" * 8_500, body=b"v"), 200, ""),
            (request("PUT", "/v1/kv/k", body=b"v" * 101), 413, Code.TOO_LARGE),
            (request("PUT", "/v1/kv/k", body=b"v" * 100), 200, ""),
        ):
            wire = server.connect()
            await wire.feed(PUT, data)
            reply = wire.replies()[1]
            assert (reply.status, reply.problem().code if code else "") == (status, code)
        endless = server.connect()
        await endless.feed(PUT, b"PUT /v1/kv/k HTTP/1.1\r\nX: ", *[b"y" * 1_000] * 12)
        assert endless.replies()[1].problem().code is Code.TOO_LARGE
        assert endless.is_closed


async def test_pipelined_bytes_of_a_connection_are_bounded(server: Server) -> None:
    """While a request is under way the socket is soon read no further, whatever a client sends; nothing is lost."""
    server.node.held = asyncio.Event()
    wire = server.connect()
    sent = 1
    await wire.feed(PUT)
    while wire.is_read:
        await wire.feed(GET * 100)
        sent += 100
        assert sent < 10_000, "read without an end"
    server.node.held.set()
    await wait_until_async(lambda: len(wire.replies()) == sent, deadline_s=20)
    assert wire.is_read


@pytest.mark.parametrize("fast", [False, True], ids=["aiohttp", "fast"])
async def test_a_client_that_does_not_read_is_not_written_to(fast: bool) -> None:
    """Answers that the client does not take stop the next requests, and after a while end the connection: neither
    memory nor anybody else pays for it."""
    async with serve(fast_path=fast, stream_stall_ms=200) as served:
        async with open_stream(served.port, request("PUT", "/v1/kv/k", body=b"x" * 500_000)) as stream:
            assert (await stream.reply()).status == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1_000)
        writer.write(GET * 1_000)
        seen: list[int] = []

        def has_stopped() -> bool:
            seen.append(served.node.barriers)
            return len(seen) > 50 and seen[-50] == seen[-1] > 0

        await wait_until_async(has_stopped)  # 0.5 s, longer than the stall: the server has given up on it
        assert served.node.barriers < 100
        with pytest.raises((ConnectionError, EOFError)):  # what comes is what the sockets held, not a thousand answers
            await asyncio.wait_for(reader.readexactly(100 * 500_000), hang_s())
        writer.close()
        async with open_stream(served.port, GET) as stream:
            assert (await stream.reply()).status == 200


async def test_a_stop_lets_the_request_under_way_end(server: Server) -> None:
    """A stop answers the request under way and announces the end of the connection; idle connections just end."""
    server.node.held = asyncio.Event()
    busy, idle = server.connect(), server.connect()
    await idle.feed(request("GET", "/v1/kv?consistency=stale"))
    await busy.feed(PUT)
    stop = asyncio.create_task(server.runner.cleanup())
    await turns()
    server.node.held.set()
    async with asyncio.timeout(hang_s()):
        await stop
    await turns()
    assert [reply.status for reply in busy.replies()] == [200]
    assert busy.is_closed
    assert idle.is_closed


async def test_a_stop_does_not_wait_for_ever() -> None:
    """A request without an answer by `stop_timeout_ms` is cut off."""
    async with Server(fast_path=True, stop_timeout_ms=50) as server:
        server.node.held = asyncio.Event()
        wire = server.connect()
        await wire.feed(PUT)
        async with asyncio.timeout(hang_s()):
            await server.runner.cleanup()
        await turns()
        assert wire.is_closed
        server.node.held.set()
        await turns()
        assert wire.written == b""


async def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that asks for nothing for the keep-alive time is closed, wherever its last request was served, and
    also in the middle of a head; one that is being served is not."""
    from raftlog.cluster.http import connections as http_api

    monkeypatch.setattr(http_api, "KEEPALIVE_SECONDS", 0.2)
    async with Server(fast_path=True) as server:
        silent, half, fast, slow, busy = (server.connect() for _ in range(5))
        await half.feed(PUT[:20])
        await fast.feed(LIVE, PUT)
        await slow.feed(PUT, LIVE)
        server.node.held = asyncio.Event()
        await busy.feed(PUT)
        await wait_until_async(lambda: all(wire.is_closed for wire in (silent, half, fast, slow)), deadline_s=10)
        assert not busy.is_closed
        server.node.held.set()
        await wait_until_async(lambda: busy.is_closed, deadline_s=10)
        assert [reply.status for reply in busy.replies()] == [200]


async def test_a_client_that_goes_leaves_nothing_behind(server: Server) -> None:
    """Its write is carried out all the same; the answer goes nowhere, and the server knows no such connection."""
    server.node.held = asyncio.Event()
    wire = server.connect()
    await wire.feed(PUT + GET)
    wire.close()
    await turns()
    server.node.held.set()
    await turns()
    assert wire.written == b""
    assert server.node.machine.get(b"k") is not None
    assert len(server.runner.server.connections) == 0  # type: ignore[union-attr]


async def test_a_client_refused_as_busy_is_served_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer comes at once, its next request is accepted a moment later. With many of them the moment is longer, so
    that refusals take only a share of the node's time. Nothing stays behind when they go."""
    monkeypatch.setattr(connection, "_REST_SECONDS", (5.0, 20.0))
    monkeypatch.setattr(connection, "_REFUSING_SHARE", 1e-9)
    async with Server(fast_path=True, open_requests_max=1) as server:
        server.node.held = asyncio.Event()
        busy, *others = (server.connect() for _ in range(21))
        await busy.feed(PUT)
        for wire in others:
            await wire.feed(PUT + request("GET", "/v1/kv/none"))
            assert [reply.problem().code for reply in wire.replies()] == [Code.BUSY]
        rests = [wire.protocol._rest_timer.when() for wire in others]  # type: ignore[attr-defined]
        assert all(rest > asyncio.get_running_loop().time() + 10 for rest in rests[1:])  # as long as may be
        others[0].close()
        server.node.held.set()
        await wait_until_async(lambda: busy.replies())
        assert [len(wire.replies()) for wire in others[1:]] == [1] * 19
        for wire in others[1:]:  # as if their time had passed
            wire.protocol._rested()  # type: ignore[attr-defined]
            await turns()
        assert {wire.replies()[1].status for wire in others[1:]} == {404}


async def test_a_client_that_leaves_during_its_wait_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs up after its refusal, and its wait ends before its turn in line comes: the connection is closed then,
    not kept for as long as an idle one."""
    monkeypatch.setattr(connection, "_REST_SECONDS", (60.0, 60.0))
    async with Server(fast_path=True, open_requests_max=1) as server:
        server.node.held = asyncio.Event()
        busy, refused = server.connect(), server.connect()
        await busy.feed(PUT)
        await refused.feed(PUT)
        assert refused.protocol.eof_received()
        refused.protocol._rested()  # type: ignore[attr-defined]
        await turns()
        assert refused.is_closed
        server.node.held.set()
        await turns()


async def test_refusals_are_answered_alike_on_both_paths(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends and gets that the node fails, now or later, that cannot be served, or that meet a bug. Each gets a
    problem, and none counts as open afterwards.
    """
    wire, gate = server.connect(), server.service
    for refusal, code in (
        (ApiError(Code.NO_LEADER, "there is no leader"), Code.NO_LEADER),
        (RuntimeError("a bug"), Code.INTERNAL),
    ):
        server.node.refusal = refusal  # type: ignore[assignment]
        await wire.feed(APPEND, GET)
        assert [reply.problem().code for reply in wire.replies()[-2:]] == [code, code]
        assert all(reply.headers["raftlog-request-id"] for reply in wire.replies()[-2:])
    assert b"a bug" not in wire.written.replace(b"probably a bug", b""), "an exception is not shown"
    server.node.refusal = None
    await wire.feed(request("GET", "/v1/kv/" + "k" * 5_000), APPEND)
    assert wire.replies()[-2].problem().code is Code.TOO_LARGE
    monkeypatch.setattr(server.node, "is_fenced", True)
    await wire.feed(APPEND, GET)
    assert [reply.problem().code for reply in wire.replies()[-2:]] == [Code.FENCED, Code.FENCED]
    assert gate.load.open_requests == 0
