"""The raw clients count exactly what arrived, however the bytes are cut."""

from __future__ import annotations

import socket
import struct
from collections import Counter

import pytest

from bench.loads import h2load, raw, wrk
from bench.loads.followers import Follower, Writer
from raftlog.raft.codec.raw import RawHeader, encode_raw_header

MARKED = raw.Answers(b'"seq":', b'"error":')
FRAMED = raw.Frames(16)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 64, 4096])
def test_marked_answers_are_counted_once_however_they_are_cut(size: int) -> None:
    """Also one that is split, and a failure beside successes."""
    data = (
        b'MSG a 1 9\r\n{"seq":1}\r\nMSG a 1 9\r\n{"seq":2}\r\nMSG a 1 9\r\n{"error":{}}\r\nMSG a 1 9\r\n{"seq":3}\r\n'
    )
    tally = raw.Tally(MARKED)
    assert sum(tally.feed(data[at : at + size]) for at in range(0, len(data), size)) == 4
    assert tally.bad == 1


@pytest.mark.parametrize("size", [1, 3, 4, 5, 19, 20, 21, 1024])
def test_framed_answers_are_counted_once_however_they_are_cut(size: int) -> None:
    """Lengths, headers and errors may be split anywhere."""
    good = struct.pack(">Iiqi", 16, 1, 2, 0)
    bad = struct.pack(">Iiqi4s", 20, 1, 2, -101, b"more")
    data = good + bad + good
    tally = raw.Tally(FRAMED)
    assert sum(tally.feed(data[at : at + size]) for at in range(0, len(data), size)) == 3
    assert tally.bad == 1


def _stream(*spans: tuple[int, int]) -> bytes:
    """A raw stream over HTTP whose chunks hold the records of these spans."""
    out = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    for first, after in spans:
        value = b"@due=%017d" % 1_000_000
        body = encode_raw_header(RawHeader(after - first, len(value), 0, 0, 0, first, after, 1, after, after)) + value
        out += b"%x\r\n%s\r\n" % (len(body), body)
    return out


@pytest.mark.parametrize("size", [1, 7, 50, 100, 4096])
def test_a_follower_counts_every_record_however_its_bytes_are_cut(size: int) -> None:
    """Records 5 to 11, all a second late; what lies before the start is not counted again."""
    late: Counter[int] = Counter()
    with socket.socket() as sock:
        follower = Follower(sock, 5)
        data = _stream((4, 8), (8, 9), (9, 12))
        for at in range(0, len(data), size):
            follower.received(data[at : at + size], 2.0, late)
    assert (follower.next, late) == (12, Counter({1_000: 7}))


def test_a_follower_does_not_pass_over_a_gap() -> None:
    """A missing record is a failure of the run, not a smaller number."""
    with socket.socket() as sock, pytest.raises(RuntimeError, match="goes on at 9, not at 8"):
        Follower(sock, 5).received(_stream((5, 8), (9, 12)), 2.0, Counter())


@pytest.mark.parametrize("size", [1, 5, 11, 12, 13, 4096])
def test_a_writer_counts_answers_however_they_are_cut(size: int) -> None:
    """Two good ones and a refusal."""
    data = b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 429 Too Many\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as server:
        writer = Writer(server.getsockname()[1], 2)
        for at in range(0, len(data), size):
            writer.received(1, data[at : at + size])
        writer.close()
    assert (writer.good, writer.answered) == (2, 3)


def test_bytes_of_any_kind_go_into_a_script() -> None:
    """wrk's script is Lua: bytes that are not plain text are written by number."""
    assert wrk.quoted('a"b\\') == '"a\\034b\\092"'
    assert wrk.quoted(b"\x00\xff9") == '"\\000\\2559"'


def test_protobuf_fields_are_encoded_and_read_back() -> None:
    """The encoding's own example: field 1 is 150; and a string in field 2."""
    assert h2load.field(1, 150) == b"\x08\x96\x01"
    assert h2load.field(2, b"testing") == b"\x12\x07testing"
