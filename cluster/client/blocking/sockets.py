"""Implements kept-alive HTTP/1.1 connections of the blocking client, each used by one thread at a time."""

from __future__ import annotations

import select
import socket
import threading
from collections import defaultdict
from typing import Final

from raftlog.cluster.client.decisions import Failure
from raftlog.cluster.client.flow import LostAnswer, Response, unreached
from raftlog.cluster.client.http1 import REFUSED_MAYBE, BadResponse, ResponseParser
from raftlog.cluster.runtime import clock
from raftlog.cluster.security.tls import Credentials

_IDLE_S: Final = 10.0  # as in raftlog.cluster.client.aio.connection
_READ_BYTES: Final = 1 << 18
_BODY_BYTES_MAX: Final = 64 << 20


class NoHandshake(OSError):
    """The node accepted the connection, and TLS did not come about."""


class SyncConnection:
    """A connection to one node."""

    def __init__(self, url: str, timeout_s: float, credentials: Credentials | None) -> None:
        """Raises OSError, NoHandshake. `credentials`: for https URLs."""
        scheme, _, rest = url.partition("://")
        host, _, port = rest.rpartition(":")
        if scheme == "https" and credentials is None:
            raise OSError(f"{url} needs TLS, and this client was made without")
        self.url = url
        self.idle_since = 0.0
        self.parser = ResponseParser()
        self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if scheme == "https" and credentials is not None:
            try:
                self._socket = credentials.context("client").wrap_socket(self._socket, server_hostname=host.strip("[]"))
            except OSError as error:
                self._socket.close()
                raise NoHandshake(str(error)) from error
            except BaseException:
                self._socket.close()
                raise

    def exchange(self, data: bytes, timeout_s: float, *, stream: bool) -> tuple[Response, bytes]:
        """Sends a request. Returns the whole response; of an accepted stream the head, and the bytes after it.

        Raises OSError (TimeoutError), BadResponse.
        """
        end = clock.monotonic() + timeout_s
        self.parser = parser = ResponseParser()
        self._socket.settimeout(timeout_s)
        self._socket.sendall(data)
        body: list[bytes] = []
        size = 0
        while True:
            piece = self.read(end - clock.monotonic())
            body.append(piece)
            size += len(piece)
            if size > _BODY_BYTES_MAX:
                raise BadResponse(f"an answer of more than {_BODY_BYTES_MAX} bytes")
            if parser.head is None:
                continue
            if stream and parser.head.status == 200:
                return Response(parser.head, b""), b"".join(body)
            if parser.is_done:
                return Response(parser.head, b"".join(body)), b""

    def read(self, timeout_s: float) -> bytes:
        """More bytes of the body, perhaps none yet. Raises as `exchange`."""
        if timeout_s <= 0:
            raise TimeoutError
        self._socket.settimeout(timeout_s)
        data = self._socket.recv(_READ_BYTES)
        if data:
            return self.parser.feed(data)
        if self.parser.head is None and self.url.startswith("https://"):
            raise ConnectionAbortedError(REFUSED_MAYBE)
        self.parser.feed_eof()
        return b""

    def is_usable(self) -> bool:
        """Whether it can carry another request: the node has sent nothing since the last answer, and not closed it."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()


class SyncPool:
    """Idle connections of one client; any thread may take one."""

    def __init__(self, credentials: Credentials | None = None) -> None:
        """`credentials`: for https URLs."""
        self._credentials = credentials
        self._guard = threading.Lock()
        self._idle: defaultdict[str, list[SyncConnection]] = defaultdict(list)
        self._is_closed = False

    def send(self, url: str, data: bytes, timeout_s: float) -> Response | LostAnswer:
        """Sends a request and waits for its whole answer."""
        answer, connection, _ = self._exchange(url, data, timeout_s, stream=False)
        if connection is not None:
            with self._guard:
                if connection.parser.keeps_alive and not self._is_closed:
                    connection.idle_since = clock.monotonic()
                    self._idle[url].append(connection)
                else:
                    connection.close()
        return answer

    def open(
        self, url: str, data: bytes, timeout_s: float
    ) -> tuple[Response | LostAnswer, SyncConnection | None, bytes]:
        """Opens a stream. A returned connection is the caller's to close; the bytes are the first of the body."""
        answer, connection, body = self._exchange(url, data, timeout_s, stream=True)
        if connection is not None and not (isinstance(answer, Response) and answer.head.status == 200):
            connection.close()
            connection = None
        return answer, connection, body

    def close(self) -> None:
        """Ends all idle connections. One that carries a request ends with its answer."""
        with self._guard:
            self._is_closed = True
            for connections in self._idle.values():
                for connection in connections:
                    connection.close()
            self._idle.clear()

    def _exchange(
        self, url: str, data: bytes, timeout_s: float, *, stream: bool
    ) -> tuple[Response | LostAnswer, SyncConnection | None, bytes]:
        try:
            connection = self._take(url) or SyncConnection(url, timeout_s, self._credentials)
        except OSError as error:
            return unreached(error, timeout_s, is_accepted=isinstance(error, NoHandshake)), None, b""
        try:
            answer, body = connection.exchange(data, timeout_s, stream=stream)
        except TimeoutError:
            lost = LostAnswer(Failure.TIMED_OUT, f"no answer within {timeout_s:g} s")
        except OSError as error:
            lost = LostAnswer(Failure.BROKEN, f"the connection ended before the answer ({error})")
        except BadResponse as error:
            lost = LostAnswer(Failure.GARBLED if connection.parser.keeps_alive else Failure.BROKEN, str(error))
        except BaseException:  # interrupted: an unread answer must not meet the next request
            connection.close()
            raise
        else:
            return answer, connection, body
        connection.close()
        return lost, None, b""

    def _take(self, url: str) -> SyncConnection | None:
        fresh = clock.monotonic() - _IDLE_S
        with self._guard:
            idle = self._idle[url]
            while idle:
                connection = idle.pop()
                if connection.idle_since > fresh and connection.is_usable():
                    return connection
                connection.close()
        return None
