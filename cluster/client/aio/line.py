"""Bounds how many requests of an asyncio client run at once; the others wait in line, first come first served.

The carrier has a line for its connections, and the session has one for its sequences. A line wakes one task for each
free place. Waking all tasks for every answer would cost a second of processor time for 5,000 concurrent writes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from raftlog.cluster.runtime import clock

_EARLY_S: Final = 0.001  # a timer may fire a little early


class WaitQueue:
    """Tasks that wait for a free place, in their order. Belongs to one event loop.

    `places`: the number of free places at the beginning.
    """

    def __init__(self, places: int = 0) -> None:
        self._free = places
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._advanced_at = 0.0

    def try_enter(self) -> bool:
        """Takes a place if one is free."""
        if self._free <= 0:
            return False
        self._free -= 1
        return True

    async def enter(self, patience_s: float, deadline: float | None = None) -> None:
        """Takes a place, and waits for one while the line advances.

        Raises TimeoutError at `deadline` (seconds of `clock.monotonic`); without one, once `advance` was not called for
        `patience_s` seconds.
        """
        if self.try_enter():
            return
        came = clock.monotonic()
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            while not place.done():
                now = clock.monotonic()
                until = max(came, self._advanced_at) + patience_s if deadline is None else deadline
                if now + _EARLY_S >= until:
                    raise TimeoutError
                await asyncio.wait((place,), timeout=until - now)
        except BaseException:
            if place.done():
                self.leave()  # the place came together with the cancellation: the next task gets it
            else:
                self._waiting.remove(place)
            raise

    def leave(self, places: int = 1) -> None:
        """Frees that many places, and wakes as many tasks."""
        self._free += places
        while self._free > 0 and self._waiting:
            self._free -= 1
            self._waiting.popleft().set_result(None)

    def advance(self) -> None:
        """A node answered a request: the tasks in line may wait longer."""
        self._advanced_at = clock.monotonic()

    def dissolve(self) -> None:
        """Wakes all tasks in line, because the session that they wait for is gone."""
        self.leave(len(self._waiting))
