"""Reads the list of revoked certificates: pure.

A node compares it with each certificate that a client or peer shows.

One certificate a line: `sha256:` and its fingerprint, or `serial:` and its serial number, both in hex digits, with
colons or without. `#` begins a comment. `raftlog cert revoke` adds a line. A fingerprint names one certificate; a
serial number is unique for one authority alone.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

LINES_MAX: Final = 100_000
_LINE: Final = re.compile(r"(sha256|serial):([0-9a-fA-F:]+)")
_FINGERPRINT_DIGITS: Final = 64
_SERIAL_DIGITS_MAX: Final = 40  # RFC 5280, section 4.1.2.2: 20 bytes


class RevokedList(NamedTuple):
    """Certificates that count no more."""

    serials: frozenset[int] = frozenset()
    digests: frozenset[bytes] = frozenset()  # SHA-256 of the certificates

    def __bool__(self) -> bool:
        return bool(self.serials or self.digests)

    def has(self, serial: int, digest: bytes) -> bool:
        return serial in self.serials or digest in self.digests


def parse_revoked(text: str) -> RevokedList:
    """The certificates of a list. Raises ValueError with the line."""
    serials: set[int] = set()
    digests: set[bytes] = set()
    lines = text.splitlines()
    if len(lines) > LINES_MAX:
        raise ValueError(f"it has {len(lines)} lines: the limit is {LINES_MAX}")
    for number, line in enumerate(lines, 1):
        item = line.partition("#")[0].strip()
        if not item:
            continue
        match = _LINE.fullmatch(item)
        digits = "" if match is None else match[2].replace(":", "")
        if match is not None and match[1] == "sha256" and len(digits) == _FINGERPRINT_DIGITS:
            digests.add(bytes.fromhex(digits))
        elif match is not None and match[1] == "serial" and 0 < len(digits) <= _SERIAL_DIGITS_MAX:
            serials.add(int(digits, 16))
        else:
            raise ValueError(f"line {number} is {item[:100]!r}: it must be sha256:FINGERPRINT or serial:NUMBER, in hex")
    return RevokedList(frozenset(serials), frozenset(digests))
