"""Listens on a TCP port: accepts many waiting connections at a time, with TLS or without, and leaves none unanswered.

The process opens one for the HTTP API (`raftlog.cluster.node.process`), the transport one for peers. The event loop's
own servers accept one connection in each turn (libuv does). The turns of a busy node take some milliseconds. So a
thousand clients that come at once, and status requests among them, would wait for as long as the node is busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.logging import get_logger

ANSWER_S: Final = 0.1  # seconds for the first request of the last connections
ENTER_S: Final = 0.5  # seconds that `close` waits for handshakes under way
ACCEPTS_MAX: Final = 128
"""Most connections accepted in a row, in about 10 ms; then open connections have their turn."""
PAUSE_S: Final = 0.2
"""Seconds without accepting after the system had no file for another connection; open connections go on."""
TELL_S: Final = 60.0
"""Seconds between two lines of the log about that."""
FILES_KEPT: Final = 192
"""Files left to the node itself, at most half of those that the system allows (`ulimit -n`): 16 for each thread of the
disk, the peers and probes. A disk that cannot open its next segment would end the node."""
TLS_RECORD: Final = b"\x16\x03"
"""The first bytes of a TLS handshake; the third is the minor version, 1 to 4 (RFC 8446, section 5.1). No HTTP request
begins so. A peer's hello begins with its length in four bytes, of which the third is 0."""
PART_S: Final = 0.01
"""Seconds until another look at a connection of which only one or two bytes have come."""


@dataclass(frozen=True, slots=True)
class Encryption:
    """How the connections of one port are encrypted."""

    context: Callable[[], ssl.SSLContext]  # of the next connection
    handshake_s: float  # the longest time of a handshake
    handshakes_max: int  # under way,
    address_max: int  # and with one address
    refused: Callable[[str, str], None]  # gets the address and the reason of a failed one
    takes_plain: bool = False  # a connection that does not begin with TLS is served too


class Door:
    """Listening sockets and their server. Made in the running event loop, which serves them at once."""

    def __init__(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        sockets: list[socket.socket],
        *,
        tls: Encryption | None = None,
        files_kept: int = FILES_KEPT,
        linger_s: float = ANSWER_S,
    ) -> None:
        """`files_kept`: open files that these connections leave to the node. `linger_s`: how long `close` serves the
        last connections."""
        self.sockets = sockets
        self._factory = factory
        self._tls = tls
        self._linger_s = linger_s
        self._loop = asyncio.get_running_loop()
        self._entering: dict[asyncio.Task[None], str] = {}  # with the client's address; the oldest first
        self._addresses: Counter[str] = Counter()  # of `_entering`
        self._pause: asyncio.TimerHandle | None = None
        self._tell_at = 0.0  # time of the next line about not accepting
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._files_max = sys.maxsize if allowed == resource.RLIM_INFINITY else allowed - min(files_kept, allowed // 2)
        self._open()

    def _open(self) -> None:
        self._pause = None
        if not self._has_files():
            self._rest(self._few)
            return
        for listening in self.sockets:
            self._loop.add_reader(listening.fileno(), self._take, listening)

    def _has_files(self) -> bool:
        """Whether the next connection leaves enough files to the node: a new file gets the lowest free number."""
        try:
            number = os.dup(self.sockets[0].fileno())
        except OSError:
            return False
        os.close(number)
        return number < self._files_max

    @property
    def _few(self) -> str:
        return f"clients have all the open files that they may have ({self._files_max})"

    def _rest(self, reason: str) -> None:
        self._shut()
        self._pause = self._loop.call_later(PAUSE_S, self._open)
        now = clock.monotonic()
        if now >= self._tell_at:
            self._tell_at = now + TELL_S
            get_logger().warning(
                "connections_wait",
                reason=reason,
                mend="allow the process more open files (LimitNOFILE=, ulimit -n), or let clients keep fewer",
            )

    def _shut(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        for listening in self.sockets:
            self._loop.remove_reader(listening.fileno())

    def _take(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                connection, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:  # the client went away while it waited
                continue
            except OSError as error:
                self._rest(str(error))
                return
            number = connection.fileno()
            self._let_in(connection, str(address[0]))
            if number >= self._files_max:
                self._rest(self._few)
                return

    def _let_in(self, connection: socket.socket, address: str) -> None:
        tls = self._tls
        if tls is not None:
            # The oldest handshake gives way, so that silent clients block no other.
            if self._addresses[address] >= tls.address_max:
                self._give_way(next(task for task, other in self._entering.items() if other == address))
            elif len(self._entering) >= tls.handshakes_max:
                self._give_way(next(iter(self._entering)))
        entering = self._loop.create_task(self._enter(connection))
        self._entering[entering] = address
        self._addresses[address] += 1
        entering.add_done_callback(partial(self._entered, connection))

    def _give_way(self, entering: asyncio.Task[None]) -> None:
        self._count_out(entering)  # at once: its end takes a turn of the event loop, and the next one must see it gone
        entering.cancel()

    def _count_out(self, entering: asyncio.Task[None]) -> None:
        address = self._entering.pop(entering, None)
        if address is not None:
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]

    def _entered(self, connection: socket.socket, entering: asyncio.Task[None]) -> None:
        self._count_out(entering)
        if entering.cancelled():
            where = _where(connection)
            connection.close()
            if (tls := self._tls) is not None:
                most = f"{tls.handshakes_max} handshakes were under way, or {tls.address_max} with its address"
                tls.refused(where, f"more than {most}")

    async def _enter(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        tls, where = self._tls, _where(connection)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is None or (tls.takes_plain and not await self._speaks_tls(connection, tls.handshake_s)):
                await self._loop.connect_accepted_socket(self._factory, connection)
                return
            await self._loop.connect_accepted_socket(
                self._factory, connection, ssl=tls.context(), ssl_handshake_timeout=tls.handshake_s
            )
        except OSError as error:  # the client has gone meanwhile, or its handshake failed
            connection.close()
            if tls is not None:
                tls.refused(where, _handshake_reason(error))

    async def _speaks_tls(self, connection: socket.socket, timeout_s: float) -> bool:
        """Whether the first bytes of the other side begin a TLS handshake; they stay unread. Raises OSError."""
        async with asyncio.timeout(timeout_s):
            await self._readable(connection)
            while len(begun := connection.recv(3, socket.MSG_PEEK)) < 3 and begun and TLS_RECORD.startswith(begun[:2]):
                await asyncio.sleep(PART_S)
        return begun[:2] == TLS_RECORD and begun[2:3] > b"\0"

    async def _readable(self, connection: socket.socket) -> None:
        came: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(connection.fileno(), _settle, came)
        try:
            await came
        finally:
            self._loop.remove_reader(connection.fileno())

    async def close(self) -> None:
        """Accepts no new connection; serves those that the kernel has accepted already for a moment more.

        When a socket closes, the kernel resets the connections in its backlog, and the outcome of a request sent there
        is unknown to its client. So the backlog is emptied right before. A node that is leaving (`ApiRunner.leave`)
        refuses these requests, and closes their connections.
        """
        self._shut()
        taken: list[tuple[socket.socket, Any]] = []
        for listening in self.sockets:
            with contextlib.suppress(OSError):  # BlockingIOError: no connection waits
                while True:
                    taken.append(listening.accept())
            listening.close()
        for connection, address in taken:
            self._let_in(connection, str(address[0]))
        if self._entering:
            await asyncio.wait(list(self._entering), timeout=ENTER_S)
        for unfinished in list(self._entering):
            unfinished.cancel()
        await asyncio.sleep(self._linger_s)


def _where(connection: socket.socket) -> str:
    try:
        host, port, *_ = connection.getpeername()
    except OSError:  # the client has gone
        return "?"
    return f"{host}:{port}"


def _settle(came: asyncio.Future[None]) -> None:
    if not came.done():
        came.set_result(None)


def _handshake_reason(error: OSError) -> str:
    """Why a handshake failed, in the words of OpenSSL where it said any."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no TLS").lower().replace("_", " ")
    return error.strerror or str(error) or type(error).__name__


async def listen(
    factory: Callable[[], asyncio.BaseProtocol],
    host: str,
    port: int,
    backlog: int,
    *,
    tls: Encryption | None = None,
    files_kept: int = FILES_KEPT,
    linger_s: float = ANSWER_S,
) -> Door:
    """Serves at every address of the host. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            try:
                listening = socket.create_server((str(address[0]), int(address[1])), family=family, backlog=backlog)
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT and len(found) > 1:
                    continue  # the machine has no IPv6, but the name has such an address
                raise
            listening.setblocking(False)
            sockets.append(listening)
    except OSError:
        for listening in sockets:
            listening.close()
        raise
    return Door(factory, sockets, tls=tls, files_kept=files_kept, linger_s=linger_s)
