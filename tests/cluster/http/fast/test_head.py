"""What the fast path takes for the head of a simple request, value by value."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from raftlog.cluster.api import headers
from raftlog.cluster.api.headers import H_DEADLINE, H_KEY, H_LOG, H_REQUEST_ID, H_SEQUENCE, H_SESSION, H_SETTLED, H_TIME
from raftlog.cluster.http.fast import head as fast_head
from raftlog.cluster.http.fast.head import HeadParser, Kind
from tests.cluster.http.fast.fast_wire import request


def kind_of(data: bytes) -> Kind:
    """How a head is taken."""
    return HeadParser(32 << 10, 64).parse(data, 0).kind


def test_handlers_ask_for_names_that_are_known() -> None:
    """A header that a handler asks for is given to it in whatever case it came, so every name asked for is known."""
    asked: set[str] = set()
    for path in Path(fast_head.__file__).parent.parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
                if ast.unparse(node.func.value).endswith("headers"):
                    name = node.args[0]
                    asked.add(name.value if isinstance(name, ast.Constant) else getattr(headers, ast.unparse(name)))  # type: ignore[arg-type]
    assert asked
    assert asked <= set(fast_head.KNOWN_NAMES)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("POST /v1/log", Kind.HOT),
        ("POST /v1/log?key=a", Kind.HOT),
        ("GET /v1/log?from=3&limit=9&format=msgpack&internal=true", Kind.HOT),
        ("GET /v1/log?from=3&wait=9", Kind.PLAIN),
        ("GET /v1/log?format=ndjson", Kind.PLAIN),
        ("GET /v1/log?%66ormat=raw", Kind.PLAIN),
        ("GET /v1/log?from=3&min_index=1", Kind.PLAIN),
        ("GET /v1/logs", Kind.PLAIN),
        ("PUT /v1/kv/a/b?if_revision=3", Kind.HOT),
        ("PUT /v1/kv?key_b64=YQ==", Kind.HOT),
        ("GET /v1/kv/a", Kind.HOT),
        ("GET /v1/kv/a?consistency=stale&at=3", Kind.HOT),
        ("GET /v1/kv/a?consistency=stale&min_index=3", Kind.PLAIN),
        ("GET /v1/kv?prefix=a", Kind.PLAIN),
        ("DELETE /v1/kv/a", Kind.PLAIN),
        ("POST /v1/kv/txn", Kind.PLAIN),
        ("GET /v1/kv/a#b", Kind.ODD),
        ("GET http://localhost/v1/kv/a", Kind.ODD),
        ("get /v1/kv/a", Kind.ODD),
        ("CONNECT /v1/kv/a", Kind.ODD),
    ],
)
def test_only_plain_puts_gets_appends_and_log_pages_are_hot(line: str, kind: Kind) -> None:
    """Hot is what ends by itself and asks for one record, a batch, a key or a page; never what waits or streams."""
    method, target = line.split(" ")
    assert kind_of(request(method, target)) is kind


def test_every_beginning_of_a_head_is_waited_for() -> None:
    """However little of a simple head is there, more is waited for; of one that cannot become simple nothing is."""
    data = request("PUT", "/v1/kv/k", "X: a b", "Content-Length: 1")
    assert {kind_of(data[:end]) for end in range(1, len(data))} == {Kind.PARTIAL}
    assert kind_of(data) is Kind.HOT
    for begun in (
        b"\x16\x03\x01",
        b"\r\n",
        b"G E",
        b"GET x",
        b"GET / HTTP/2",
        b"GET / HTTP/1.1\r\n X",
        b"GET / HTTP/1.1\r\nX Y",
    ):
        assert kind_of(begun) is Kind.ODD


def test_the_body_begins_where_the_head_ends() -> None:
    """Position, length, target and headers of a head amid other bytes; known names as handlers write them."""
    data = b"before" + request("PUT", "/v1/kv/k?if_revision=1", "raftlog-KEY: v", "X-One:  1 ", body=b"body") + b"after"
    head = HeadParser(32 << 10, 64).parse(data, 6)
    assert (head.method, head.target, head.length) == ("PUT", "/v1/kv/k?if_revision=1", 4)
    assert data[head.end : head.end + head.length] == b"body"
    assert head.headers == {"Host": "localhost", "Raftlog-Key": "v", "x-one": "1", "Content-Length": "4"}


def test_remembered_heads_are_bounded() -> None:
    """Clients with ever other headers cost no more than a few hundred of them; what differs with each request is not
    remembered at all."""
    parser = HeadParser(32 << 10, 64)
    for number in range(3 * fast_head._CACHED_HEADS_MAX):
        parser.parse(request("GET", "/v1/kv/a", f"X-Number: {number}"), 0)
        assert len(parser._cache) <= fast_head._CACHED_HEADS_MAX
        assert len(parser._heads) <= fast_head._CACHED_HEADS_MAX
        assert len(parser._lines) <= fast_head._CACHED_LINES_MAX
    kept = len(parser._cache), len(parser._heads)
    for header in ("Raftlog-Sequence: 1", "Raftlog-Request-Id: a", "Traceparent: 00-a-b-01", "X: " + "y" * 2_000):
        parser.parse(request("GET", "/v1/kv/a", header), 0)
    assert (len(parser._cache), len(parser._heads)) == kept


def test_a_head_that_came_before_is_the_same_wherever_it_stands() -> None:
    """A remembered head gives the same values as the first time, except the position of its body. A head that differs
    in one byte is another head. Guard: `end` in `parse`, and the whole head as the key of the memory.
    """
    parser = HeadParser(32 << 10, 64)
    for method, target in (("POST", "/v1/log"), ("GET", "/v1/kv/a"), ("DELETE", "/v1/kv/a"), ("POST", "/v1/log?key=a")):
        one = request(method, target, "X-One: 1", body=b"body")
        first, again = parser.parse(one, 0), parser.parse(b"before" + one + b"after", 6)
        assert again == first._replace(end=first.end + 6)
        assert HeadParser(32 << 10, 64).parse(one, 0) == first
    assert parser.parse(request("PUT", "/v1/kv/a", "X-One: 1", body=b"body"), 0).method == "PUT"
    assert parser.parse(request("POST", "/v1/log", "X-One: 1", body=b"bodies"), 0).length == 6


@pytest.mark.parametrize(
    ("headers", "has_options"),
    [
        ({}, False),
        ({"Accept": "*/*", "User-Agent": "x", "Connection": "keep-alive"}, False),
        ({"Content-Type": "application/octet-stream"}, False),
        ({"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}, False),
        ({"Content-Type": "application/json"}, True),
        ({"Content-Type": "text/plain"}, True),
        ({"Accept": "application/octet-stream"}, True),
        *[
            ({"User-Agent": "x", name: "1"}, True)
            for name in (
                H_SESSION,
                H_SEQUENCE,
                H_SETTLED,
                H_DEADLINE,
                H_REQUEST_ID,
                H_KEY,
                H_TIME,
                H_LOG,
                H_LOG.lower(),
                "Origin",
                "Last-Event-ID",
            )
        ],
    ],
)
@pytest.mark.parametrize("line", ["POST /v1/log", "PUT /v1/kv/a", "GET /v1/kv/a", "GET /v1/log?from=3"])
def test_a_header_that_asks_for_something_is_an_option(line: str, headers: dict[str, str], has_options: bool) -> None:
    """Without options the gate and the handlers look at no header but Host: a session would be lost without a word."""
    method, target = line.split(" ")
    parser = HeadParser(32 << 10, 64)
    data = request(method, target, *(f"{name}: {value}" for name, value in headers.items()))
    found = [parser.parse(data, 0) for _ in range(2)]
    assert [(head.kind, head.has_options) for head in found] == [(Kind.HOT, has_options)] * 2, "remembered or not"


def test_a_body_above_the_limit_is_not_hot() -> None:
    """aiohttp refuses it before it has come."""
    parser = HeadParser(32 << 10, 64, 100)
    sizes = {size: parser.parse(request("PUT", "/v1/kv/a", body=b"x" * size), 0).kind for size in (100, 101)}
    assert sizes == {100: Kind.HOT, 101: Kind.PLAIN}
    parser = HeadParser(32 << 10, 64, 8 << 20)
    lengths = [fast_head.BODY_BYTES_MAX, fast_head.BODY_BYTES_MAX + 1]
    kinds = [parser.parse(request("PUT", "/v1/kv/a", f"Content-Length: {size}"), 0).kind for size in lengths]
    assert kinds == [Kind.HOT, Kind.PLAIN]
