"""Finds key and time in a line of a web server's access log, common or combined format: pure.

`raftlog.cluster.importer.formats.lines` calls it. It goes by positions and not by a strict grammar. Real logs have
lines with a missing or an escaped quote. Such a line is still good if the one requested field can be read.
"""

from __future__ import annotations

import re
from typing import Final

FIELDS: Final = ("host", "user", "method", "path", "status", "sent", "referer", "agent")
"""The fields that can be the key. `host` is the client's address, `sent` the number of bytes."""

_HEAD: Final = re.compile(rb"(\S+) \S+ (\S+(?: \S+)*?) \[([^\]]*)\]")
_REQUEST: Final = re.compile(rb' "((?:[^"\\]|\\.)*)("|$)')
_STATUS: Final = re.compile(rb" (\d{3}) (\d+|-)")
_TIME: Final = re.compile(rb"\d{1,2}/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}")
TIME: Final = "%d/%b/%Y:%H:%M:%S %z"


def is_access_line(line: bytes) -> bool:
    """Whether the line begins like one of an access log: address, user, a time in brackets."""
    head = _HEAD.match(line)
    return head is not None and _TIME.fullmatch(head[3]) is not None


def read_field(line: bytes, field: str) -> bytes | None:
    """The field's bytes, or None if the line does not have it (`-` counts as missing)."""
    head = _HEAD.match(line)
    if head is None:
        return None
    found: bytes | None
    if field == "host":
        found = head[1]
    elif field == "user":
        found = head[2]
    else:
        found = _after_time(line[head.end() :], field)
    return None if found in (None, b"", b"-") else found


def time_of(line: bytes) -> str | None:
    """The line's time as text of the form `TIME`, or None."""
    head = _HEAD.match(line)
    return None if head is None else head[3].decode("latin-1")


def _after_time(rest: bytes, field: str) -> bytes | None:
    request = _REQUEST.match(rest)
    if request is None:
        return None
    if field in ("method", "path"):
        method, _, target = request[1].partition(b" ")
        return method if field == "method" else target.partition(b" ")[0]
    status = _STATUS.match(rest, request.end())
    if status is None:
        return None
    if field in ("status", "sent"):
        return status[1 if field == "status" else 2]
    referer = _REQUEST.match(rest, status.end())
    if referer is None or field == "referer":
        return None if referer is None else referer[1]
    agent = _REQUEST.match(rest, referer.end())
    return None if agent is None else agent[1]
