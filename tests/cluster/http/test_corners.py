"""Corners of HTTP/1.1: framing, targets, hosts and headers, the same on the fast path and on aiohttp's alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, strategies as st

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.http.exchange.framing import SIZE_DIGITS_MAX, ChunkOverhead
from raftlog.cluster.http.routes.table import ROUTES
from tests.cluster.fake_node import Served, serve
from tests.cluster.http.access_world import valid
from tests.cluster.http.fast.fast_wire import request
from tests.cluster.http.http_probe import Reply, exchange, open_stream

HEAD_BYTES_MAX = 9_000


@pytest.fixture(params=[False, True], ids=["aiohttp", "fast"])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    """A fake node, without and with the fast path."""
    async with serve(fast_path=request.param, head_bytes_max=HEAD_BYTES_MAX) as served:
        yield served


def chunked(*headers: str, body: bytes, version: str = "1.1", target: str = "/v1/log", method: str = "POST") -> bytes:
    """A chunked request; `body` is as it goes over the wire."""
    return request(method, target, *(headers or ("Transfer-Encoding: chunked",)), version=version) + body


SMALL = b"3\r\nabc\r\n0\r\n\r\n"


# -- transfer codings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["gzip, chunked", "GZIP,chunked", "deflate, chunked", ", chunked", "x, y, chunked"])
@pytest.mark.parametrize(("method", "target"), [("POST", "/v1/log"), ("PUT", "/v1/kv/k"), ("GET", "/v1/kv/k")])
async def test_transfer_codings_other_than_chunked_are_unsupported(
    served: Served, coding: str, method: str, target: str
) -> None:
    """A packed body must not be stored as if it were the value. The connection ends, because a proxy in between may
    have seen another end of the request. Guard: `Call.check_framing`.
    """
    data = chunked(f"Transfer-Encoding: {coding}", body=SMALL, method=method, target=target)
    async with open_stream(served.port, data) as stream:
        reply = await stream.reply()
        assert (reply.status, reply.problem().code) == (501, Code.UNSUPPORTED)
        assert await stream.reader.read() == b""
    assert served.node.applied == 2


@pytest.mark.parametrize("coding", ["chunked", "Chunked", " chunked "])
async def test_chunked_alone_is_accepted(served: Served, coding: str) -> None:
    """In any case, with white space around it."""
    assert (await exchange(served.port, chunked(f"Transfer-Encoding:{coding}", body=SMALL))).status == 200


FRAMING = (
    chunked("Transfer-Encoding: gzip", body=b"abc"),
    chunked("Transfer-Encoding: chunked, chunked", body=SMALL),
    chunked("Transfer-Encoding: chunked, gzip", body=SMALL),
    chunked("Transfer-Encoding: gzip", "Transfer-Encoding: chunked", body=SMALL),
    chunked("Transfer-Encoding: chunked", "Content-Length: 3", body=SMALL),
    chunked("Transfer-Encoding: identity", "Content-Length: 3", body=b"abc"),
    chunked(body=SMALL, version="1.0"),
    chunked(body=b"3\r\nabcd\r\n0\r\n\r\n"),
    chunked(body=b"0x3\r\nabc\r\n0\r\n\r\n"),
    chunked(body=b"-3\r\nabc\r\n0\r\n\r\n"),
    chunked(body=b"fffffffffffffffff\r\nabc\r\n0\r\n\r\n"),
    chunked(body=b"3\nabc\n0\n\n"),
    chunked(body=b"3;a\nb\r\nabc\r\n0\r\n\r\n"),
    chunked(body=b"\r\nabc\r\n0\r\n\r\n"),
    request("PUT", "/v1/kv/k", "Content-Length: 1", "Content-Length: 1", body=b"v"),
    request("PUT", "/v1/kv/k", "Content-Length: 1, 1", body=b"v"),
    request("PUT", "/v1/kv/k", "Content-Length: +1", body=b"v"),
    request("PUT", "/v1/kv/k", "Content-Length: 0x1", body=b"v"),
    request("PUT", "/v1/kv/k", "Content-Length: 18446744073709551617", body=b"v"),
    request("PUT", "/v1/kv/k", "X: a\r\n b", body=b"v"),
    request("PUT", "/v1/kv/k", "X : a", body=b"v"),
    request("PUT", "/v1/kv/k", "X: a\rb", body=b"v"),
    request("PUT", "/v1/kv/k", "Host: localhost", body=b"v"),
    request("PUT", "/v1/kv/k", body=b"v").replace(b"\r\n", b"\n"),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    b"GET\r\n\r\n",
    b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
    b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v1/kv/\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
)


@pytest.mark.parametrize("data", FRAMING)
async def test_pitfall_85_framing_of_two_meanings_is_refused(served: Served, data: bytes) -> None:
    """Whatever two programs may take for requests of different lengths, or for none: 400, nothing applied, the
    connection ends."""
    async with open_stream(served.port, data) as stream:
        reply = await stream.reply()
        assert (reply.status, reply.problem().code) == (400, Code.BAD_REQUEST)
        assert await stream.reader.read() == b""
    assert served.node.applied == 2


# -- chunk extensions, trailers -------------------------------------------------------------------------------------

LONG = HEAD_BYTES_MAX + 100
OVER_THE_LIMIT = {
    "one extension": b"3;" + b"x" * LONG + b"\r\nabc\r\n0\r\n\r\n",
    "an extension that never ends": b"3;" + b"x" * LONG,
    "many extensions": b"1;name=value\r\na\r\n" * (HEAD_BYTES_MAX // 10) + b"0\r\n\r\n",
    "of the last chunk": b"3\r\nabc\r\n0;" + b"x" * LONG + b"\r\n\r\n",
    "zeros": b"0" * LONG + b"3\r\nabc\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("size", [1 << 20, 700])
@pytest.mark.parametrize("what", OVER_THE_LIMIT)
async def test_chunk_extensions_have_a_limit(served: Served, what: str, size: int) -> None:
    """More than limits.head_bytes_max of them in one request: 413, nothing applied, the connection ends; whether they
    come at once or in pieces. Guard: `ChunkOverhead`."""
    data = chunked(body=OVER_THE_LIMIT[what])
    async with open_stream(served.port, data[:size]) as stream:

        async def send_rest() -> None:
            for at in range(size, len(data), size):
                stream.writer.write(data[at : at + size])
                await asyncio.sleep(0)

        sending = asyncio.create_task(send_rest())
        reply = await stream.reply()
        assert (reply.status, reply.problem().code) == (413, Code.TOO_LARGE)
        assert "limits.head_bytes_max" in reply.problem().message
        await asyncio.gather(sending, return_exceptions=True)
    assert served.node.applied == 2


async def test_extensions_below_the_limit_are_passed_over_in_each_request(served: Served) -> None:
    """The limit is of one request: the next one on the connection has it to itself."""
    body = b"3;" + b"x" * 6_000 + b"\r\nabc\r\n0\r\n\r\n"
    plain = request("PUT", "/v1/kv/k", "Connection: keep-alive, x", body=b"v" * 5_000)
    async with open_stream(served.port, (chunked(body=body) + plain) * 3) as stream:
        for _ in range(6):
            assert (await next_reply(stream.reader)).startswith(b"HTTP/1.1 200 ")
    assert served.node.applied == 8


async def test_a_trailer_is_refused_and_is_no_header_of_the_next_request(served: Served) -> None:
    """A proxy sends the requests of several users on one connection. aiohttp's parser keeps the last trailer of a
    request, and gives it to the next one as a header: here the key of a record. Guard: `ChunkOverhead`."""
    plain = request("POST", "/v1/log", "Connection: keep-alive, x", body=b"v")
    data = chunked(body=b"3\r\nabc\r\n0\r\nRaftlog-Key: k\r\n\r\n") + plain
    async with open_stream(served.port, data) as stream:
        reply = await stream.reply()
        assert (reply.status, reply.problem().code) == (400, Code.BAD_REQUEST)
        assert "trailer" in reply.problem().message
        assert await stream.reader.read() == b""
    assert served.node.applied == 2


async def next_reply(reader: asyncio.StreamReader) -> bytes:
    """The next answer on the connection, whose head has a length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head + await reader.readexactly(length)


chunks = st.tuples(
    st.integers(1, 40), st.integers(0, SIZE_DIGITS_MAX - 2), st.sampled_from([b"", b";a", b";name=value", b' ;q="x"'])
)


@given(
    st.lists(chunks, max_size=6),
    st.sampled_from([b"", b"", b"A: b\r\n", b"\n"]),
    st.integers(20, 120),
    st.data(),
)
def test_the_overhead_is_the_same_however_the_bytes_are_cut(
    sizes: list[tuple[int, int, bytes]], trailer: bytes, limit: int, data: st.DataObject
) -> None:
    """Extensions are counted to the byte, chunk sizes and bodies are not, and no trailer passes; cut anywhere, nothing
    changes. After the request another one with a body is passed over."""
    text = b"POST / HTTP/1.1\r\ncontent-length-x: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    extra = 0
    for size, zeros, extension in sizes:
        text += b"0" * zeros + b"%x" % size + extension + b"\r\n" + b"\n" * size + b"\r\n"
        extra += len(extension)
    text += b"0\r\n" + trailer + b"\r\n"
    text += b"PUT / HTTP/1.1\r\nContent-Length: 4\r\n\r\n1;;;" + text
    overhead = ChunkOverhead(limit)

    def follow() -> None:
        at = 0
        while at < len(text):
            piece = text[at : at + data.draw(st.integers(1, len(text)))]
            at += overhead.check(piece)

    if extra > limit or trailer:
        with pytest.raises(ApiError, match="too_large" if extra > limit else "no trailer"):
            follow()
    else:
        follow()


@pytest.mark.parametrize("rest", [b"abX", b"abcX", b"abc\n3\r\n", b"abc\r\nzz\r\n", b"abc\r\n\r\n"])
async def test_a_late_malformed_chunk_is_answered_at_once(
    served: Served, rest: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The request has begun, and waits for its body: it must not wait until its deadline. The node's log gets no stack
    trace, with which a client could fill the disk. Guard: `_Handler.log_exception`."""
    async with open_stream(
        served.port, chunked("Transfer-Encoding: chunked", "Expect: 100-continue", body=b"")
    ) as stream:
        assert (await stream.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        stream.writer.write(b"3\r\n" + rest + b"\r\n\r\n")
        reply = await stream.reply()
        assert (reply.status, reply.problem().code) == (400, Code.BAD_REQUEST)
        assert await stream.reader.read() == b""
    assert served.node.applied == 2
    assert not caplog.records


# -- hosts and targets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"GET /livez HTTP/1.0\r\n\r\n",
        b"GET /readyz HTTP/1.0\r\n\r\n",
        b"HEAD /readyz HTTP/1.0\r\n\r\n",
        b"GET /readyz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        b"OPTIONS / HTTP/1.0\r\n\r\n",
    ],
)
async def test_a_load_balancers_plain_check_needs_no_host(served: Served, data: bytes) -> None:
    """HTTP/1.0 has no Host header, and HAProxy's `option httpchk` sends `OPTIONS / HTTP/1.0`: 200 while the node is
    ready; else 503, but for /livez. Guard: `Api._check_target`."""
    is_head = data.startswith(b"HEAD")
    assert (await exchange(served.port, data, is_head=is_head)).status == 200
    served.node.is_ready = False
    reply = await exchange(served.port, data, is_head=is_head)
    assert reply.status == (200 if b"/livez" in data else 503)
    assert reply.body.startswith(b"" if is_head else b"ok" if b"/livez" in data else b"not ready")


async def test_every_other_route_needs_a_host(served: Served) -> None:
    """In HTTP/1.0 a missing Host is none of this node's (421); HTTP/1.1 requires it (400, RFC 9112 section 3.2)."""
    for data in (b"GET /v1/status HTTP/1.0\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n", b"OPTIONS /v1/log HTTP/1.0\r\n\r\n"):
        assert (await exchange(served.port, data)).problem().code is Code.BAD_HOST
    for data in (b"GET /v1/status HTTP/1.1\r\n\r\n", b"GET /livez HTTP/1.1\r\n\r\n"):
        assert (await exchange(served.port, data)).problem().code is Code.BAD_REQUEST


@pytest.mark.parametrize(
    ("authority", "code"),
    [
        ("http://evil.example", Code.BAD_HOST),
        ("http://evil.example:80", Code.BAD_HOST),
        ("HTTP://evil.example", Code.BAD_HOST),
        ("http://127.0.0.1.evil.example", Code.BAD_HOST),
        ("http://localhost.evil", Code.BAD_HOST),
        ("https://localhost", Code.BAD_HOST),
        ("ftp://localhost", Code.BAD_HOST),
        ("http://user@localhost", Code.BAD_REQUEST),
        ("http://localhost@evil.example", Code.BAD_REQUEST),
        ("http://user:word@evil.example", Code.BAD_REQUEST),
    ],
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/status"), ("PUT", "/v1/kv/k"), ("GET", "/livez")])
async def test_a_target_with_a_foreign_authority_is_refused(
    served: Served, authority: str, code: Code, method: str, path: str
) -> None:
    """An absolute target says whom it means, more than the Host header does (RFC 9112, section 3.2.2): another name is
    421 as another Host is, a user in it 400. Guard: `authority_of`."""
    data = request(method, authority + path, body=b"v" if method == "PUT" else None)
    assert (await exchange(served.port, data)).problem().code is code
    assert served.node.applied == 2


async def test_a_target_with_this_nodes_authority_is_served(served: Served) -> None:
    """As proxies send it; without a path it is `/`. A foreign Host beside it is refused all the same."""
    put = request("PUT", "http://127.0.0.1:80/v1/kv/a%2Fb", body=b"v")
    assert (await exchange(served.port, put)).status == 200
    assert served.node.machine.get(b"a/b").value == b"v"
    assert (await exchange(served.port, request("GET", "http://localhost/livez"))).status == 200
    for bare in ("http://localhost", "http://localhost?"):
        assert (await exchange(served.port, request("GET", bare))).body.startswith(b"raftlog ")
    foreign = b"GET http://localhost/v1/status HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    assert (await exchange(served.port, foreign)).problem().code is Code.BAD_HOST


async def test_a_write_whose_origin_is_its_absolute_target(served: Served) -> None:
    """The page of this node's own name may write, under the name that the target says."""
    for origin, status in (("http://127.0.0.1:80", 200), ("http://localhost", 403)):
        data = request("PUT", "http://127.0.0.1:80/v1/kv/k", f"Origin: {origin}", body=b"v")
        assert (await exchange(served.port, data)).status == status


# -- headers of raftlog's -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["Raftlog-Sesion: 3", "RAFTLOG-FOO: 1", "raftlog-: 1", "Raftlog-Index: 5"])
async def test_unknown_headers_of_raftlogs_are_refused_on_every_route(served: Served, header: str) -> None:
    """On reads, probes and what operators ask as on writes, also beside known ones. Guard: `Call.check_own_headers`."""
    for route in ROUTES:
        target, body = valid(route.method, route.pattern)
        session = ("Raftlog-Session: 3", "Raftlog-Sequence: 1") if route.method not in ("GET", "OPTIONS") else ()
        reply: Reply = await exchange(served.port, request(route.method, target, *session, header, body=body))
        assert reply.problem().code is Code.BAD_REQUEST, route
        assert f"unknown header {header.partition(':')[0]!r}" in reply.problem().message
    assert served.node.applied == 2


@pytest.mark.parametrize("name", ["Raftlog-Deadline-Ms", "Raftlog-Settled", "Raftlog-Log", "Raftlog-Session"])
async def test_a_header_of_raftlogs_given_twice_is_refused(served: Served, name: str) -> None:
    """Of two values it is not known which is meant."""
    session = ("Raftlog-Session: 3", "Raftlog-Sequence: 1", "Raftlog-Settled: 1")
    given = [each for each in session if not each.startswith(name)]
    value = served.node.log_id if name == "Raftlog-Log" else "1"
    data = request("PUT", "/v1/kv/k", *given, f"{name}: {value}", f"{name.lower()}: {value}", body=b"v")
    problem = (await exchange(served.port, data)).problem()
    assert (problem.code, "twice" in problem.message) == (Code.BAD_REQUEST, True)
    assert served.node.applied == 2


# -- JSON ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'[{"value":"a"},{"value":"bcd\xff"}]', "byte 28 is not UTF-8"),
        (b'[{"va\xfflue":"a"}]', "byte 5 is not UTF-8"),
        (b'[{"value":"\xed\xa0\x80"}]', "byte 11 is not UTF-8"),
        (b'[{"value":"\xc3', "ends too early (byte 12)"),
        (b'[{"value":"a"},{"value":"b\\x"}]', "(byte 28)"),
        (b'[{"value":"a', "ends too early (byte 12)"),
        (b"", "it is empty"),
        (b'[{"value":"a","time_ms":NaN}]', "(byte 24)"),
        (b'[{"value":"a","time_ms":Infinity}]', "(byte 24)"),
        (b'[{"value":"a","time_ms":9223372036854775808}]', "$[0].time_ms"),
        (b'[{"value":"a","time_ms":9007199254740992}]', "$[0].time_ms"),
        (b'[{"value":"a","time_ms":1.0}]', "$[0].time_ms"),
        (b'\xef\xbb\xbf[{"value":"a"}]', "(byte 0)"),
        ('[{"value":"a"}]'.encode("utf-16"), "(byte 0)"),
        (b'[{"value":"a"}] x', "trailing characters"),
        (b"[" * 5_000, "Expected `object`"),
    ],
)
async def test_the_place_of_an_error_counts_within_the_body(served: Served, body: bytes, says: str) -> None:
    """Not within the string that is wrong. Guard: `raftlog.cluster.http.exchange.body.decode`."""
    data = request("POST", "/v1/log", "Content-Type: application/json", body=body)
    problem = (await exchange(served.port, data)).problem()
    assert problem.code is Code.BAD_REQUEST
    assert says in problem.message, problem.message
    assert served.node.applied == 2


async def test_the_place_of_an_error_in_msgpack_and_in_a_line(served: Served) -> None:
    """A packed body counts from its start, a line of NDJSON from the start of the line that is named."""
    packed = b"\x91\x94\xc4\x01a\xc0\xc0\x91\x92\xa2n\xff\xa1v"  # [[b"a", nil, nil, [["n\xff", "v"]]]]
    data = request("POST", "/v1/log", "Content-Type: application/msgpack", body=packed)
    assert "byte 11 is not UTF-8" in (await exchange(served.port, data)).problem().message
    lines = b'{"value":"a"}\n{"value":"b\xff"}\n'
    data = request("POST", "/v1/log", "Content-Type: application/x-ndjson", body=lines)
    assert "line 2 of the body: byte 11 is not UTF-8" in (await exchange(served.port, data)).problem().message
