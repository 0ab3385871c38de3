"""Finds the fields of a syslog line of RFC 5424 or RFC 3164; pure.

`raftlog.cluster.importer.formats.lines` calls it. As in `raftlog.cluster.importer.formats.access_log`, a line is good
if the requested field can be read. The time stays text: `raftlog.cluster.importer.formats.times` reads it.
"""

from __future__ import annotations

import re
from typing import Final

FIELDS: Final = (
    "time",
    "host",
    "app",
    "procid",
    "msgid",
    "severity",
    "facility",
    "priority",
    "data",
    "message",
)
"""The fields of a line. A line of RFC 3164 has no msgid and no structured data."""

_5424: Final = re.compile(
    r"<(?P<priority>\d{1,3})>(?P<version>[1-9]\d?) (?P<time>\S+) (?P<host>\S+) (?P<app>\S+) (?P<procid>\S+) "
    r'(?P<msgid>\S+) (?P<data>-|(?:\[(?:[^\]"\\]|\\.|"(?:[^"\\]|\\.)*")*\])+)(?: (?P<message>.*))?',
    re.DOTALL,
)
_3164: Final = re.compile(
    r"(?:<(?P<priority>\d{1,3})>)?"
    r"(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)) "
    r"(?P<host>\S+) (?:(?P<app>[^\s:\[]+)(?:\[(?P<procid>[^\]]*)\])?: ?)?(?P<message>.*)",
    re.DOTALL,
)
SEVERITIES: Final = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
_PRIORITIES: Final = 192  # 24 facilities with 8 severities


def fields_of(line: str) -> dict[str, str] | None:
    """The fields of a line, without the missing ones (`-`); None if the line is no syslog."""
    found = _5424.fullmatch(line) or _3164.fullmatch(line)
    if found is None:
        return None
    fields = {name: value for name, value in found.groupdict().items() if value is not None and value != "-"}
    fields.pop("version", None)
    if (priority := fields.get("priority")) is not None:
        if int(priority) >= _PRIORITIES:
            return None
        fields |= {"severity": SEVERITIES[int(priority) % 8], "facility": str(int(priority) // 8)}
    if "message" in fields:
        fields["message"] = fields["message"].removeprefix("\ufeff")
    return fields


def is_syslog_line(line: bytes) -> bool:
    """Whether the line begins like one of syslog: a priority and a version, or a time and a host."""
    return fields_of(line.decode("utf-8", "replace").rstrip("\r\n")) is not None
