"""Turns requests into HTTP/1.1 bytes, and bytes into responses, for the clients; no input, no output.

Both clients use it over their own sockets. So they know whether a byte of a request was sent, and never send one twice
unasked. (aiohttp's client sends PUT and DELETE again when a kept-alive connection turns out to be closed, which would
turn an unknown outcome into a wrong one.) RFC 9112.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

REFUSED_MAYBE: Final = (
    "closed by the node, which may have refused this client's certificate; the node's log then has tls_refused"
)
"""Why an encrypted connection ended without an answer. A node refuses a certificate by closing the connection, and with
TLS 1.3 a client has sent its request by then."""
NO_TLS: Final = "it accepted the connection, and TLS did not come about"
HEAD_BYTES_MAX: Final = 64 << 10
_LINE_MAX: Final = 1 << 10  # a chunk's size with extensions, or a trailer
_HEX: Final = re.compile(rb"[0-9A-Fa-f]{1,15}")


class BadResponse(ValueError):
    """The bytes are not an HTTP/1.1 response, or they end too early."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """Status and headers of a response. Names are in lower case; of repeated headers the last one counts."""

    status: int
    headers: dict[str, str]

    @property
    def content_type(self) -> str:
        """The media type without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


def encode_request(
    method: str, target: str, host: str, headers: Sequence[tuple[str, str]], body: bytes | None
) -> bytes:
    """A request as bytes; `target` is the raw path and query, sent as it is."""
    lines = [f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n"]
    lines += [f"{name}: {value}\r\n" for name, value in headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}\r\n")
    lines.append("\r\n")
    head = "".join(lines).encode("ascii")
    return head + body if body else head


class _Line(Enum):
    """The kind of the next line of a chunked body, after the bytes of a chunk."""

    SIZE = auto()
    END = auto()  # the empty one after the chunk's bytes
    TRAILER = auto()  # after the last chunk, until an empty one


class ResponseParser:
    """Parses the bytes of one response after its request was sent.

    `head` is set once it has arrived. `feed` returns new bytes of the body. `is_done`: the response is complete;
    `keeps_alive` is then whether the connection can carry another one.
    """

    __slots__ = ("_awaits", "_buffer", "_is_chunked", "_left", "_until_close", "head", "is_done", "keeps_alive")

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self.is_done = False
        self.keeps_alive = True
        self._buffer = b""
        self._left = 0  # bytes of the body, or of the chunk under way
        self._is_chunked = False
        self._awaits = _Line.SIZE
        self._until_close = False

    def feed(self, data: bytes) -> bytes:
        """The body bytes in `data`. Raises BadResponse."""
        buffer = self._buffer + data if self._buffer else data
        self._buffer = b""
        while self.head is None:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(buffer) > HEAD_BYTES_MAX:
                    raise BadResponse(f"a response head of more than {HEAD_BYTES_MAX} bytes")
                self._buffer = buffer
                return b""
            head = _parse_head(buffer[:end])
            buffer = buffer[end + 4 :]
            if head.status >= 200:  # 1xx: the real response follows
                self._begin_body(head)
        if self.is_done:
            if buffer:
                raise BadResponse(f"{len(buffer)} bytes after the end of the response")
            return b""
        if self._is_chunked:
            return self._feed_chunks(buffer)
        if self._until_close:
            return buffer
        self._left -= len(buffer)
        if self._left < 0:
            raise BadResponse(f"{-self._left} bytes after the end of the response")
        self.is_done = self._left == 0
        return buffer

    def feed_eof(self) -> None:
        """The connection was closed. Raises BadResponse unless this response ends that way."""
        self.keeps_alive = False
        if self.head is None or not self._until_close:
            raise BadResponse("the connection was closed before the response was complete")
        self.is_done = True

    def _begin_body(self, head: ResponseHead) -> None:
        self.head = head
        self.keeps_alive = head.headers.get("connection", "").lower() != "close"
        length = head.headers.get("content-length")
        if head.status in (204, 304):
            self.is_done = True
        elif "transfer-encoding" in head.headers:
            if head.headers["transfer-encoding"].strip().lower() != "chunked":
                raise BadResponse(f"transfer-encoding {head.headers['transfer-encoding']!r}")
            self._is_chunked = True
        elif length is not None:
            if not (length.isascii() and length.isdigit()):
                raise BadResponse(f"content-length {length!r}")
            self._left = int(length)
            self.is_done = self._left == 0
        else:
            self._until_close = True
            self.keeps_alive = False

    def _feed_chunks(self, buffer: bytes) -> bytes:
        parts: list[bytes] = []
        position = 0
        while position < len(buffer) and not self.is_done:
            if self._left:
                piece = buffer[position : position + self._left]
                parts.append(piece)
                position += len(piece)
                self._left -= len(piece)
                continue
            end = buffer.find(b"\r\n", position)
            if end < 0:
                if len(buffer) - position > _LINE_MAX:
                    raise BadResponse(f"a chunk line of more than {_LINE_MAX} bytes")
                self._buffer = buffer[position:]
                return b"".join(parts)
            self._chunk_line(buffer[position:end])
            position = end + 2
        if position < len(buffer):
            raise BadResponse(f"{len(buffer) - position} bytes after the end of the response")
        return b"".join(parts)

    def _chunk_line(self, line: bytes) -> None:
        match self._awaits:
            case _Line.SIZE:
                digits = line.partition(b";")[0].strip()
                if not _HEX.fullmatch(digits):
                    raise BadResponse(f"a chunk of size {line[:32]!r}")
                self._left = int(digits, 16)
                self._awaits = _Line.END if self._left else _Line.TRAILER
            case _Line.END:
                if line:
                    raise BadResponse("a chunk longer than its size")
                self._awaits = _Line.SIZE
            case _Line.TRAILER:
                self.is_done = not line


def _parse_head(data: bytes) -> ResponseHead:
    lines = data.decode("latin-1").split("\r\n")
    version, _, rest = lines[0].partition(" ")
    status = rest[:3]
    if version not in ("HTTP/1.1", "HTTP/1.0") or not (status.isascii() and status.isdigit() and len(status) == 3):
        raise BadResponse(f"not an HTTP response: {lines[0][:64]!r}")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name:
            raise BadResponse(f"not a header line: {line[:64]!r}")
        headers[name.lower()] = value.strip()
    if version == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return ResponseHead(int(status), headers)
