"""The listening socket of the HTTP API: takes waiting connections many at a time, and leaves no client guessing.

The event loop's own servers take one connection in each of their turns (libuv does). A busy node's turns take some
milliseconds, so that a thousand clients that come at once, and with them whoever asks how the node is, would wait for
as long as the node is busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
import sys
from typing import Final

from aiohttp import web

from cluster import clock
from cluster.logging import get_logger

ANSWER_S: Final = 0.1  # for the first request of connections that were taken last
ACCEPTS_MAX: Final = 128
"""Connections taken in a row, in about 10 ms; then those that are there have their turn."""
PAUSE_S: Final = 0.2
"""Nobody is taken for so long after there was no file for another connection: those that are there go on."""
TELL_S: Final = 60.0
"""Between two lines of the log about that."""
FILES_KEPT: Final = 192
"""Of the open files that the system allows (`ulimit -n`), at most half: for the disk's threads, 16 each, and the peers.
A disk that cannot open its next segment would end the node."""


class Door:
    """Listening sockets and where their connections go. Made in the running event loop, which serves it at once."""

    def __init__(self, runner: web.ServerRunner, sockets: list[socket.socket]) -> None:
        assert runner.server is not None
        self.sockets = sockets
        self._factory = runner.server
        self._loop = asyncio.get_running_loop()
        self._entering: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._tell_at = 0.0  # again that nobody is taken
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._files_max = sys.maxsize if allowed == resource.RLIM_INFINITY else allowed - min(FILES_KEPT, allowed // 2)
        self._open()

    def _open(self) -> None:
        self._pause = None
        if not self._has_files():
            self._rest(self._few)
            return
        for listening in self.sockets:
            self._loop.add_reader(listening.fileno(), self._take, listening)

    def _has_files(self) -> bool:
        """Whether the next connection leaves enough to the node: a new file gets the lowest free number."""
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
                "connections_wait", reason=reason,
                mend="allow the process more open files (LimitNOFILE=, ulimit -n), or let clients keep fewer",
            )  # fmt: skip

    def _shut(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        for listening in self.sockets:
            self._loop.remove_reader(listening.fileno())

    def _take(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:  # it went away while it waited
                continue
            except OSError as error:
                self._rest(str(error))
                return
            number = connection.fileno()
            entering = self._loop.create_task(self._enter(connection))
            self._entering.add(entering)
            entering.add_done_callback(self._entering.discard)
            if number >= self._files_max:
                self._rest(self._few)
                return

    async def _enter(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # it is gone meanwhile
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(self._factory, connection)

    async def close(self) -> None:
        """Takes no new connection; those that the kernel has accepted already are served for a moment more.

        Whoever waits in the backlog of a socket when it closes is reset, with a request sent whose fate it cannot know.
        So the backlog is emptied right before; of a node that is leaving (`ApiRunner.leave`) the answer is that it
        takes nothing, and ends the connection.
        """
        self._shut()
        taken: list[socket.socket] = []
        for listening in self.sockets:
            with contextlib.suppress(OSError):  # BlockingIOError: nobody waits
                while True:
                    taken.append(listening.accept()[0])
            listening.close()
        await asyncio.gather(*self._entering, *[self._enter(connection) for connection in taken])
        await asyncio.sleep(ANSWER_S)


async def listen(runner: web.ServerRunner, host: str, port: int, backlog: int) -> Door:
    """Serves at every address of the host; `runner` has been set up. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            try:
                listening = socket.create_server((str(address[0]), int(address[1])), family=family, backlog=backlog)
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT and len(found) > 1:
                    continue  # a machine without IPv6 whose names have such addresses
                raise
            listening.setblocking(False)
            sockets.append(listening)
    except OSError:
        for listening in sockets:
            listening.close()
        raise
    return Door(runner, sockets)
