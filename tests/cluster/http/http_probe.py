"""Speaks HTTP to a server byte for byte: nothing is normalised, repeated or hidden on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from raftlog.cluster.api.errors import Problem
from raftlog.cluster.client.http1 import ResponseParser, encode_request
from raftlog.raft.codec.index_rows import IDX_ROW
from raftlog.raft.codec.raw import RAW_SIZE, RawHeader, decode_raw_header
from tests.support import hang_s


class RawPart(NamedTuple):
    """One chunk of a raw stream."""

    header: RawHeader
    rows: bytes
    segment: bytes
    ledger: bytes


def raw_parts(data: bytes) -> list[RawPart]:
    """The whole chunks at the begin of these bytes."""
    found, position = [], 0
    while position + RAW_SIZE <= len(data):
        header = decode_raw_header(data, position)
        ends = [position + RAW_SIZE]
        for size in (header.rows * IDX_ROW.size, header.segment_bytes, header.ledger_bytes):
            ends.append(ends[-1] + size)
        if ends[-1] > len(data):
            break
        found.append(RawPart(header, *(data[begin:end] for begin, end in pairwise(ends))))
        position = ends[-1]
    return found


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer; names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return msgspec.json.decode(self.body)

    def lines(self) -> list[Any]:
        """The body as NDJSON."""
        return [msgspec.json.decode(line) for line in self.body.splitlines()]

    def problem(self) -> Problem:
        """The body as a problem, which says the same as the head."""
        assert self.headers["content-type"] == "application/problem+json", self
        problem = msgspec.json.decode(self.body, type=Problem)
        assert problem.status == self.status
        assert int(self.headers["raftlog-index"]) == problem.index
        assert self.headers["raftlog-request-id"] == problem.request_id
        return problem


async def ask(
    port: int,
    method: str,
    target: str,
    body: bytes | None = None,
    headers: dict[str, str] | Sequence[tuple[str, str]] = (),
    host: str = "127.0.0.1",
) -> Reply:
    """One request on a connection of its own."""
    pairs = list(headers.items()) if isinstance(headers, dict) else list(headers)
    return await exchange(port, encode_request(method, target, host, pairs, body), is_head=method == "HEAD")


async def open_session(port: int, body: bytes | None = None) -> int:
    """The id of a new session."""
    reply = await ask(port, "POST", "/v1/sessions", body)
    assert reply.status == 200, reply
    return int(reply.json()["session"])


def of_session(session: int, sequence: int, settled: int | None = None) -> dict[str, str]:
    """The headers of one request of a session."""
    named = {"Raftlog-Session": str(session), "Raftlog-Sequence": str(sequence)}
    return named if settled is None else {**named, "Raftlog-Settled": str(settled)}


async def exchange(port: int, data: bytes, *, is_head: bool = False) -> Reply:
    """The first answer to those bytes."""
    async with asyncio.timeout(hang_s()), open_stream(port, data) as stream:
        return await stream.reply(is_head=is_head)


class Stream:
    """An answer being received."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.parser = ResponseParser()
        self.buffer = b""

    async def _more(self) -> bool:
        data = await self.reader.read(65536)
        if data:
            self.buffer += self.parser.feed(data)
        return bool(data)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers."""
        async with asyncio.timeout(hang_s()):
            while self.parser.head is None:
                assert await self._more(), "closed before the head"
        return self.parser.head.status, self.parser.head.headers

    async def message(self, separator: bytes = b"\n") -> bytes:
        """The next message up to the separator; b"" at the end."""
        async with asyncio.timeout(hang_s()):
            while separator not in self.buffer:
                if self.parser.is_done or not await self._more():
                    return b""
        message, _, self.buffer = self.buffer.partition(separator)
        return message

    async def json(self) -> Any:
        """The next line as JSON, None at the end."""
        line = await self.message()
        return msgspec.json.decode(line) if line else None

    async def raw(self) -> RawPart:
        """The next chunk of a raw stream."""
        while not (parts := raw_parts(self.buffer)):
            assert await self._more()
        self.buffer = self.buffer[RAW_SIZE + sum(map(len, parts[0][1:])) :]
        return parts[0]

    async def reply(self, *, is_head: bool = False) -> Reply:
        """Everything until the end."""
        status, headers = await self.head()
        while not is_head and not self.parser.is_done and await self._more():
            pass
        return Reply(status, headers, self.buffer)


@asynccontextmanager
async def open_stream(port: int, data: bytes) -> AsyncIterator[Stream]:
    """A connection on which `data` was sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        yield Stream(reader, writer)
    finally:
        writer.close()


def get(target: str, *headers: tuple[str, str]) -> bytes:
    """A GET as bytes."""
    return encode_request("GET", target, "127.0.0.1", headers, None)
