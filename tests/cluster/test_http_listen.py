"""The end of the listening socket."""

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop
from aiohttp import web

from cluster.http_listen import listen, stop_listening

CLIENTS = 20


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_who_waits_in_the_backlog_is_answered(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Connections that the kernel took and the node did not, with their requests sent, are answered, not reset; one
    that comes later is refused."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_backlog())


async def _backlog() -> None:
    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(text="answered")

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    server = await listen(runner, "127.0.0.1", 0, 100)
    address = server.sockets[0].getsockname()
    clients = [socket.create_connection(address, timeout=5) for _ in range(CLIENTS)]  # the loop does not run meanwhile
    try:
        for client in clients:
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        await stop_listening(server, runner)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=5)
        answers = [await asyncio.to_thread(_all_of, client) for client in clients]
    finally:
        for client in clients:
            client.close()
        await runner.cleanup()
    assert all(answer.endswith(b"answered") for answer in answers)


def _all_of(client: socket.socket) -> bytes:
    data = b""
    while more := client.recv(4_096):
        data += more
    return data
