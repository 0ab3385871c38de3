"""Makes open-loop load: a fixed rate over raw connections, each latency counted from the intended moment.

A closed loop stops asking while the server stalls, and so hides the stall (coordinated omission). Here request
number k is due at k / rate whatever happened before; if it leaves late because every connection is busy, the wait
counts.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from urllib.parse import urlsplit

import msgspec

from bench.instruments.figures import at

_DRAIN_S = 10.0


class Offered(msgspec.Struct, frozen=True):
    """What an open-loop run saw, latencies in milliseconds from the intended moment of each request."""

    offered_per_second: int
    connections: int
    sent: int
    answered: int
    bad: int
    per_second: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


class _Connection(asyncio.Protocol):
    """One keep-alive connection with at most one request on it; reads only the parts of the answer that it needs."""

    def __init__(self, load: _Load) -> None:
        self._load = load
        self._buffer = b""
        self._due = 0.0
        self.transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def ask(self, due: float) -> None:
        """Send the request that was due at `due`."""
        assert self.transport is not None
        self._due = due
        self.transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        size = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or b"0")
        if len(body) < size:
            return
        self._buffer = body[size:]
        self._load.answered(self, self._due, head.split(b" ", 2)[1][:1] == b"2")

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set_result(None)
        self._load.lost(self)


class _Load:
    """The schedule: which request is due, which connections are free, what came back."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.latencies: list[float] = []
        self.bad = 0
        self._free: deque[_Connection] = deque()
        self._waiting: deque[float] = deque()

    def add(self, connection: _Connection) -> None:
        """A connection is ready."""
        self._free.append(connection)

    def due(self, moment: float) -> None:
        """The request intended for `moment`: send it, or queue it until a connection is free."""
        if self._free:
            self._free.popleft().ask(moment)
        else:
            self._waiting.append(moment)

    def answered(self, connection: _Connection, due: float, good: bool) -> None:
        """An answer is in; the connection takes the request that has waited longest."""
        self.latencies.append((time.perf_counter() - due) * 1e3)
        self.bad += not good
        if self._waiting:
            connection.ask(self._waiting.popleft())
        else:
            self._free.append(connection)

    def lost(self, connection: _Connection) -> None:
        """The server closed a connection: it takes no more requests."""
        if connection in self._free:
            self._free.remove(connection)


async def offer(
    url: str,
    *,
    rate: int,
    seconds: float,
    connections: int,
    body: bytes = b"",
) -> Offered:
    """Offer `rate` POSTs a second for `seconds` over `connections`; wait `_DRAIN_S` at most for the last answers.

    Raises ValueError for a URL without host and port, OSError where nothing listens.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or not parts.port:
        raise ValueError(f"{url!r} is no http://host:port/… to send requests to")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    request = (
        f"POST {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/octet-stream\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    load = _Load(request)
    loop = asyncio.get_running_loop()
    made: list[_Connection] = []
    for _ in range(connections):
        _, connection = await loop.create_connection(lambda: _Connection(load), parts.hostname, parts.port)
        made.append(connection)
        load.add(connection)
    start = time.perf_counter()
    total = int(rate * seconds)
    sent = 0
    while sent < total:
        reached = min(total, int((time.perf_counter() - start) * rate) + 1)
        while sent < reached:
            load.due(start + sent / rate)
            sent += 1
        await asyncio.sleep(0.001)
    until = time.perf_counter() + _DRAIN_S
    while len(load.latencies) < total and time.perf_counter() < until:
        await asyncio.sleep(0.005)
    spent = time.perf_counter() - start
    for connection in made:
        if connection.transport is not None:
            connection.transport.abort()
    await asyncio.gather(*(connection.closed for connection in made))
    times = sorted(load.latencies) or [float("inf")]
    p50, p99, p999 = (round(at(times, share), 3) for share in (0.5, 0.99, 0.999))
    answered = len(load.latencies)
    return Offered(
        offered_per_second=rate,
        connections=connections,
        sent=total,
        answered=answered,
        bad=load.bad,
        per_second=round(answered / spent, 1),
        p50_ms=p50,
        p99_ms=p99,
        p999_ms=p999,
        max_ms=times[-1],
    )
