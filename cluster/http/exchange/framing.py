"""Follows the chunks of a request body, so that chunk extensions and trailers have a limit.

aiohttp's parser drops both without counting them. It also does not wake a request that waits for its body when it meets
a malformed chunk. So all bytes pass here first (`raftlog.cluster.http.gate`), and reading ends at the limit or at a
malformed chunk. Only chunks are checked here. The parser decides whether a head is HTTP, and the connection closes
after one that it refuses. RFC 9112, section 7.1.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

from raftlog.cluster.api.errors import ApiError, Code

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


class ChunkOverhead:
    """The check of one connection. `bytes_max`: for the chunk extensions and trailers of one request together."""

    __slots__ = ("_bytes_max", "_extra", "_is_chunked", "_left", "_length", "_line", "_part")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._part = _Part.HEAD
        self._line = b""  # received part of an unfinished line
        self._left = 0  # bytes to skip
        self._extra = 0
        self._length = 0
        self._is_chunked = False

    def check(self, data: bytes) -> None:
        """Follows these bytes. Raises ApiError too_large or bad_request; the caller must then stop."""
        at = 0
        while at < len(data) and self._part is not _Part.OTHER:
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
                    f"the chunk extensions and trailers of the request have more than {self._bytes_max} bytes "
                    "(limits.head_bytes_max): send the body without them",
                )
            if end < 0:
                self._begun(line)
                return
            self._line = b""
            at = end + 1
            self._take(line)

    def _begun(self, line: bytes) -> None:
        """The line is unfinished."""
        self._line = line
        if self._part is _Part.END and line != b"\r":
            raise _malformed(line)
        if self._part is _Part.HEAD and len(line) > 2 * self._bytes_max:
            self._part = _Part.OTHER  # a head does not begin like this

    def _take(self, line: bytes) -> None:
        """Takes one whole line: of a head, before or after a chunk, or of the trailers."""
        self._extra += _excess(self._part, line)
        match self._part:
            case _Part.HEAD:
                self._take_field(line)
            case _Part.SIZE:
                if (size := _SIZE.fullmatch(line)) is None:
                    raise _malformed(line)
                self._left = int(size[1], 16)
                self._part = _Part.CHUNK if self._left else _Part.TRAILER
            case _Part.END:
                if line != b"\r\n":
                    raise _malformed(line)
                self._part = _Part.SIZE
            case _:
                if not line.strip():
                    self._part, self._extra = _Part.HEAD, 0

    def _take_field(self, line: bytes) -> None:
        text = line.rstrip(b"\r\n")
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


def _excess(part: _Part, line: bytes) -> int:
    """How many bytes of the line, finished or not, count towards the limit."""
    if part is _Part.TRAILER:
        return len(line) if line.strip() else 0
    if part is not _Part.SIZE:
        return 0
    digits = len(line) - len(line.lstrip(_DIGITS))
    return len(line.rstrip(b"\r\n")) - min(digits, SIZE_DIGITS_MAX)


def _malformed(line: bytes) -> ApiError:
    return ApiError(
        Code.BAD_REQUEST,
        f"the body is malformed where a chunk begins or ends: {line[:40]!r}; its size in hex digits stands "
        "before each, and a line break after both",
    )
