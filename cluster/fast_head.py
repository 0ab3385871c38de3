"""Recognises the head of a simple HTTP request in a socket's bytes: pure.

A small part of HTTP/1.1 (RFC 9112) is accepted, of which there cannot be two opinions about where a request ends: one
form of a request line, a host, header lines without anything unusual in them, each name once, a length in digits.
`ODD` is everything else: whoever has more patience reads it, from its first byte on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from cluster import wire

HEAD_BYTES_MAX: Final = 8 << 10
"""Heads up to here are looked at; the limits of the settings may be lower, and those above it aiohttp enforces."""
FIELDS_MAX: Final = 32
_CACHED_HEADS_MAX: Final = 256
_CACHED_LINES_MAX: Final = 1_024
_CACHED_BYTES_MAX: Final = 1 << 10


class Kind(Enum):
    """What to do with a request."""

    HOT = auto()  # simple, and of a hot route
    PLAIN = auto()  # where it ends is certain; aiohttp serves it
    ODD = auto()  # from here on the connection is aiohttp's
    PARTIAL = auto()  # the head has not arrived as a whole


class Short(Enum):
    """Whether a request may go the short way (`cluster.fast_short`): nothing in its head asks for more than this."""

    NO = auto()
    APPEND = auto()  # the body is one value
    PUT = auto()  # of the key in the path, whatever it is; the body is its value
    GET = auto()  # linearizable, of the key in the path


class Head(NamedTuple):
    """One request's head; `end` is where its body begins, `length` how long that is."""

    kind: Kind
    method: str = ""
    target: str = ""
    headers: Mapping[str, str] = {}  # nobody changes it; KNOWN_NAMES as they are, others in lower case
    end: int = 0
    length: int = 0
    short: Short = Short.NO


_NO: Final = Short.NO
_KEYED_SHORTS: Final = {"PUT": Short.PUT, "GET": Short.GET}
_ODD: Final = Head(Kind.ODD)
_PARTIAL: Final = Head(Kind.PARTIAL)

_NUMBER: Final = rb"[0-9]{1,20}"
_LOG_QUERY: Final = (
    rb"(?:(?:from|to|limit|from_time)=" + _NUMBER + rb"|internal=(?:true|false)|format=(?:json|msgpack)"
    rb"|encoding=(?:auto|base64)|consistency=(?:linearizable|stale))"
)
_GET_QUERY: Final = rb"(?:at=" + _NUMBER + rb"|encoding=(?:auto|base64)|consistency=(?:linearizable|stale))"
# Only reads that end by themselves: whoever waits (wait=, min_index=) or streams is aiohttp's.
_HOT: Final = re.compile(
    rb"POST /v1/log[? ]|PUT /v1/kv[/?]"
    rb"|GET /v1/log(?:\?" + _LOG_QUERY + rb"(?:&" + _LOG_QUERY + rb")*)? "
    rb"|GET /v1/kv/[^? ]+(?:\?" + _GET_QUERY + rb"(?:&" + _GET_QUERY + rb")*)? "
)
_LINE: Final = re.compile(
    rb"(GET|POST|PUT|DELETE|HEAD|OPTIONS|PATCH) (/[A-Za-z0-9\-._~%/?&=+!$'()*,;:@]*) HTTP/1\.1\r\n"
)
KEY_PATH: Final = "/v1/kv/"
_KEY_TARGET: Final = re.compile(r"/v1/kv/[A-Za-z0-9\-._~%/&=+!$'()*,;:@]+")
_KEYED: Final = re.compile(rb"(GET|PUT) (%b) HTTP/1\.1\r\n" % _KEY_TARGET.pattern.encode())
_LINE_BEGUN: Final = re.compile(
    rb"[A-Z]{1,7}(?: (?:/[!-~]*(?: (?:H(?:T(?:T(?:P(?:/(?:1(?:\.(?:1\r?)?)?)?)?)?)?)?)?)?)?)?"
)
_FIELD: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*((?:[!-~]+(?:[ \t]+[!-~]+)*)?)[ \t]*")
_FIELD_BEGUN: Final = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+(?::[ \t!-~]*\r?)?|\r)?")
_LENGTH: Final = re.compile(r"0|[1-9][0-9]{0,14}")

KNOWN_NAMES: Final = (
    "Host", "Origin", "Accept", "Content-Type", "Content-Length", "Content-Encoding", "Expect", "Connection",
    "Transfer-Encoding", "Upgrade", "Last-Event-ID", wire.H_SESSION, wire.H_SEQUENCE, wire.H_SETTLED, wire.H_DEADLINE,
    wire.H_REQUEST_ID, wire.H_KEY, wire.H_TIME, wire.H_LOG,
)  # fmt: skip
"""Every header that a handler asks for, in the case in which it does."""
_KNOWN: Final = {name.lower().encode(): name for name in KNOWN_NAMES}
_ITS_OWN: Final = (wire.H_SEQUENCE, wire.H_REQUEST_ID)
"""Headers that differ from request to request: their heads are not worth remembering."""


_SHORT_NAMES: Final = frozenset(KNOWN_NAMES) - {"Host", "Content-Length", "Connection"}
_SHORT_VALUES: Final = frozenset({("Accept", "*/*"), ("Content-Type", "application/octet-stream")})
"""What a client may say of itself that changes nothing."""
_new: Final = tuple.__new__  # a NamedTuple without the cost of its constructor


def _asks_no_more(headers: dict[str, str]) -> bool:
    """Whether no header asks for anything that a short way does not do."""
    return not any(name in _SHORT_NAMES and (name, value) not in _SHORT_VALUES for name, value in headers.items())


def is_ordinary(raw: Sequence[tuple[bytes, bytes]]) -> bool:
    """The same of header lines that somebody else has read; each name once, and a host among them."""
    pairs = [(name.lower(), value.decode("latin-1")) for name, value in raw]
    headers = {_KNOWN.get(name) or name.decode("latin-1"): value for name, value in pairs}
    if len(headers) < len(raw) or "Host" not in headers:
        return False
    return _asks_no_more(headers) and not any(name.startswith("raftlog-") for name in headers)


def short_of(method: str, target: str) -> Short:
    """The short way of a request whose headers are ordinary, if it has one."""
    if method == "POST":
        return Short.APPEND if target == "/v1/log" else Short.NO
    if method in _KEYED_SHORTS and _KEY_TARGET.fullmatch(target):
        return _KEYED_SHORTS[method]
    return Short.NO


class _Fields(NamedTuple):
    headers: dict[str, str]
    length: int
    is_simple: bool
    is_short: bool  # nothing in them asks for more than a short way gives


_UNKNOWN: Final = _Fields({}, 0, False, False)  # not remembered


class HeadParser:
    """Reads heads, and remembers what clients repeat with every request: whole ones, but for those that name a key
    (there are as many as keys), and the header lines of all."""

    __slots__ = ("_cache", "_heads", "_lines", "bytes_max", "fields_max")

    def __init__(self, bytes_max: int, fields_max: int) -> None:
        """`bytes_max`, `fields_max`: the settings' limits of a line and of the number of headers."""
        self.bytes_max = min(bytes_max, HEAD_BYTES_MAX)
        self.fields_max = min(fields_max, FIELDS_MAX)
        self._heads: dict[bytes, Head] = {}
        self._cache: dict[bytes, _Fields | None] = {}
        self._lines: dict[bytes, tuple[str, str] | None] = {}

    def parse(self, data: bytes, start: int) -> Head:
        """The head that begins at `start`."""
        end = data.find(b"\r\n\r\n", start)
        if end < 0 or end - start > self.bytes_max:
            return _PARTIAL if end < 0 and self._may_become_one(data, start) else _ODD
        keyed = _KEYED.match(data, start)
        if keyed is not None:
            fields = self._known(data[keyed.end() : end] if keyed.end() < end else b"")
            if fields is None:
                return _ODD
            if fields.is_simple:
                method = "PUT" if keyed[1] == b"PUT" else "GET"
                if method == "PUT" or not fields.length:
                    short = _KEYED_SHORTS[method] if fields.is_short else _NO
                    target = keyed[2].decode()
                    return _new(Head, (Kind.HOT, method, target, fields.headers, end + 4, fields.length, short))
        known = self._heads.get(data[start:end])
        if known is not None:
            return known if known.end == end + 4 else _new(Head, (*known[:4], end + 4, known.length, known.short))
        line = _LINE.match(data, start)
        if line is None:
            return _ODD
        block = data[line.end() : end] if line.end() < end else b""
        fields = self._known(block)
        if fields is None:
            return _ODD
        method, target = line[1].decode(), line[2].decode()
        kind = Kind.HOT if fields.is_simple and _HOT.match(data, start) else Kind.PLAIN
        if kind is Kind.HOT and method == "GET" and fields.length:
            kind = Kind.PLAIN
        short = short_of(method, target) if kind is Kind.HOT and fields.is_short else _NO
        head = Head(kind, method, target, fields.headers, end + 4, fields.length, short)
        if keyed is None and block in self._cache and end - start <= _CACHED_BYTES_MAX:
            if len(self._heads) >= _CACHED_HEADS_MAX:
                self._heads.clear()
            self._heads[data[start:end]] = head
        return head

    def _known(self, block: bytes) -> _Fields | None:
        """The header lines, remembered or not; None for anything unusual."""
        fields = self._cache.get(block, _UNKNOWN)
        if fields is _UNKNOWN:
            fields = self._fields(block)
        return None if fields is None or len(fields.headers) >= self.fields_max else fields

    def _may_become_one(self, data: bytes, start: int) -> bool:
        """Whether what is there of a head is how one that we take begins."""
        if len(data) - start > self.bytes_max:
            return False
        line = _LINE.match(data, start)
        if line is None:
            return _LINE_BEGUN.fullmatch(data, start) is not None
        *lines, begun = data[line.end() :].split(b"\r\n")
        return all(_FIELD.fullmatch(each) for each in lines) and _FIELD_BEGUN.fullmatch(begun) is not None

    def _fields(self, block: bytes) -> _Fields | None:
        fields = self._parse_fields(block)
        if len(block) <= _CACHED_BYTES_MAX and not (fields and any(name in fields.headers for name in _ITS_OWN)):
            if len(self._cache) >= _CACHED_HEADS_MAX:
                self._cache.clear()
            self._cache[block] = fields
        return fields

    def _parse_fields(self, block: bytes) -> _Fields | None:
        """The header lines; None for anything unusual."""
        headers: dict[str, str] = {}
        lines = block.split(b"\r\n")
        for line in lines:
            pair = self._lines[line] if line in self._lines else self._line(line)
            if pair is None:
                return None
            headers[pair[0]] = pair[1]
        if len(headers) < len(lines) or "Host" not in headers:  # a name twice
            return None
        if "Transfer-Encoding" in headers or "Upgrade" in headers:
            return None
        if headers.get("Connection", "keep-alive").lower() != "keep-alive":
            return None
        length = headers.get("Content-Length", "0")
        if not _LENGTH.fullmatch(length):
            return None
        is_simple = "Expect" not in headers and "Content-Encoding" not in headers
        if any(name.startswith("raftlog-") for name in headers):  # misspelt: its sender is told how
            is_simple = False
        return _Fields(headers, int(length), is_simple, _asks_no_more(headers))

    def _line(self, line: bytes) -> tuple[str, str] | None:
        """Name and value of a header line; None for anything unusual."""
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
