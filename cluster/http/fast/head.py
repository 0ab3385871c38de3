"""Recognises the head of a simple HTTP request in a socket's bytes: pure.

The fast path calls it for each request. It accepts a small part of HTTP/1.1 (RFC 9112), in which the end of a request
is certain: one form of a request line, a host, ordinary header lines, each name once, a length in digits. Any other
head is `ODD`: aiohttp reads it, from its first byte on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from raftlog.cluster.api.headers import H_REQUEST_ID, H_SEQUENCE, H_TRACEPARENT, REQUEST_HEADERS
from raftlog.cluster.http.exchange.query import KEY_PATH

HEAD_BYTES_MAX: Final = 8 << 10
"""Most bytes of a head on the fast path. The limits of the settings may be lower; aiohttp enforces higher ones."""
FIELDS_MAX: Final = 32
BODY_BYTES_MAX: Final = 1 << 20
"""A request with a larger body is not hot: aiohttp reads it as it comes, and refuses one above the limit at once."""
_CACHED_HEADS_MAX: Final = 256
_CACHED_LINES_MAX: Final = 1_024
_CACHED_BYTES_MAX: Final = 1 << 10


class Kind(Enum):
    """The way of a request."""

    HOT = auto()  # simple, and for a hot route
    PLAIN = auto()  # its end is certain; aiohttp serves it
    ODD = auto()  # from here on the connection is aiohttp's
    PARTIAL = auto()  # the head is incomplete


class RequestHead(NamedTuple):
    """One request's head. `end` is the position of its body, `length` the size of the body."""

    kind: Kind
    method: str = ""
    target: str = ""
    path: str = ""
    query: str = ""
    headers: Mapping[str, str] = {}  # never changed; KNOWN_NAMES as they are, other names in lower case
    end: int = 0
    length: int = 0
    has_options: bool = True  # whether the gate and handlers must read headers besides Host
    key: str = ""  # raw, if the target is exactly /v1/kv/{key}


_HOT_KIND: Final = Kind.HOT  # a member of an enum costs a call each time
_ODD: Final = RequestHead(Kind.ODD)
_PARTIAL: Final = RequestHead(Kind.PARTIAL)

_NUMBER: Final = rb"[0-9]{1,20}"
_LOG_QUERY: Final = (
    rb"(?:(?:from|to|limit|from_time)=" + _NUMBER + rb"|internal=(?:true|false)|format=(?:json|msgpack)"
    rb"|encoding=(?:auto|base64)|consistency=(?:linearizable|stale))"
)
_GET_QUERY: Final = rb"(?:at=" + _NUMBER + rb"|encoding=(?:auto|base64)|consistency=(?:linearizable|stale))"
# Only reads that end by themselves: requests that wait (wait=, min_index=) or stream are aiohttp's.
_HOT: Final = re.compile(
    rb"POST /v1/log[? ]|PUT /v1/kv[/?]|GET /v1/overview "
    rb"|GET /v1/log(?:\?" + _LOG_QUERY + rb"(?:&" + _LOG_QUERY + rb")*)? "
    rb"|GET /v1/kv/[^? ]+(?:\?" + _GET_QUERY + rb"(?:&" + _GET_QUERY + rb")*)? "
)
_LINE: Final = re.compile(
    rb"(GET|POST|PUT|DELETE|HEAD|OPTIONS|PATCH) (/[A-Za-z0-9\-._~%/?&=+!$'()*,;:@]*) HTTP/1\.1\r\n"
)
_KEYED: Final = re.compile(rb"(GET|PUT) /v1/kv/([A-Za-z0-9\-._~%/&=+!$'()*,;:@]+) HTTP/1\.1\r\n")
_LINE_BEGUN: Final = re.compile(
    rb"[A-Z]{1,7}(?: (?:/[!-~]*(?: (?:H(?:T(?:T(?:P(?:/(?:1(?:\.(?:1\r?)?)?)?)?)?)?)?)?)?)?)?"
)
_FIELD: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*((?:[!-~]+(?:[ \t]+[!-~]+)*)?)[ \t]*")
_FIELD_BEGUN: Final = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+(?::[ \t!-~]*\r?)?|\r)?")
_LENGTH: Final = re.compile(r"0|[1-9][0-9]{0,14}")

KNOWN_NAMES: Final = (
    "Host",
    "Origin",
    "Authorization",
    "Accept",
    "Content-Type",
    "Content-Length",
    "Content-Encoding",
    "Expect",
    "Connection",
    "Transfer-Encoding",
    "Upgrade",
    "Last-Event-ID",
    "Cookie",
    "Sec-Fetch-Site",
    "If-None-Match",
    H_TRACEPARENT,
    *REQUEST_HEADERS,
)
"""Every header that a handler reads, spelt as the handler does."""
_KNOWN: Final = {name.lower().encode(): name for name in KNOWN_NAMES}
_ITS_OWN: Final = (H_SEQUENCE, H_REQUEST_ID, H_TRACEPARENT)
"""Headers that differ from request to request, so that their heads are not remembered."""


_ASKING_NAMES: Final = frozenset(KNOWN_NAMES) - {"Host", "Content-Length", "Connection", "Authorization", H_TRACEPARENT}
_IDLE_VALUES: Final = frozenset({("Accept", "*/*"), ("Content-Type", "application/octet-stream")})
"""Values that clients send with every request, and that change nothing."""
_new: Final = tuple.__new__  # a NamedTuple without the cost of its constructor


class _Fields(NamedTuple):
    headers: dict[str, str]
    length: int
    is_simple: bool
    has_options: bool  # as in `RequestHead`


class HeadParser:
    """Parses heads, and remembers repeated parts: whole heads without a key (keys are too many), and header lines."""

    __slots__ = ("_body_bytes_max", "_cache", "_heads", "_lines", "bytes_max", "fields_max")

    def __init__(self, bytes_max: int, fields_max: int, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        """The limits of the settings: bytes of a header line, number of headers, bytes of a body."""
        self.bytes_max = min(bytes_max, HEAD_BYTES_MAX)
        self.fields_max = min(fields_max, FIELDS_MAX)
        self._body_bytes_max = min(body_bytes_max, BODY_BYTES_MAX)
        self._heads: dict[bytes, RequestHead] = {}
        self._cache: dict[bytes, _Fields | None] = {}
        self._lines: dict[bytes, tuple[str, str] | None] = {}

    def parse(self, data: bytes, start: int) -> RequestHead:
        end = data.find(b"\r\n\r\n", start)
        if end < 0 or end - start > self.bytes_max:
            return _PARTIAL if end < 0 and self._may_become_one(data, start) else _ODD
        keyed = _KEYED.match(data, start)
        if keyed is None and (known := self._heads.get(data[start:end])) is not None:
            return known if known.end == end + 4 else _new(RequestHead, (*known[:6], end + 4, *known[7:]))
        line = keyed or _LINE.match(data, start)
        if line is None:
            return _ODD
        block = data[line.end() : end] if line.end() < end else b""
        fields = self._cache[block] if block in self._cache else self._fields(block)
        if fields is None:
            return _ODD
        method, target = line[1].decode(), line[2].decode()
        if keyed is not None:
            headers, length, is_simple, has_options = fields
            key, target = target, KEY_PATH + target
            if is_simple and (method == "PUT" or not length):
                return _new(
                    RequestHead, (_HOT_KIND, method, target, target, "", headers, end + 4, length, has_options, key)
                )
        is_hot = fields.is_simple and _HOT.match(data, start) and not (method == "GET" and fields.length)
        kind = Kind.HOT if is_hot else Kind.PLAIN
        path, _, query = target.partition("?")
        head = RequestHead(
            kind, method, target, path, query, fields.headers, end + 4, fields.length, fields.has_options
        )
        if keyed is None and block in self._cache and end - start <= _CACHED_BYTES_MAX:
            if len(self._heads) >= _CACHED_HEADS_MAX:
                self._heads.clear()
            self._heads[data[start:end]] = head
        return head

    def _may_become_one(self, data: bytes, start: int) -> bool:
        """Whether the bytes so far can become a head that this parser accepts."""
        if len(data) - start > self.bytes_max:
            return False
        line = _LINE.match(data, start)
        if line is None:
            return _LINE_BEGUN.fullmatch(data, start) is not None
        *lines, begun = data[line.end() :].split(b"\r\n")
        return all(_FIELD.fullmatch(each) for each in lines) and _FIELD_BEGUN.fullmatch(begun) is not None

    def _fields(self, block: bytes) -> _Fields | None:
        """The fields of the header lines, remembered for the next request. None if one is unusual."""
        fields = self._parse_fields(block)
        if fields is not None and len(fields.headers) >= self.fields_max:
            fields = None
        if len(block) <= _CACHED_BYTES_MAX and not (fields and any(name in fields.headers for name in _ITS_OWN)):
            if len(self._cache) >= _CACHED_HEADS_MAX:
                self._cache.clear()
            self._cache[block] = fields
        return fields

    def _parse_fields(self, block: bytes) -> _Fields | None:
        """The fields of the header lines. None if one is unusual."""
        headers: dict[str, str] = {}
        lines = block.split(b"\r\n")
        for line in lines:
            pair = self._lines[line] if line in self._lines else self._line(line)
            if pair is None:
                return None
            headers[pair[0]] = pair[1]
        if len(headers) < len(lines) or "Host" not in headers:  # a name stands twice
            return None
        if "Transfer-Encoding" in headers or "Upgrade" in headers:
            return None
        if headers.get("Connection", "keep-alive").lower() != "keep-alive":
            return None
        length = headers.get("Content-Length", "0")
        if not _LENGTH.fullmatch(length):
            return None
        is_simple = (
            "Expect" not in headers and "Content-Encoding" not in headers and int(length) <= self._body_bytes_max
        )
        if any(name.startswith("raftlog-") for name in headers):  # misspelt: the gate names the right spelling
            is_simple = False
        has_options = any(pair[0] in _ASKING_NAMES and pair not in _IDLE_VALUES for pair in headers.items())
        return _Fields(headers, int(length), is_simple, has_options)

    def _line(self, line: bytes) -> tuple[str, str] | None:
        """Name and value of a header line. None if it is unusual."""
        match = _FIELD.fullmatch(line)
        pair: tuple[str, str] | None = None
        if match is not None:
            name = match[1].lower()
            pair = (_KNOWN.get(name) or name.decode(), match[2].decode())
        if len(line) <= _CACHED_BYTES_MAX:
            if len(self._lines) >= _CACHED_LINES_MAX:
                self._lines.clear()
            self._lines[line] = pair
        return pair
