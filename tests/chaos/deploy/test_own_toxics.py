"""The toxics of chaos/toxics on the real server: what a connection of our own sees of whole frames and of bytes."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from itertools import pairwise

import pytest

from raftlog.chaos.deploy import toxiproxy_server
from raftlog.chaos.deploy.processes import Processes
from raftlog.chaos.deploy.toxiproxy import Toxiproxy
from raftlog.raft.codec.checks import Corrupt
from raftlog.raft.codec.frame import FRAME_READ, FrameDecoder, encode_frame
from tests.support import free_port, wait_until

pytestmark = [pytest.mark.serial, pytest.mark.toxiproxy]

FRAMES = 200


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toxiproxy]:
    """The server with our toxics; skips without it."""
    try:
        own = toxiproxy_server.own_server_path()
    except toxiproxy_server.ToxiproxyNotFoundError as missing:
        pytest.skip(f"no toxics of our own: {missing}")
    assert toxiproxy_server.server_path() == own
    with Processes() as processes, Toxiproxy(processes, free_port(), tmp_path_factory.mktemp("own")) as server:
        yield server


class Wire:
    """Two ends of a connection through a proxy of its own."""

    def __init__(self, proxies: Toxiproxy, name: str) -> None:
        self.proxies = proxies
        self.name = name
        with socket.create_server(("127.0.0.1", free_port())) as listener:
            listen = f"127.0.0.1:{free_port()}"
            proxies.add_proxy(name, listen=listen, upstream=f"127.0.0.1:{listener.getsockname()[1]}")
            host, port = listen.split(":")
            self.sender = socket.create_connection((host, int(port)), timeout=10)
            self.receiver, _ = listener.accept()
        self.receiver.settimeout(10)

    def poison(self, kind: str, **attributes: int) -> None:
        """Places a toxic named t, upstream."""
        self.proxies.add_toxic(self.name, "t", kind, "upstream", {"seed": 5, **attributes})

    def count(self, name: str) -> int:
        """The toxic's own count."""
        return int(self.proxies.attributes(self.name, "t")[name])

    def received(self) -> bytes:
        """Everything that arrives, once the sender has ended."""
        self.sender.shutdown(socket.SHUT_WR)
        parts = []
        while part := self.receiver.recv(1 << 16):
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()


@pytest.fixture
def wire(proxies: Toxiproxy, request: pytest.FixtureRequest) -> Iterator[Wire]:
    wire = Wire(proxies, re.sub(r"\W", "-", request.node.name))
    yield wire
    wire.close()


def _frame(number: int) -> bytes:
    return encode_frame(FRAME_READ, [number], bytes(number % 50))


def _numbers(data: bytes) -> list[int]:
    """The numbers of the frames; every frame has to be whole and its CRC right."""
    decoder = FrameDecoder()
    return [int(str(frame.header[0])) for frame in decoder.feed(data)]


def test_frames_come_twice(wire: Wire) -> None:
    """Whole frames come again, some at once and some behind later ones; none is lost, and the count is theirs."""
    wire.poison("duplicate", units=1, permille=300, distance=5, wait_ms=10_000)
    wire.sender.sendall(b"".join(_frame(number) for number in range(FRAMES)))
    numbers = _numbers(wire.received())
    assert set(numbers) == set(range(FRAMES))
    assert len(numbers) - FRAMES == wire.count("done") > 20
    assert wire.count("seen") == FRAMES
    assert any(later < earlier - 1 for earlier, later in pairwise(numbers))


def test_frames_overtake_each_other(wire: Wire) -> None:
    """Every frame comes once, not in order; the server counts the frames that overtook a held one."""
    wire.poison("reorder", units=1, permille=200, distance=4, wait_ms=10_000)
    wire.sender.sendall(b"".join(_frame(number) for number in range(FRAMES)))
    numbers = _numbers(wire.received())
    assert sorted(numbers) == list(range(FRAMES)) != numbers
    assert wire.count("overtaken") > 20


def test_the_bits_toxic_flips_bits(wire: Wire) -> None:
    """One bit of a frame is turned for each that is counted, and the CRC of raftlog's codec sees the first of them."""
    sent = b"".join(_frame(number) for number in range(FRAMES))
    wire.poison("corrupt", units=1, permille=100)
    wire.sender.sendall(sent)
    data = wire.received()
    assert len(data) == len(sent)
    turned = sum((one ^ other).bit_count() for one, other in zip(data, sent, strict=True))
    assert turned == wire.count("done") > 5
    with pytest.raises(Corrupt):
        FrameDecoder().feed(data)


def test_first_bytes_are_spared(wire: Wire) -> None:
    """Of each connection the given number of bytes passes untouched."""
    wire.poison("corrupt", units=0, permille=1_000, after=10)
    wire.sender.sendall(bytes(10))
    assert wire.receiver.recv(10) == bytes(10)
    wire.sender.sendall(bytes(10))
    assert wire.receiver.recv(10) != bytes(10)


def test_first_piece_is_always_met(wire: Wire) -> None:
    """However rarely a toxic strikes, a caller that waits for its count waits only for something to pass."""
    wire.poison("duplicate", units=1, permille=0, distance=0, wait_ms=0)
    wire.sender.sendall(_frame(1) + _frame(2) + _frame(3))
    assert _numbers(wire.received()) == [1, 1, 2, 3]


def test_frame_that_is_not_whole_waits(wire: Wire) -> None:
    """A toxic that comes in the middle of a frame lets it pass; one taken away gives back what it kept, in order."""
    first, second, third = (_frame(number) for number in (1, 2, 3))
    wire.sender.sendall(first[:7])
    assert wire.receiver.recv(7) == first[:7]
    wire.poison("duplicate", units=1, permille=1_000, distance=0, wait_ms=0)
    wire.sender.sendall(first[7:])
    assert wire.receiver.recv(100) == first[7:]
    wire.sender.sendall(second + third[:5])
    got = b""
    while len(got) < 2 * len(second):
        got += wire.receiver.recv(100)
    assert got == second + second
    wire.proxies.remove_toxic(wire.name, "t")
    wire.sender.sendall(third[5:])
    assert wire.received() == third


def test_held_frame_goes_out_in_time(wire: Wire) -> None:
    """A frame that nothing overtakes is not kept for ever."""
    wire.poison("reorder", units=1, permille=1_000, distance=3, wait_ms=20)
    wire.sender.sendall(_frame(1))
    wait_until(lambda: wire.count("done") == 1)
    assert wire.receiver.recv(100) == _frame(1)


def test_only_request_lines_are_changed(wire: Wire) -> None:
    """With clients only the first byte of a request is touched, and never a body."""
    wire.poison("corrupt", units=2, permille=1_000)
    wire.sender.sendall(b"a value that somebody wrote")
    assert wire.receiver.recv(100) == b"a value that somebody wrote"
    wire.sender.sendall(b"PUT /v1/kv/a HTTP/1.1\r\n")
    assert wire.receiver.recv(100) == b"\xd0UT /v1/kv/a HTTP/1.1\r\n"
    assert (wire.count("seen"), wire.count("done")) == (1, 1)


def test_slices_tear_frames(wire: Wire) -> None:
    """Behind the stock slicer pieces of bytes overtake each other: no byte is lost, and the frames are broken."""
    sent = b"".join(_frame(number) for number in range(FRAMES))
    wire.proxies.add_toxic(wire.name, "s", "slicer", "upstream", {"average_size": 100, "size_variation": 50})
    wire.poison("reorder", units=0, permille=200, distance=3, wait_ms=10_000)
    wire.sender.sendall(sent)
    data = wire.received()
    assert sorted(data) == sorted(sent)
    assert data != sent
    try:
        whole = len(FrameDecoder().feed(data))
    except Corrupt:
        whole = 0
    assert whole < FRAMES  # refused, or it waits for the end of a frame whose length is another one's bytes
