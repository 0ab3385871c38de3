"""Follows the chunks of a request body, so that chunk extensions have a limit, and trailers are refused.

aiohttp's parser drops extensions without counting them, and gives the last trailer to the next request as a header. It
also does not wake a request that waits for its body when it meets a malformed chunk. So all bytes pass here first
(`raftlog.cluster.http.connections`), and reading ends at the limit, at a trailer or at a malformed chunk. Only chunks
are checked here. The parser decides whether a head is HTTP, and the connection closes after one that it refuses. RFC
9112, section 7.1.

The connection also learns here where a request ends, so that the next one waits for its answer.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

from raftlog.cluster.api.errors import ApiError, Code

CHUNKS_MAX: Final = 256
"""Most chunks that are followed at once: about 1 ms of the event loop, with the parser's work. A client may send chunks
of one byte, of which one read of the socket has 40,000."""
SIZE_DIGITS_MAX: Final = 16
"""Most digits of a chunk's size; further ones are leading zeros, which count as extension."""
_FIELD: Final = re.compile(rb"(content-length|transfer-encoding)[ \t]*:[ \t]*(.*?)[ \t]*", re.IGNORECASE)
_SIZE: Final = re.compile(rb"0*([0-9A-Fa-f]{1,16})(?:[ \t]*;[^\r\n]*)?\r\n")
_DIGITS: Final = b"0123456789abcdefABCDEF"


class _Part(Enum):
    HEAD = auto()
    BODY = auto()  # of a known length
    SIZE = auto()  # the line before a chunk
    CHUNK = auto()
    END = auto()  # the line break after a chunk
    TRAILER = auto()
    OTHER = auto()  # a head that the parser will refuse


_CHUNKED: Final = frozenset({_Part.SIZE, _Part.CHUNK, _Part.END, _Part.TRAILER})


class ChunkOverhead:
    """The check of one connection. `bytes_max`: for the chunk extensions of one request together."""

    __slots__ = ("_bytes_max", "_extra", "_head", "_is_chunked", "_left", "_length", "_line", "_part", "has_request")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._part = _Part.HEAD
        self._line = b""  # received part of an unfinished line
        self._left = 0  # bytes to skip
        self._extra = 0
        self._length = 0
        self._is_chunked = False
        self._head = 0  # bytes of the head's lines so far
        self.has_request = False  # the newest bytes ended a head

    @property
    def is_in_chunks(self) -> bool:
        """Whether the next bytes are of a chunked body."""
        return self._part in _CHUNKED

    @property
    def is_in_head(self) -> bool:
        """Whether the next bytes are of a head, its first ones too."""
        return self._part is _Part.HEAD

    @property
    def head_bytes(self) -> int:
        return self._head + len(self._line) if self._part is _Part.HEAD else 0

    def check(self, data: bytes, chunks_max: int = CHUNKS_MAX) -> int:
        """Follows these bytes, up to the end of the request or of `chunks_max` chunks. Returns the number of bytes
        followed. Raises ApiError too_large or bad_request; the caller must then stop."""
        self.has_request = False
        at = chunks = 0
        while at < len(data) and self._part is not _Part.OTHER:
            if at and self._part is _Part.HEAD and not self._head:
                return at
            if self._part is _Part.SIZE and not self._line:
                at, whole = _pass_chunks(data, at, chunks_max - chunks)
                chunks += whole + 1
                if chunks > chunks_max or at == len(data):
                    return at
            if self._left:
                passed = min(self._left, len(data) - at)
                at, self._left = at + passed, self._left - passed
                if not self._left:
                    self._part = _Part.END if self._part is _Part.CHUNK else _Part.HEAD
                continue
            end = data.find(b"\n", at)
            line = self._line + data[at : end + 1 if end >= 0 else len(data)]
            if self._extra + _excess(self._part, line) > self._bytes_max:
                raise ApiError(
                    Code.TOO_LARGE,
                    f"the chunk extensions of the request have more than {self._bytes_max} bytes "
                    "(limits.head_bytes_max): send the body without them",
                )
            if end < 0:
                self._begun(line)
                return len(data)
            self._line = b""
            at = end + 1
            self._take(line)
        return len(data)

    def _begun(self, line: bytes) -> None:
        self._line = line
        if line != b"\r" and self._part in (_Part.END, _Part.TRAILER):
            raise _malformed(line)
        if self._part is _Part.HEAD and len(line) > 2 * self._bytes_max:
            self._part = _Part.OTHER  # a head does not begin like this

    def _take(self, line: bytes) -> None:
        """Takes one whole line: of a head, before or after a chunk, or after the last one."""
        self._extra += _excess(self._part, line)
        match self._part:
            case _Part.HEAD:
                self._take_field(line)
            case _Part.SIZE:
                if (size := _SIZE.fullmatch(line)) is None:
                    raise _malformed(line)
                self._left = int(size[1], 16)
                self._part = _Part.CHUNK if self._left else _Part.TRAILER
            case _ if line != b"\r\n":
                raise _malformed(line)
            case _Part.END:
                self._part = _Part.SIZE
            case _:
                self._part, self._extra = _Part.HEAD, 0

    def _take_field(self, line: bytes) -> None:
        text = line.rstrip(b"\r\n")
        if text:
            self._head += len(line)
        elif self._head:
            self._head, self.has_request = 0, True
        if not text:
            if self._is_chunked:
                self._part = _Part.SIZE
            elif self._length:
                self._part, self._left = _Part.BODY, self._length
            self._length, self._is_chunked = 0, False
        elif (field := _FIELD.fullmatch(text)) is not None:
            if field[1].lower() == b"content-length":
                self._length = int(field[2]) if field[2].isdigit() else 0
            elif field[2].lower().endswith(b"chunked"):
                self._is_chunked = True


def _pass_chunks(data: bytes, at: int, chunks_max: int) -> tuple[int, int]:
    """Passes over whole chunks without extensions, which need no further look. Returns the end and their number."""
    chunks = 0
    while chunks < chunks_max:
        end = data.find(b"\r\n", at, at + SIZE_DIGITS_MAX + 2)
        digits = data[at:end] if end > at else b""
        if digits.lstrip(_DIGITS) or not digits:
            break
        size = int(digits, 16)
        after = end + 2 + size
        if not size or data[after : after + 2] != b"\r\n":
            break
        at = after + 2
        chunks += 1
    return at, chunks


def _excess(part: _Part, line: bytes) -> int:
    """How many bytes of the line, finished or not, count towards the limit."""
    if part is not _Part.SIZE:
        return 0
    digits = len(line) - len(line.lstrip(_DIGITS))
    return len(line.rstrip(b"\r\n")) - min(digits, SIZE_DIGITS_MAX)


def _malformed(line: bytes) -> ApiError:
    return ApiError(
        Code.BAD_REQUEST,
        f"the body is malformed where a chunk begins or ends: {line[:40]!r}; its size in hex digits stands "
        "before each, a line break after both, and no trailer behind the last",
    )
