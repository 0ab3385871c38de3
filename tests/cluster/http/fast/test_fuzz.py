"""The same bytes to a server with the fast path and to one without: the same answers, and the same log."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from raftlog.cluster.http.fast import connection
from tests.cluster.http.fast.fast_wire import Server, request

METHODS = st.sampled_from(["GET", "PUT", "POST", "DELETE", "HEAD", "PATCH", "get"])
TARGETS = st.sampled_from(
    [
        "/v1/log",
        "/v1/log?from=1",
        "/v1/log?from=1&limit=2&format=msgpack",
        "/v1/log?format=ndjson",
        "/v1/log?x=1",
        "/v1/log?key=a",
        "/v1/log?from=99999999999999999999",
        "/v1/log?from=",
        "/v1/log/",
        "/v1/kv/a",
        "/v1/kv/a%2Fb",
        "/v1/kv/a/../b",
        "/v1/kv//a",
        "/v1/kv/%zz",
        "/v1/kv/",
        "/v1/kv",
        "/v1/kv?prefix=",
        "/v1/kv?key_b64=YQ==",
        "/v1/kv/a?at=2",
        "/v1/kv/a?at=1&at=1",
        "/v1/kv/a?consistency=stale",
        "/v1/kv/a?if_revision=0",
        "/v1/kv/txn",
        "/v1/kv/a#b",
        "/v1/kv/a?encoding=base64",
        "/livez",
        "/version",
        "/nothing",
        "*",
        "http://localhost/v1/kv/a",
        "/v1/kv/\xe9",
        "/v1/kv/a b",
        '/v1/kv/a"<>^`{|}',
    ]
)
HEADERS = st.sampled_from(
    [
        "Content-Type: application/json",
        "content-type: application/msgpack",
        "Content-Type: application/x-ndjson",
        "Accept: application/octet-stream",
        "Accept: */*",
        "X-One: 1",
        "x-one:2",
        "X-Empty:",
        "X-Tab:\ta\t b\t",
        "Connection: keep-alive",
        "Connection: close",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Expect: 100-continue",
        "Expect: something",
        "Content-Encoding: gzip",
        "Content-Encoding: identity",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: identity",
        "Content-Length: 3",
        "Content-Length: 03",
        "Content-Length: 3, 3",
        "Content-Length: x",
        "Content-Length:",
        "Host: evil.example",
        "host: localhost",
        "Origin: http://evil.example",
        "Origin: http://localhost",
        "Raftlog-Session: 1",
        "Raftlog-Sequence: 1",
        "Raftlog-Settled: 1",
        "Raftlog-Sesion: 1",
        "Raftlog-Deadline-Ms: 50",
        "Raftlog-Deadline-Ms: x",
        "Raftlog-Key: a%20b",
        "Raftlog-Time-Ms: 5",
        "Raftlog-Request-Id: mine",
        "Raftlog-Request-Id: my own",
        " folded: 1",
        "No colon",
        "Sp ace: 1",
        "Before : 1",
        "X-Nul: a\x00b",
        "X-Del: a\x7fb",
        "X-Latin: \xe9",
        "X-Bare: a\rb",
        "X-Feed: a\nb",
        ": nameless",
    ]
)
BODIES = st.sampled_from(
    [
        b"",
        b"abc",
        b"a" * 40,
        b'{"value":"v"}',
        b'[{"value":"v"},{"key":"k"}]',
        b'[{"value":1}]',
        b"\x92\xc4\x01a\xc4\x01b",
        b"3\r\nabc\r\n0\r\n\r\n",
        b"3\r\nabcd\r\n0\r\n\r\n",
        b"zz\r\n",
        b"GET /v1/kv/a HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ]
)
SIMPLE = st.sampled_from(
    [
        ("PUT", "/v1/kv/a", b"v"),
        ("GET", "/v1/kv/a", None),
        ("POST", "/v1/log", b"record"),
        ("GET", "/v1/log?from=1", None),
        ("GET", "/version", None),
        ("DELETE", "/v1/kv/a", None),
        ("GET", "/v1/log?format=ndjson", None),
        ("PUT", "/v1/kv/a?if_revision=1", b""),
    ]
)
CUTS = st.lists(st.integers(0, 600), max_size=4)
PROFILE = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """One request: half of them are well-formed but for one header, the others may be anything."""
    if draw(st.booleans()):
        method, target, body = draw(SIMPLE)
        return request(method, target, *draw(st.lists(HEADERS, max_size=1)), body=body)
    data = request(
        draw(METHODS),
        draw(TARGETS),
        *draw(st.lists(HEADERS, max_size=4)),
        body=draw(st.none() | BODIES),
        version=draw(st.sampled_from(["1.1", "1.1", "1.1", "1.0", "2.0", "1"])),
    )
    if draw(st.integers(0, 4)) == 0:  # one byte is lost, added or changed
        at = draw(st.integers(0, len(data) - 1))
        data = data[:at] + draw(st.sampled_from([b"", b"\r", b"\n", b" ", b":", b"\x00", b"1"])) + data[at + 1 :]
    return data


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    """The bytes in pieces."""
    marks = sorted({min(at, len(data)) for at in cuts} | {0, len(data)})
    return [data[low:high] for low, high in pairwise(marks)]


async def told(pieces: list[bytes], *, fast: bool) -> tuple[bytes, bool, list[bytes]]:
    """The answers to those packets, whether the connection ended, and the log afterwards."""
    async with Server(fast_path=fast) as server:
        wire = server.connect()
        await wire.feed(*pieces)
        return wire.told, wire.is_closed, [entry.data for entry, _ in server.node.log]


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that is not there is aiohttp's at once: nothing here waits for a clock."""
    monkeypatch.setattr(connection, "BODY_WAIT_SECONDS", 0.0)


@given(parts=st.lists(requests(), min_size=1, max_size=4), cuts=CUTS)
@PROFILE
def test_anything_is_answered_alike(parts: list[bytes], cuts: list[int]) -> None:
    """Whatever comes, each request in packets of its own: the answers, their order, the end of the connection and what
    became of the log are the same. (In one packet with a malformed request aiohttp alone forgets good ones before it.)
    """
    pieces = [piece for part in parts for piece in cut(part, cuts)]
    assert asyncio.run(told(pieces, fast=True)) == asyncio.run(told(pieces, fast=False))


@given(parts=st.lists(SIMPLE, min_size=1, max_size=5), cuts=CUTS)
@PROFILE
def test_pipelines_are_answered_alike(parts: list[tuple[str, str, bytes | None]], cuts: list[int]) -> None:
    """Well-formed requests in any packets, several in one or one in several: the answers of one after the other."""
    stream = [request(method, target, body=body) for method, target, body in parts]
    assert asyncio.run(told(cut(b"".join(stream), cuts), fast=True)) == asyncio.run(told(stream, fast=False))
