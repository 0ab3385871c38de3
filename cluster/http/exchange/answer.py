"""Builds an HTTP answer: its head once per status and media type, written with the body in one call.

The gate and the handlers make answers, and both connection classes write them. aiohttp's own Response costs more than
everything else between the socket and the node together; this class has the three methods of it that aiohttp calls.
Streams use `aiohttp.web.StreamResponse`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import web
from aiohttp.helpers import rfc822_formatted_time

from raftlog.cluster.api.errors import Problem
from raftlog.cluster.api.headers import H_INDEX, H_LOG, H_NODE, H_REQUEST_ID, H_TERM, JSON, PROBLEM
from raftlog.cluster.console.files import CACHED_TYPES

encode_json: Final = msgspec.json.Encoder().encode
encode_msgpack: Final = msgspec.msgpack.Encoder().encode
_JSON: Final = frozenset({JSON, PROBLEM})
"""Bodies of these end with a newline, so that a terminal shows its prompt on a line of its own."""
DRAIN_BYTES: Final = 64 << 10
"""Bytes of answers that wait for the client's socket before the writer waits too; aiohttp's own limit."""


class ServerIdentity:
    """The answering node: the part of every head that never changes, and the heads built from it."""

    __slots__ = ("drain_seconds", "heads", "log_id", "node_id")

    def __init__(self, log_id: str, node_id: int, drain_seconds: float) -> None:
        self.log_id = log_id
        self.node_id = node_id
        self.drain_seconds = drain_seconds
        self.heads: dict[tuple[int, str], bytes] = {}  # by status and media type: what `head` made

    def head(self, status: int, content_type: str) -> bytes:
        """Makes status line and the headers that are the same in every such answer. Keeps them in `heads`."""
        names = "".join(f"{name}: {value}\r\n" for name, value in self.headers(content_type))
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{names}".encode()
        self.heads[status, content_type] = head  # few: the statuses of `ERRORS`, a handful of types
        return head

    def headers(self, content_type: str) -> list[tuple[str, str]]:
        return [
            ("Content-Type", content_type),
            ("Cache-Control", "no-cache" if content_type in CACHED_TYPES else "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Server", "raftlog"),
            (H_LOG, self.log_id),
            (H_NODE, str(self.node_id)),
        ]


class StreamedAnswer:
    """An answer that is sent while it is made (`raftlog.cluster.http.exchange.stream.Stream`)."""

    __slots__ = ("keep_alive", "status")

    def __init__(self) -> None:
        self.keep_alive = False
        self.status = 200


class HttpAnswer:
    """One whole answer. `extra` are further headers, whose values the server made (so they have no line breaks)."""

    __slots__ = ("body", "content_type", "extra", "identity", "index", "keep_alive", "request_id", "status", "term")

    def __init__(
        self,
        identity: ServerIdentity,
        body: bytes,
        index: int,
        term: int,
        *,
        status: int = 200,
        content_type: str = JSON,
        extra: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.identity = identity
        # A large body that ends with a newline is not copied.
        self.body = body + b"\n" if content_type in _JSON and body[-1:] != b"\n" else body
        self.index = index
        self.term = term
        self.status = status
        self.content_type = content_type
        self.extra = extra
        self.request_id = ""
        self.keep_alive = True

    async def prepare(self, request: web.BaseRequest) -> None:
        """Writes the answer; aiohttp calls this once."""
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
            except ConnectionError as error:
                forget_frames(error)
                raise

    def write(self, transport: asyncio.Transport, connection: str = "", *, with_body: bool = True) -> None:
        """Writes head and body, in one call unless the body is large. `connection`: a header line about it."""
        extra = "".join([f"{name}: {value}\r\n" for name, value in self.extra]) if self.extra else ""
        body, identity = self.body, self.identity
        length = f"Content-Length: {len(body)}\r\n" if body or with_body else ""  # HEAD of a stream: not known
        head = identity.heads.get((self.status, self.content_type)) or identity.head(self.status, self.content_type)
        start = head + (
            f"{H_INDEX}: {self.index}\r\n{H_TERM}: {self.term}\r\n{H_REQUEST_ID}: {self.request_id}\r\n"
            f"Date: {rfc822_formatted_time()}\r\n{connection}{extra}{length}\r\n"
        ).encode("latin-1")
        if not with_body:
            transport.write(start)
        elif len(body) <= DRAIN_BYTES:
            transport.write(start + body)
        else:
            transport.write(start)
            transport.write(body)

    async def write_eof(self) -> None:
        """Does nothing: everything is written."""


def problem_answer(identity: ServerIdentity, problem: Problem, extra: Sequence[tuple[str, str]] = ()) -> HttpAnswer:
    answer = HttpAnswer(
        identity,
        encode_json(problem),
        problem.index or 0,
        problem.term or 0,
        status=problem.status,
        content_type=PROBLEM,
        extra=extra,
    )
    answer.request_id = problem.request_id
    return answer


def forget_frames(error: BaseException | None) -> None:
    """Takes the tracebacks of a handled error and of its causes. The reader of a body, a parser, or a waiter keeps its
    error, whose frames lead back to it, and to the bytes of the request or answer. The garbage collector would meet
    that circle hours later."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
