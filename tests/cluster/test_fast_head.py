"""What the fast path takes for the head of a simple request, value by value."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from cluster import fast_head, wire
from cluster.fast_head import HeadParser, Kind, Short
from tests.cluster.fast_wire import request


def kind_of(data: bytes) -> Kind:
    """How a head is taken."""
    return HeadParser(32 << 10, 64).parse(data, 0).kind


def test_handlers_ask_for_names_that_are_known() -> None:
    """A header that a handler asks for is given to it in whatever case it came, so every name asked for is known."""
    asked: set[str] = set()
    for path in Path(fast_head.__file__).parent.glob("http_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
                if ast.unparse(node.func.value).endswith("headers"):
                    name = node.args[0]
                    asked.add(name.value if isinstance(name, ast.Constant) else getattr(wire, ast.unparse(name)[5:]))  # type: ignore[arg-type]
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
def test_hot_routes(line: str, kind: Kind) -> None:
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


def test_what_is_remembered_is_bounded() -> None:
    """Clients with ever other headers cost no more than a few hundred of them; what differs with each request is not
    remembered at all."""
    parser = HeadParser(32 << 10, 64)
    for number in range(3 * fast_head._CACHED_HEADS_MAX):
        parser.parse(request("GET", "/v1/kv/a", f"X-Number: {number}"), 0)
        assert len(parser._cache) <= fast_head._CACHED_HEADS_MAX
        assert len(parser._heads) <= fast_head._CACHED_HEADS_MAX
        assert len(parser._lines) <= fast_head._CACHED_LINES_MAX
    kept = len(parser._cache), len(parser._heads)
    for header in ("Raftlog-Sequence: 1", "Raftlog-Request-Id: a", "X: " + "y" * 2_000):
        parser.parse(request("GET", "/v1/kv/a", header), 0)
    assert (len(parser._cache), len(parser._heads)) == kept


def test_a_head_that_came_before_is_the_same_wherever_it_stands() -> None:
    """A remembered head says all that it said the first time, but for where its body begins; one byte other is another
    head. Guard: `end` in `parse`, and the whole head as the key of what is remembered."""
    parser = HeadParser(32 << 10, 64)
    for method, target in (("POST", "/v1/log"), ("GET", "/v1/kv/a"), ("DELETE", "/v1/kv/a"), ("POST", "/v1/log?key=a")):
        one = request(method, target, "X-One: 1", body=b"body")
        first, again = parser.parse(one, 0), parser.parse(b"before" + one + b"after", 6)
        assert again == first._replace(end=first.end + 6)
        assert HeadParser(32 << 10, 64).parse(one, 0) == first
    assert parser.parse(request("PUT", "/v1/kv/a", "X-One: 1", body=b"body"), 0).method == "PUT"
    assert parser.parse(request("POST", "/v1/log", "X-One: 1", body=b"bodies"), 0).length == 6


@pytest.mark.parametrize(
    ("line", "headers", "short"),
    [
        ("POST /v1/log", {}, Short.APPEND),
        ("POST /v1/log", {"Accept": "*/*", "User-Agent": "x"}, Short.APPEND),
        ("POST /v1/log", {"Content-Type": "application/octet-stream"}, Short.APPEND),
        ("POST /v1/log", {"Content-Type": "application/json"}, Short.NO),
        ("POST /v1/log?key=a", {}, Short.NO),
        ("GET /v1/log", {}, Short.NO),
        ("PUT /v1/kv/a", {}, Short.PUT),
        ("PUT /v1/kv/a/%2Fb", {"Content-Type": "text/plain"}, Short.NO),
        ("PUT /v1/kv/a?if_revision=3", {}, Short.NO),
        ("PUT /v1/kv/", {}, Short.NO),
        ("PUT /v1/kv", {}, Short.NO),
        ("DELETE /v1/kv/a", {}, Short.NO),
        ("GET /v1/kv/a", {}, Short.GET),
        ("GET /v1/kv/a?consistency=stale", {}, Short.NO),
        ("GET /v1/kv/a", {"Accept": "application/octet-stream"}, Short.NO),
        *[
            (line, {name: "1"}, Short.NO)
            for line in ("POST /v1/log", "PUT /v1/kv/a", "GET /v1/kv/a")
            for name in (
                wire.H_SESSION, wire.H_SEQUENCE, wire.H_SETTLED, wire.H_DEADLINE, wire.H_REQUEST_ID, wire.H_KEY,
                wire.H_TIME, wire.H_LOG, "Origin", "raftlog-sesion",
            )
        ],
    ],
)  # fmt: skip
def test_the_short_way_is_for_what_asks_for_nothing_more(line: str, headers: dict[str, str], short: Short) -> None:
    """A header that changes what is done, or how it is answered, keeps a request from it, remembered or not."""
    method, target = line.split(" ")
    parser, data = (
        HeadParser(32 << 10, 64),
        request(method, target, *(f"{name}: {value}" for name, value in headers.items())),
    )
    assert [parser.parse(data, 0).short for _ in range(2)] == [short, short]
    raw = [(b"hOst", b"localhost"), *((name.lower().encode(), value.encode()) for name, value in headers.items())]
    of_aiohttp = fast_head.short_of(method, target) if fast_head.is_ordinary(raw) else Short.NO
    assert of_aiohttp is short, "what aiohttp has parsed is judged alike"
    assert not fast_head.is_ordinary(raw[1:]), "no host"
    assert not fast_head.is_ordinary([*raw, (b"X", b"1"), (b"x", b"1")]), "a name twice"
