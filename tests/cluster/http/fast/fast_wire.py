"""A client's connection to the HTTP server without a socket: bytes in as they are cut, bytes out as written."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Self, cast

from raftlog.cluster.client.http1 import ResponseParser
from raftlog.cluster.config.settings import HttpSettings, LimitSettings, Settings
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.http.fast.byte_flow import ConnectionState
from raftlog.cluster.http.fast.connection import FastConnection
from raftlog.cluster.http.server import build_runner
from tests.cluster.fake_node import FakeNode
from tests.cluster.http.http_probe import Reply

TURNS = 30  # of the event loop: more than any request takes that waits for nothing
_DIFFERS = re.compile(
    rb"Date: [^\r]*\r\n|Raftlog-Request-Id: 1-[^\r]*\r\n|\"request_id\":\"1-[^\"]*\"|Content-Length: [0-9]+\r\n"
    rb"|HTTP/1\.1 knows: .*?\"(?=,\"status\"|})"
)  # the last: aiohttp quotes what it had of a malformed head, which is how the packets were cut


class Wire(asyncio.Transport):
    """The server's transport; `written` is what the client would have got."""

    def __init__(self, protocol: asyncio.Protocol, address: str = "127.0.0.1") -> None:
        super().__init__({"peername": (address, 1)})
        self.protocol = protocol
        self.written = b""
        self.is_closed = False
        self.is_read = True
        self.unsent = 0  # what get_write_buffer_size says
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        assert not self.is_closed, "a write after the end"
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    async def feed(self, *pieces: bytes) -> None:
        """The client sends; between two pieces, and after the last, the server has time for all it can do."""
        for piece in pieces:
            if not self.is_closed:
                self.protocol.data_received(piece)
            await turns()
            flow = self.protocol
            if isinstance(flow, FastConnection) and flow._state is ConnectionState.IDLE and not flow._body:
                assert flow._in.size == len(flow._buffer) - flow._at, "only bytes that wait are counted"

    def replies(self, *heads: int) -> list[Reply]:
        """Every answer so far, which must be whole; those numbered in `heads` are to HEAD requests."""
        found: list[Reply] = []
        left = self.written
        while left:
            parser = ResponseParser()
            head, _, rest = left.partition(b"\r\n\r\n")
            if head.startswith(b"HTTP/1.1 100 "):
                left = rest
                continue
            parser.feed(head + b"\r\n\r\n")
            assert parser.head is not None
            size = 0 if len(found) in heads else int(parser.head.headers.get("content-length", len(rest)))
            assert len(rest) >= size, left
            found.append(Reply(parser.head.status, parser.head.headers, rest[:size]))
            left = rest[size:]
        return found

    @property
    def told(self) -> bytes:
        """The written bytes, without the parts that differ between runs."""
        return _DIFFERS.sub(b"", self.written)


class Server:
    """A fake node behind the HTTP server, `fast_path` on or off."""

    def __init__(self, *, fast_path: bool, **limits: int) -> None:
        self.node = FakeNode()
        self.settings = Settings(http=HttpSettings(access_log=False), limits=LimitSettings(**limits))
        self.runner = build_runner(self.node, self.settings, fast_path=fast_path)
        self.wires: list[Wire] = []

    @property
    def service(self) -> Service:
        """What its handlers share."""
        service: Service = cast(Any, self.runner)._api.service
        return service

    async def __aenter__(self) -> Self:
        await self.runner.setup()
        return self

    async def __aexit__(self, *_: object) -> None:
        for wire in self.wires:
            wire.close()
        await turns()
        await self.runner.cleanup()

    def connect(self, address: str = "127.0.0.1") -> Wire:
        """A new connection of a client with that address."""
        make = cast(Any, self.runner.server)
        wire = Wire(make(), address)
        self.wires.append(wire)
        return wire


async def turns(count: int = TURNS) -> None:
    """Lets the event loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


def request(method: str, target: str, *headers: str, body: bytes | None = None, version: str = "1.1") -> bytes:
    """A request, byte for byte; a length is added for a body unless a header says one."""
    lines = [f"{method} {target} HTTP/{version}", "Host: localhost", *headers]
    if body is not None and not any(header.lower().startswith("content-length") for header in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")
