"""The listening socket of the HTTP API, closed so that no client is left guessing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import Final

from aiohttp import web

ANSWER_S: Final = 0.1  # for the first request of connections that were taken last


async def listen(runner: web.ServerRunner, host: str, port: int, backlog: int) -> asyncio.Server:
    """Serves there; `runner` has been set up. Raises OSError."""
    assert runner.server is not None
    return await asyncio.get_running_loop().create_server(runner.server, host, port, backlog=backlog)


async def stop_listening(server: asyncio.Server, runner: web.ServerRunner) -> None:
    """Takes no new connection; those that the kernel has accepted already are served for a moment more.

    Whoever waits in the backlog of a socket when it closes is reset, with a request sent whose fate it cannot know. So
    the backlog is emptied right before; of a node that is leaving (`ApiRunner.leave`) the answer is that it takes
    nothing, and ends the connection.
    """
    loop = asyncio.get_running_loop()
    assert runner.server is not None
    taken: list[socket.socket] = []
    for listening in server.sockets:
        with socket.socket(fileno=os.dup(listening.fileno())) as door:
            door.setblocking(False)
            with contextlib.suppress(OSError):  # BlockingIOError: nobody waits
                while True:
                    taken.append(door.accept()[0])
    server.close()
    for connection in taken:
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # gone meanwhile
            await loop.connect_accepted_socket(runner.server, connection)
    await asyncio.sleep(ANSWER_S)
