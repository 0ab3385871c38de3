"""Watches an unfinished request head: it must end in time, and within a number of bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.config.settings import LimitSettings

HEADS: Final = 4
"""Most bytes of all fields of one head together, in times of limits.head_bytes_max; aiohttp bounds each field alone."""


class HeadWatch:
    """The watch of one connection. Belongs to the event loop."""

    __slots__ = ("_bytes", "_late", "_limits", "_timer")

    def __init__(self, limits: LimitSettings, late: Callable[[ApiError], None]) -> None:
        """`late` is called with the error for a head that did not end in time."""
        self._limits, self._late = limits, late
        self._timer: asyncio.TimerHandle | None = None
        self._bytes = 0

    @property
    def has_begun(self) -> bool:
        """Whether a head is awaited."""
        return self._timer is not None

    def begin(self) -> None:
        """First or further bytes of the head are here."""
        if self._timer is None:
            seconds = self._limits.head_timeout_ms / 1_000
            self._timer = asyncio.get_running_loop().call_later(seconds, self._is_over)

    def came(self, size: int) -> ApiError | None:
        """That many bytes came, of the head and perhaps of more. Returns the error if the head is too long."""
        self.begin()
        bytes_max = HEADS * self._limits.head_bytes_max
        if self._bytes > bytes_max:
            return ApiError(
                Code.TOO_LARGE, f"the head has more than {bytes_max} bytes ({HEADS} times limits.head_bytes_max)"
            )
        self._bytes += size
        return None

    def end(self) -> None:
        """The head is complete, or the connection has gone."""
        self._bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def forget(self) -> None:
        """The connection has gone: lets go of it."""
        self._late = _nothing

    def _is_over(self) -> None:
        self._timer = None
        ms = self._limits.head_timeout_ms
        self._late(ApiError(Code.DEADLINE, f"the head of this request did not end in {ms} ms (limits.head_timeout_ms)"))


def _nothing(_: ApiError) -> None:
    """Does nothing."""
