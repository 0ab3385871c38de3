"""A body that is still coming: its packets, put together once, and when it is too slow to be waited for."""

from __future__ import annotations

from typing import Final

BODY_WAIT_SECONDS: Final = 0.02
"""Head and body of a request often come in two packets, a large body in many; one of which nothing comes for so long is
aiohttp's to wait for."""
BODY_WAITS_MAX: Final = 50
"""And so is one that has taken so many of these times."""


class Body:
    """Of one request, whose head is there."""

    __slots__ = ("_missing", "_parts", "_seen", "_waits")

    def __init__(self, begun: bytes, missing: int) -> None:
        """`begun` is what came so far, of which so many bytes are missing."""
        self._parts = [begun]
        self._missing = self._seen = missing
        self._waits = 0

    def is_whole_with(self, data: bytes) -> bool:
        """Takes what came; whether nothing is missing any more."""
        self._parts.append(data)
        self._missing -= len(data)
        return self._missing <= 0

    def is_slow(self) -> bool:
        """Asked each time that BODY_WAIT_SECONDS have passed."""
        has_come, self._seen = self._seen > self._missing, self._missing
        self._waits += 1
        return not has_come or self._waits >= BODY_WAITS_MAX

    def joined(self) -> bytes:
        """All that came."""
        return b"".join(self._parts)
