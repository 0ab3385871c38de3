"""Collects a body that is still coming, joins its packets once, and notices when it comes too slowly."""

from __future__ import annotations

from typing import Final

BODY_WAIT_SECONDS: Final = 0.02
"""Seconds to wait for the next packet of a body. Head and body often come in two packets, a large body in many. After
a longer pause the request goes to aiohttp."""
BODY_WAITS_MAX: Final = 50
"""Most such waits for one body; then the request goes to aiohttp too."""


class Body:
    """The body of one request, whose head is here."""

    __slots__ = ("_missing", "_parts", "_seen", "_waits")

    def __init__(self, begun: bytes, missing: int) -> None:
        """`begun`: the bytes that came so far. `missing`: the number of bytes to come."""
        self._parts = [begun]
        self._missing = self._seen = missing
        self._waits = 0

    def is_whole_with(self, data: bytes) -> bool:
        """Takes the next bytes. Returns whether the body is complete."""
        self._parts.append(data)
        self._missing -= len(data)
        return self._missing <= 0

    def is_slow(self) -> bool:
        """Whether the body comes too slowly. Called every BODY_WAIT_SECONDS."""
        has_come, self._seen = self._seen > self._missing, self._missing
        self._waits += 1
        return not has_come or self._waits >= BODY_WAITS_MAX

    def joined(self) -> bytes:
        """All bytes of the body."""
        return b"".join(self._parts)
