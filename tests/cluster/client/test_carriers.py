"""What each client makes of an answer in pieces of any size: both the same, and what its bytes say as a whole."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import pytest

from raftlog.cluster.client.aio import connection as aio
from raftlog.cluster.client.blocking import sockets
from raftlog.cluster.client.flow import LostAnswer, Response
from raftlog.cluster.client.http1 import BadResponse, ResponseParser
from tests.support import HANG_S

LIMIT = 40
BODIES = (b"", b"x", b"y" * LIMIT, b"z" * (LIMIT + 1), b"w" * 3 * LIMIT)
STATUSES = (b"200 OK", b"400 Bad Request", b"503 Service Unavailable")
PIECES = (1, 7, LIMIT)


def answers() -> list[bytes]:
    """Whole answers, those that the end of the connection ends, those that break off, and other bytes."""
    found = [b"", b"nonsense\r\n\r\n"]
    for status in STATUSES:
        for body in BODIES:
            head = b"HTTP/1.1 " + status + b"\r\n"
            found.append(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            found.append(head + b"\r\n" + body)
            found.append(head + b"Content-Length: %d\r\n\r\n" % (len(body) + 1) + body)
            parts = [body[at : at + 9] for at in range(0, len(body), 9)]
            chunks = [b"%x\r\n" % len(part) + part + b"\r\n" for part in parts]
            found.append(head + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunks) + b"0\r\n\r\n")
    return found


Told = tuple[int, bytes] | None
ANSWERS = answers()


def meant(answer: bytes, *, stream: bool) -> Told:
    """Status and body of the answer as a whole; None: it is lost. A stream has no limit, and its status comes first."""
    parser = ResponseParser()
    try:
        body = parser.feed(answer)
        if parser.head is not None and stream and parser.head.status == 200:
            return 200, body
        if len(body) > LIMIT:
            return None
        if not parser.is_done:
            parser.feed_eof()
    except BadResponse:
        return None
    assert parser.head is not None
    return parser.head.status, body


class Wire(asyncio.Transport):
    """Takes requests."""

    def write(self, data: Any) -> None:
        """Drops the request."""

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        """Its peer ends the connection anyway."""

    close = pause_reading = resume_reading = abort


async def by_asyncio(answer: bytes, piece: int, *, stream: bool) -> Told:
    """What the asyncio client gets."""
    made = aio.Connection()
    made.connection_made(Wire())
    waiter = made.send(b"GET", stream=stream)
    for at in range(0, len(answer), piece):
        if made._ended is None and made._parser is not None:
            made.data_received(answer[at : at + piece])
    made.connection_lost(None)
    found = await waiter
    if isinstance(found, LostAnswer):
        return None
    body = found.body
    if stream and found.head.status == 200:
        while isinstance(block := await made.block(1.0), bytes):
            body += block
    return found.head.status, body


def by_sockets(answer: bytes, *, stream: bool) -> Told:
    """What the blocking client gets."""
    near, far = socket.socketpair()
    with far, pytest.MonkeyPatch.context() as patch:
        far.sendall(answer)
        far.shutdown(socket.SHUT_WR)
        patch.setattr(socket, "create_connection", lambda *_: near)
        patch.setattr(near.__class__, "setsockopt", lambda *_: None)  # not of TCP
        found, connection, body = sockets.SyncPool()._exchange("http://127.0.0.1:1", b"GET", HANG_S, stream=stream)
        if isinstance(found, LostAnswer):
            return None
        assert connection is not None
        if stream and found.head.status == 200:
            with suppress(BadResponse):
                while not connection.parser.is_done:
                    body += connection.read(HANG_S)
        connection.close()
    return found.head.status, found.body + body


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_both_clients_make_the_same_of_an_answer(
    piece: int, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status and whole body, or none. Only a stream has no limit, and gives what came before it broke."""
    monkeypatch.setattr(aio, "_BODY_BYTES_MAX", LIMIT)
    monkeypatch.setattr(sockets, "_BODY_BYTES_MAX", LIMIT)
    monkeypatch.setattr(sockets, "_READ_BYTES", piece)
    for answer in ANSWERS:
        found = await by_asyncio(answer, piece, stream=stream)
        assert found == by_sockets(answer, stream=stream), answer
        assert found == meant(answer, stream=stream), answer


async def test_a_kept_connection_takes_each_answer_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its body and its limit are its own, whatever the answers before it were."""
    monkeypatch.setattr(aio, "_BODY_BYTES_MAX", LIMIT)
    made = aio.Connection()
    made.connection_made(Wire())
    for body in (*BODIES[:3], *BODIES[:3]):
        waiter = made.send(b"GET", stream=False)
        made.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        found = await waiter
        assert isinstance(found, Response)
        assert found.body == body
