"""The listening socket: how connections are taken, and its end."""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp import web

from raftlog.cluster.runtime import door as listener
from raftlog.cluster.runtime.door import Door, Encryption, listen
from raftlog.cluster.security import authority
from raftlog.cluster.security.tls import TlsFiles, client_context, server_context
from tests.support import HANG_S, wait_until_async

CLIENTS = 20

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a coroutine on the loop of asyncio, and on that of uvloop."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner.run


def contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS of a node of this machine, and of a client that trusts it."""
    authority.make_authority(folder, "test")
    made = authority.make_node(folder, "a" * 32, 1, ["127.0.0.1"])
    files = TlsFiles(str(folder / "ca.pem"), str(made.certificate), str(made.key))
    return server_context(files), client_context(files, checks_host=False)


@asynccontextmanager
async def _door() -> AsyncIterator[Door]:
    """An open one, behind which every request is answered; the caller closes it."""

    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(text="answered")

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    assert runner.server is not None
    try:
        yield await listen(runner.server, "127.0.0.1", 0, 100)
    finally:
        await runner.cleanup()


def test_connections_in_the_backlog_are_answered(run: Run) -> None:
    """Connections that the kernel took and the node did not, with their requests sent, are answered, not reset; one
    that comes later is refused."""
    run(_backlog())


async def _backlog() -> None:
    async with _door() as door:
        address = door.sockets[0].getsockname()
        # the loop does not run meanwhile
        clients = [socket.create_connection(address, timeout=HANG_S) for _ in range(CLIENTS)]
        try:
            for client in clients:
                client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            await door.close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address, timeout=HANG_S)
            answers = [await asyncio.to_thread(_all_of, client) for client in clients]
        finally:
            for client in clients:
                client.close()
    assert all(answer.endswith(b"answered") for answer in answers)


def _all_of(client: socket.socket) -> bytes:
    data = b""
    while more := client.recv(4_096):
        data += more
    return data


def test_a_busy_loop_takes_many_connections_in_a_turn(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that connects while others wait is accepted within a few turns, however long a turn is. One turn accepts
    only a limited number.
    """
    monkeypatch.setattr(listener, "ACCEPTS_MAX", 8)
    run(_storm())


async def _storm() -> None:
    made: list[int] = []  # in each turn

    class Silent(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made[-1] += 1
            transport.close()

    async with _door() as door:
        door._factory = Silent
        clients = [socket.create_connection(door.sockets[0].getsockname(), timeout=HANG_S) for _ in range(CLIENTS)]
        while sum(made) < CLIENTS and len(made) < 100:
            made.append(0)
            await asyncio.sleep(0)
        for client in clients:
            client.close()
        await door.close()
    assert sum(made) == CLIENTS
    assert max(made) <= 8
    assert sum(1 for turn in made if turn) <= 4, made


def test_without_files_for_another_connection_those_that_are_there_go_on(
    run: Run,
) -> None:
    """The system has no file left: for a moment no client is accepted, and nothing is tried; then it goes on."""
    run(_no_files())


async def _no_files() -> None:
    async with _door() as door:
        poor = _Poor(door.sockets[0])
        door._shut()
        door.sockets = [poor]  # type: ignore[list-item]
        door._open()
        with socket.create_connection(door.sockets[0].getsockname(), timeout=HANG_S) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            for _ in range(20):
                await asyncio.sleep(0)
            assert poor.asked == 1
            assert door._pause is not None
            door._pause.cancel()
            door._open()  # as if the moment had passed
            got = await asyncio.to_thread(_all_of, client)
        await door.close()
    assert got.endswith(b"answered")


def test_clients_leave_the_node_the_files_that_it_needs(
    run: Run,
) -> None:
    """More clients connect than there may be files. Some are accepted, then none until some of those have gone; all in
    the end.
    """
    run(_many())


async def _many() -> None:
    made: list[asyncio.BaseTransport] = []

    class Kept(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(transport)

    async with _door() as door:

        async def moment_over() -> None:
            assert door._pause is not None
            door._pause.cancel()
            door._open()
            for _ in range(5):
                await asyncio.sleep(0)

        door._factory = Kept
        clients = [socket.create_connection(door.sockets[0].getsockname(), timeout=HANG_S) for _ in range(CLIENTS)]
        lowest = os.dup(clients[0].fileno())
        os.close(lowest)
        door._files_max = lowest + 3
        taken = 0
        try:
            for _ in range(5):
                await asyncio.sleep(0)
            while True:
                assert taken < len(made) <= taken + 4
                if len(made) == CLIENTS:
                    break
                taken = len(made)
                await moment_over()
                assert len(made) == taken, "those are still there"
                for transport in made:
                    transport.close()
                await asyncio.sleep(0)
                await moment_over()
        finally:
            for client in clients:
                client.close()
            for transport in made:
                transport.close()
            await door.close()


def test_a_handshake_that_does_not_end_is_given_up(run: Run, tmp_path: Path) -> None:
    """A client that sends nothing, and one that sends half of a hello: both connections end after the time allowed, and
    each is reported once."""
    context, _ = contexts(tmp_path)
    reports: list[tuple[str, str]] = []
    tls = Encryption(lambda: context, 0.1, 8, 8, lambda *told: reports.append(told))

    async def story() -> None:
        door = await listen(asyncio.Protocol, "127.0.0.1", 0, 100, tls=tls, linger_s=0)
        try:
            address = door.sockets[0].getsockname()
            for first in (b"", b"\x16\x03\x01\x02\x00"):
                client = socket.create_connection(address, timeout=HANG_S)
                try:
                    client.sendall(first)
                    assert await asyncio.to_thread(_all_of, client) == b""
                finally:
                    client.close()
            await wait_until_async(lambda: len(reports) == 2, what="two reports")
        finally:
            await door.close()

    run(story())


def test_5000_silent_handshakes_of_one_address_keep_no_other_out(
    tmp_path: Path,
) -> None:
    """The oldest give way. One of another address waits for none of them, and none of its own is ended."""
    served, trusts = contexts(tmp_path)
    reports: list[tuple[str, str]] = []
    tls = Encryption(lambda: served, 30, 64, 32, lambda *told: reports.append(told))

    async def story() -> None:
        door = await listen(asyncio.Protocol, "127.0.0.1", 0, 4_096, tls=tls, linger_s=0)
        clients: list[socket.socket] = []
        try:
            address = door.sockets[0].getsockname()
            for _ in range(50):
                clients += [socket.create_connection(address, timeout=HANG_S) for _ in range(100)]
                await asyncio.sleep(0)
            await wait_until_async(lambda: len(reports) >= 5_000 - 32, what="the end of the oldest ones")
            assert len(door._entering) <= 32
            assert "or 32 with its address" in reports[0][1]
            transport, _ = await asyncio.get_running_loop().create_connection(
                asyncio.Protocol, *address, ssl=trusts, local_addr=("127.0.0.2", 0)
            )
            transport.close()
        finally:
            for client in clients:
                client.close()
            await door.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())


def test_handshakes_that_have_ended_count_no_more_for_their_address(run: Run, tmp_path: Path) -> None:
    """More clients than an address may have at once come one after the other: none is sent away."""
    served, trusts = contexts(tmp_path)
    reports: list[tuple[str, str]] = []
    tls = Encryption(lambda: served, HANG_S, 8, 2, lambda *told: reports.append(told))

    async def story() -> None:
        door = await listen(asyncio.Protocol, "127.0.0.1", 0, 100, tls=tls, linger_s=0)
        try:
            address = door.sockets[0].getsockname()
            for _ in range(5):
                _, writer = await asyncio.open_connection(*address, ssl=trusts)
                writer.close()
                await wait_until_async(lambda: not door._entering, what="the end of the handshake")
            assert (reports, dict(door._addresses)) == ([], {})
        finally:
            await door.close()

    run(story())


def test_a_port_may_take_both_tls_and_plain_bytes(run: Run, tmp_path: Path) -> None:
    """The first bytes decide, however they are cut. A silent connection ends in the time of a handshake."""
    served, trusts = contexts(tmp_path)
    reports: list[tuple[str, str]] = []
    tls = Encryption(lambda: served, 0.3, 8, 8, lambda *told: reports.append(told), takes_plain=True)

    class Echo(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            has_tls = self.transport.get_extra_info("ssl_object") is not None
            self.transport.write(b"tls" if has_tls else b"plain " + data)  # type: ignore[attr-defined]
            self.transport.close()

    async def story() -> None:
        door = await listen(Echo, "127.0.0.1", 0, 100, tls=tls, linger_s=0)
        try:
            address = door.sockets[0].getsockname()
            reader, writer = await asyncio.open_connection(*address, ssl=trusts)
            writer.write(b"GET")
            assert await reader.read() == b"tls"
            writer.close()
            for pieces in ((b"G", b"ET"), (b"\x16\x03\x00\x00",), (b"\x16", b"\x02"), (b"\x16", b"\x03", b"\x00")):
                reader, writer = await asyncio.open_connection(*address)
                for piece in pieces:
                    writer.write(piece)
                    await asyncio.sleep(0)
                assert (await reader.read()).startswith(b"plain " + pieces[0])
                writer.close()
            client = socket.create_connection(address, timeout=HANG_S)
            assert await asyncio.to_thread(_all_of, client) == b""
            client.close()
            assert len(reports) == 1
        finally:
            await door.close()

    run(story())


class _Poor:
    """A listening socket of a process that has no file for a connection, the first time."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self.asked = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._listening, name)

    def accept(self) -> tuple[socket.socket, object]:
        self.asked += 1
        if self.asked == 1:
            raise OSError(errno.EMFILE, "no file is left")
        return self._listening.accept()
