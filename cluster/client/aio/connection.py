"""Implements one kept-alive HTTP/1.1 connection of the asyncio client, and the pool that holds them.

The carrier uses the pool. A connection carries one request at a time, so requests in flight use several connections.
Reading a stream is bounded: while the reader is slow, the socket is not read, and the node closes a slow reader.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict, deque
from typing import Final, cast

from raftlog.cluster.client.decisions import Failure
from raftlog.cluster.client.flow import LostAnswer, Response, unreached
from raftlog.cluster.client.http1 import REFUSED_MAYBE, BadResponse, ResponseHead, ResponseParser
from raftlog.cluster.runtime import clock
from raftlog.cluster.security.tls import Credentials

_IDLE_S: Final = 10.0
"""Seconds after which an unused connection is not used again: the node (75 s) or a proxy may close it just then."""

_STREAM_BYTES_MAX: Final = 1 << 20
_BODY_BYTES_MAX: Final = 64 << 20


class Connection(asyncio.Protocol):
    """A connection to one node."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._is_encrypted = False
        self._transport: asyncio.Transport | None = None
        self._parser: ResponseParser | None = None
        self._waiter: asyncio.Future[Response | LostAnswer] | None = None
        self._body: list[bytes] = []
        self._size = 0
        self._is_stream = False
        self._blocks: deque[bytes] = deque()  # blocks of an open stream
        self._ended: LostAnswer | None = None  # why the stream or connection ended
        self._news: asyncio.Future[None] | None = None

    @property
    def is_usable(self) -> bool:
        """Whether it can carry another request."""
        return (
            self._ended is None
            and self._parser is None
            and self._transport is not None
            and not self._transport.is_closing()
        )

    def send(self, data: bytes, *, stream: bool) -> asyncio.Future[Response | LostAnswer]:
        """Sends a request. The future gets the whole response; of an accepted stream only the head."""
        assert self._transport is not None
        assert self._parser is None, "one request at a time"
        self._waiter = asyncio.get_running_loop().create_future()
        if not self.is_usable:  # a full node closes a new connection without reading from it
            self._waiter.set_result(
                LostAnswer(Failure.NOT_SENT, "the node closed the connection before the request was sent")
            )
            return self._waiter
        self._parser = ResponseParser()
        self._is_stream = stream
        self._body = []
        self._size = 0
        self._transport.write(data)
        return self._waiter

    async def block(self, timeout_s: float) -> bytes | LostAnswer | None:
        """The next bytes of the stream. None at its proper end; LostAnswer if it broke off or was silent too long."""
        while not self._blocks:
            if self._parser is None:
                return None
            if self._ended is not None:
                return self._ended
            self._news = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._news
            except TimeoutError:
                return LostAnswer(Failure.TIMED_OUT, f"a stream that said nothing for {timeout_s:g} s")
            finally:
                self._news = None
        block = self._blocks.popleft()
        self._size -= len(block)
        if self._transport is not None and self._size <= _STREAM_BYTES_MAX // 2:
            self._transport.resume_reading()
        return block

    async def encrypt(self, context: ssl.SSLContext, host: str) -> None:
        """Shakes hands before the first request. Raises OSError."""
        plain = self._transport
        assert plain is not None
        try:
            encrypted = await asyncio.get_running_loop().start_tls(plain, self, context, server_hostname=host)
        except BaseException:
            plain.abort()
            raise
        if encrypted is None:
            raise ConnectionAbortedError("closed by the node")
        self._transport, self._is_encrypted = encrypted, True

    def close(self) -> None:
        """Ends the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class has the same methods

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            self._end(LostAnswer(Failure.GARBLED, "bytes without a request"))
            return
        try:
            body = parser.feed(data)
        except BadResponse as error:
            self._end(LostAnswer(Failure.GARBLED, str(error)))
            return
        head = parser.head
        if head is None:
            return
        if self._is_stream and head.status == 200:
            self._settle(Response(head, b""))
            if body:
                self._push(body)
        elif body:
            self._body.append(body)
            self._size += len(body)
            if self._size > _BODY_BYTES_MAX:
                self._end(LostAnswer(Failure.GARBLED, f"an answer of more than {_BODY_BYTES_MAX} bytes"))
                return
        if parser.is_done:
            self._complete(head, parser)

    def eof_received(self) -> bool:
        return False  # closes the connection; connection_lost handles the rest

    def connection_lost(self, error: Exception | None) -> None:
        parser = self._parser
        if parser is not None:
            try:
                parser.feed_eof()
            except BadResponse:
                pass
            else:
                assert parser.head is not None
                self._complete(parser.head, parser)
        reason = error or (REFUSED_MAYBE if self._is_encrypted else "closed by the node")
        self._end(LostAnswer(Failure.BROKEN, f"the connection ended before the answer ({reason})"))

    def _complete(self, head: ResponseHead, parser: ResponseParser) -> None:
        self._parser = None
        if not parser.keeps_alive and self._transport is not None:
            self._transport.close()
        if not self._is_stream or head.status != 200:
            self._settle(Response(head, b"".join(self._body)))
        self._wake()

    def _push(self, data: bytes) -> None:
        self._blocks.append(data)
        self._size += len(data)
        if self._size > _STREAM_BYTES_MAX and self._transport is not None:
            self._transport.pause_reading()
        self._wake()

    def _settle(self, response: Response | LostAnswer) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(response)

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _end(self, lost: LostAnswer) -> None:
        if self._ended is None and self._parser is not None:
            self._settle(lost)
        if self._ended is None:
            self._ended = lost if self._parser is not None else LostAnswer(Failure.BROKEN, "closed")
        self.close()
        self._wake()


class Pool:
    """The connections to the nodes of one client. `raftlog.cluster.client.aio.line` bounds the requests under way."""

    def __init__(self, connections_max: int, credentials: Credentials | None = None) -> None:
        """Beyond `connections_max` a new connection takes the place of an idle one. `credentials`: for https URLs."""
        self._connections_max = connections_max
        self._making = 0  # connections that are being made, not in `_open` yet
        self._credentials = credentials
        self._idle: defaultdict[str, list[Connection]] = defaultdict(list)
        self._open: set[Connection] = set()
        self._is_closed = False

    async def send(self, url: str, data: bytes, timeout_s: float) -> Response | LostAnswer:
        """Sends a request and waits for its whole answer."""
        connection = await self._connection(url, timeout_s)
        if isinstance(connection, LostAnswer):
            return connection
        answer = await self._answer(connection, data, timeout_s, stream=False)
        self._put_back(url, connection)
        return answer

    async def open(self, url: str, data: bytes, timeout_s: float) -> tuple[Response | LostAnswer, Connection | None]:
        """Opens a stream. The connection belongs to the caller, which gives it to `release`."""
        connection = await self._connection(url, timeout_s)
        if isinstance(connection, LostAnswer):
            return connection, None
        answer = await self._answer(connection, data, timeout_s, stream=True)
        if isinstance(answer, Response) and answer.head.status == 200:
            return answer, connection
        self.release(connection)
        return answer, None

    def release(self, connection: Connection) -> None:
        """Ends a stream's connection."""
        self._open.discard(connection)
        connection.close()

    def close(self) -> None:
        """Ends all connections. The connection of a later request ends with its answer."""
        self._is_closed = True
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._idle.clear()

    async def _connection(self, url: str, timeout_s: float) -> Connection | LostAnswer:
        idle = self._idle[url]
        fresh = clock.monotonic() - _IDLE_S
        while idle:
            connection = idle.pop()  # the newest, so that the others may expire
            if connection.is_usable and connection.idle_since > fresh:
                return connection
            self.release(connection)
        scheme, _, rest = url.partition("://")
        host, _, port = rest.rpartition(":")
        context = None
        if scheme == "https":
            if self._credentials is None:
                return LostAnswer(Failure.NOT_SENT, f"{url} needs TLS, and this client was made without")
            context = self._credentials.context("client")
        loop = asyncio.get_running_loop()
        self._making += 1
        self._give_place()
        made: Connection | None = None
        try:
            async with asyncio.timeout(timeout_s):
                _, made = await loop.create_connection(Connection, host.strip("[]"), int(port))
                if context is not None:
                    await made.encrypt(context, host.strip("[]"))
        except OSError as error:  # also of a time that is over
            return unreached(error, timeout_s, is_accepted=made is not None)
        finally:
            self._making -= 1
        self._open.add(made)
        return made

    def _give_place(self) -> None:
        """Ends the connections that were idle longest while there are too many."""
        while len(self._open) + self._making > self._connections_max:
            lines = [line for line in self._idle.values() if line]
            if not lines:
                return
            self.release(min(lines, key=lambda line: line[0].idle_since).pop(0))

    async def _answer(
        self, connection: Connection, data: bytes, timeout_s: float, *, stream: bool
    ) -> Response | LostAnswer:
        try:
            async with asyncio.timeout(timeout_s):
                return await connection.send(data, stream=stream)
        except TimeoutError:
            self.release(connection)
            return LostAnswer(Failure.TIMED_OUT, f"no answer within {timeout_s:g} s")
        except BaseException:  # cancelled: an unread answer must not meet the next request
            self.release(connection)
            raise

    def _put_back(self, url: str, connection: Connection) -> None:
        if connection.is_usable and not self._is_closed:
            connection.idle_since = clock.monotonic()
            self._idle[url].append(connection)
        else:
            self.release(connection)
