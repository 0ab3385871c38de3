"""Gives memory back to the system after a peak: the C library keeps what is freed between what is still used.

The GNU C library raises its thresholds for giving back by itself, up to 64 MiB, when large blocks are freed. Fixed low
ones would make every large block cost its page faults: an append of 64 KiB took twice the processor time (measured).
So the node asks for it, once, when a peak of requests or answers is over.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from typing import Final

DELAY_S: Final = 1.0
"""After the end of a peak: what was answered last is freed by then."""


class FreedMemory:
    """One per node. Belongs to the event loop; the work is done by a thread, without the interpreter's lock."""

    def __init__(self) -> None:
        try:
            self._trim: Callable[[int], int] | None = ctypes.CDLL(None).malloc_trim
        except (OSError, AttributeError):  # another C library
            self._trim = None
        self._timer: asyncio.TimerHandle | None = None

    def return_soon(self) -> None:
        """A peak is over."""
        if self._trim is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DELAY_S, self._return)

    def _return(self) -> None:
        self._timer = None
        assert self._trim is not None
        asyncio.get_running_loop().run_in_executor(None, self._trim, 0)

    def close(self) -> None:
        """The end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
