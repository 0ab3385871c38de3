"""Returns freed memory to the operating system.

The HTTP server calls it after a peak of requests or answers, and a sink before it runs. The C library keeps freed
memory that lies between used blocks. The GNU C library also raises its thresholds for returning memory, up to 64 MiB,
when large blocks are freed. Fixed low thresholds would make every large block of a node cost its page faults: an append
of 64 KiB took twice the processor time (measured). So the node returns memory once, when a peak is over.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Final

DELAY_S: Final = 1.0
"""Seconds after the end of a peak; the last answers are freed by then."""

_M_MMAP_THRESHOLD: Final = -3  # of mallopt
_LARGE_BYTES: Final = 128 << 10  # the threshold with which the C library begins


def return_large_blocks() -> None:
    """Has the C library return each freed block of 128 KiB or more at once: its threshold no longer rises.

    For a process that passes on large values batch by batch, and whose bound is memory. Call it again at will.
    """
    with suppress(OSError, AttributeError):  # the C library is not GNU's
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


class FreedMemory:
    """One per node. Belongs to the event loop; a thread does the work without the interpreter's lock."""

    def __init__(self) -> None:
        try:
            self._trim: Callable[[int], int] | None = ctypes.CDLL(None).malloc_trim
        except (OSError, AttributeError):  # the C library is not GNU's
            self._trim = None
        self._timer: asyncio.TimerHandle | None = None

    def return_soon(self) -> None:
        """A peak is over: returns memory `DELAY_S` seconds later."""
        if self._trim is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DELAY_S, self._return)

    def _return(self) -> None:
        self._timer = None
        assert self._trim is not None
        asyncio.get_running_loop().run_in_executor(None, self._trim, 0)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
