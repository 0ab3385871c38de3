"""Tests HTTP/1.1 responses as bytes: every way to cut them, and bytes that are no response."""

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from raftlog.cluster.client.http1 import BadResponse, ResponseParser, encode_request

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A:  b \r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nT: 1\r\n\r\n"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH
CLOSED = b"HTTP/1.1 200 OK\r\n\r\nhello"


@given(st.sampled_from([LENGTH, CHUNKED, EMPTY, CONTINUED, CLOSED]), st.lists(st.integers(0, 120), max_size=6))
def test_wherever_it_is_cut_the_body_is_the_same(response: bytes, cuts: list[int]) -> None:
    """The network may split a response anywhere; head, body and end come out the same."""
    parser = ResponseParser()
    body = b""
    edges = sorted({0, len(response), *(cut for cut in cuts if cut < len(response))})
    for start, end in pairwise(edges):
        body += parser.feed(response[start:end])
    if response is CLOSED:
        parser.feed_eof()
    assert parser.is_done
    assert parser.head is not None
    assert body == (b"" if response is EMPTY else b"hello")
    assert parser.keeps_alive == (response is not CLOSED)


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 20\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        LENGTH + b"more",
        CHUNKED + b"more",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 2_000,
    ],
)
def test_bytes_that_are_no_response_are_refused(response: bytes) -> None:
    """Nothing but BadResponse comes of it, and no endless buffering."""
    with pytest.raises(BadResponse):
        ResponseParser().feed(response)


@given(st.binary(max_size=200))
def test_any_bytes_are_taken_or_refused(data: bytes) -> None:
    """Accept or raise BadResponse, nothing else."""
    try:
        ResponseParser().feed(b"HTTP/1.1 200 OK\r\n" + data)
    except BadResponse:
        pass


@pytest.mark.parametrize("response", [LENGTH[:-1], CHUNKED[:-2], LENGTH[:20], b""])
def test_an_end_before_the_end_is_no_answer(response: bytes) -> None:
    """A cut connection never passes for a complete answer."""
    parser = ResponseParser()
    parser.feed(response)
    with pytest.raises(BadResponse):
        parser.feed_eof()


def test_a_request_is_encoded_as_http_1_1() -> None:
    """A body has a length even when it is empty; without one there is no such header."""
    assert encode_request("GET", "/a?b", "h:1", [("X", "1")], None) == b"GET /a?b HTTP/1.1\r\nHost: h:1\r\nX: 1\r\n\r\n"
    assert encode_request("PUT", "/", "h", [], b"") == b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"
