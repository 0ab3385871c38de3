"""Limits log lines about events that others cause: one line for each reason in a while, and few lines for all reasons.

The peer links and the TLS of a node use it for refused connections. A sender may make up a new reason each time.
"""

from __future__ import annotations

from typing import Final

from raftlog.cluster.runtime import clock

EVERY_S: Final = 10.0  # seconds between two lines with one reason
REASONS_MAX: Final = 64  # reasons that are remembered for that
LINES_MAX: Final = 20
"""Most lines in EVERY_S seconds, for any reasons. The next line says how many were left out."""


class LineLimit:
    def __init__(self) -> None:
        self.reasons: dict[str, float] = {}  # when the newest line with each reason was written
        self._left = LINES_MAX
        self._until = 0.0
        self._left_out = 0

    def allows(self, reason: str) -> bool:
        """Whether a line with that reason may be written now; if not, it is counted as left out."""
        now = clock.monotonic()
        if now - self.reasons.get(reason, -EVERY_S) >= EVERY_S:
            if now >= self._until:
                self._left, self._until = LINES_MAX, now + EVERY_S
            if self._left > 0:
                self._left -= 1
                if len(self.reasons) >= REASONS_MAX:
                    self.reasons.clear()
                self.reasons[reason] = now
                return True
        self._left_out += 1
        return False

    def take_left_out(self) -> int:
        """The number of lines left out since the last call, for the next line."""
        left_out, self._left_out = self._left_out, 0
        return left_out
