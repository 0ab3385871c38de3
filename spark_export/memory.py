"""Keeps the memory that a reader lets go of for its next slab, where the C library would give it back to the system.

Megabytes that are asked for anew come page by page, each set to zero first: of a row of 140 bytes that is a tenth of
the time that fetching, checking and decoding take. The C library learns from what is freed how much to keep, but only
as much as two buffers, and a slab with its columns is more.
"""

import ctypes
from contextlib import suppress
from functools import cache
from typing import Final

KEPT_BYTES: Final = 64 << 20
"""At most so much free memory stays with the process: five slabs with their columns."""
_LARGE_BYTES: Final = 32 << 20  # from here on a buffer is the system's own, and goes back at once: glibc takes no more
_TRIM_THRESHOLD: Final = -1  # malloc.h: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
_MMAP_THRESHOLD: Final = -3


@cache
def keep_freed() -> None:
    """For this process, from now on. Does nothing where the C library is not glibc."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
