"""An answer on its way: its head built once per status and media type, written with its body in one go.

aiohttp's own Response costs more than everything else between the socket and the node together; this has the three
methods of it that aiohttp calls. Streams use `aiohttp.web.StreamResponse`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import web
from aiohttp.helpers import rfc822_formatted_time

from cluster import wire
from cluster.wire import PROBLEM, ApiError, LeaderHint, Problem

encode_json: Final = msgspec.json.Encoder().encode
encode_msgpack: Final = msgspec.msgpack.Encoder().encode
_JSON: Final = frozenset({wire.JSON, PROBLEM})
"""Bodies of these end with a newline, so that a terminal shows its prompt on a line of its own."""
DRAIN_BYTES: Final = 64 << 10
"""What the socket has not taken of answers waits for it above this; aiohttp's own limit."""


class Identity:
    """Who answers: the part of every head that never changes, and the heads built from it."""

    __slots__ = ("_heads", "drain_seconds", "log_id", "node_id")

    def __init__(self, log_id: str, node_id: int, drain_seconds: float) -> None:
        self.log_id = log_id
        self.node_id = node_id
        self.drain_seconds = drain_seconds
        self._heads: dict[tuple[int, str], bytes] = {}

    def head(self, status: int, content_type: str) -> bytes:
        """Status line and the headers that are the same in every such answer."""
        head = self._heads.get((status, content_type))
        if head is None:
            names = "".join(f"{name}: {value}\r\n" for name, value in self.headers(content_type))
            head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{names}".encode()
            self._heads[status, content_type] = head  # few: the statuses of wire.ERRORS, a handful of types
        return head

    def headers(self, content_type: str) -> list[tuple[str, str]]:
        """The same headers, for a stream."""
        return [
            ("Content-Type", content_type),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Server", "raftlog"),
            (wire.H_LOG, self.log_id),
            (wire.H_NODE, str(self.node_id)),
        ]


class Answer:
    """One whole answer. `extra` are further headers, whose values the server made (no line breaks can be in them)."""

    __slots__ = ("body", "content_type", "extra", "identity", "index", "keep_alive", "request_id", "status", "term")

    def __init__(
        self, identity: Identity, body: bytes, index: int, term: int, *, status: int = 200,
        content_type: str = wire.JSON, extra: Sequence[tuple[str, str]] = (),
    ) -> None:  # fmt: skip
        self.identity = identity
        # A large one that has its newline is not copied.
        self.body = body + b"\n" if content_type in _JSON and body[-1:] != b"\n" else body
        self.index = index
        self.term = term
        self.status = status
        self.content_type = content_type
        self.extra = extra
        self.request_id = ""
        self.keep_alive = True

    async def prepare(self, request: web.BaseRequest) -> None:
        """Writes it; aiohttp calls this once."""
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        self.keep_alive = self.keep_alive and request.keep_alive
        connection = ""
        if not self.keep_alive:
            connection = "Connection: close\r\n"
        elif request.version.minor == 0:
            connection = "Connection: keep-alive\r\n"
        self.write(transport, connection, with_body=request.method != "HEAD")
        if transport.get_write_buffer_size() > DRAIN_BYTES:
            try:
                async with asyncio.timeout(self.identity.drain_seconds):
                    await request.writer.drain()
            except TimeoutError:
                transport.abort()

    def write(self, transport: asyncio.Transport, connection: str = "", *, with_body: bool = True) -> None:
        """Head and body, in one go unless the body is large; `connection` is a header line about what follows."""
        extra = "".join([f"{name}: {value}\r\n" for name, value in self.extra]) if self.extra else ""
        body = self.body
        start = self.identity.head(self.status, self.content_type) + (
            f"{wire.H_INDEX}: {self.index}\r\n{wire.H_TERM}: {self.term}\r\n{wire.H_REQUEST_ID}: {self.request_id}\r\n"
            f"Date: {rfc822_formatted_time()}\r\n{connection}{extra}Content-Length: {len(body)}\r\n\r\n"
        ).encode("latin-1")
        if not with_body:
            transport.write(start)
        elif len(body) <= DRAIN_BYTES:
            transport.write(start + body)
        else:
            transport.write(start)
            transport.write(body)

    async def write_eof(self) -> None:
        """Nothing is left to write."""


def encode_answer(identity: Identity, body: Any, index: int, term: int) -> Answer:
    """A struct of `cluster.wire` as a JSON answer."""
    return Answer(identity, encode_json(body), index, term)


def make_problem(
    error: ApiError, *, identity: Identity, request_id: str, leader: LeaderHint | None, index: int, term: int,
    has_session: bool = False,
) -> Problem:  # fmt: skip
    """The error as it is told to the client. `index` and `term` are the node's unless the error has its own;
    `has_session`: the request is a write that names a session."""
    row = error.row
    more = {"index": index, "term": term, "leader": leader, **error.more}
    return Problem(
        code=error.code,
        message=error.message if error.message.startswith("node ") else f"node {identity.node_id}: {error.message}",
        status=row.status,
        outcome=wire.outcome_of(error.code, has_session=has_session),
        retryable=row.retryable,
        request_id=request_id,
        node=identity.node_id,
        title=error.code.replace("_", " "),
        detail=error.message,
        **more,
    )


def problem_answer(identity: Identity, problem: Problem, extra: Sequence[tuple[str, str]] = ()) -> Answer:
    """That as an answer."""
    answer = Answer(
        identity, encode_json(problem), problem.index or 0, problem.term or 0, status=problem.status,
        content_type=PROBLEM, extra=extra,
    )  # fmt: skip
    answer.request_id = problem.request_id
    return answer
