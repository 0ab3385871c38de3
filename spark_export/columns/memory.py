"""Keeps freed memory for the reader's next slab, where the C library would return it to the system.

Fresh memory from the system comes page by page, each set to zero first. With rows of 140 bytes, that costs a tenth of
the time for fetching, checking and decoding. The C library keeps freed memory too, but only as much as two buffers. A
slab with its columns is larger.
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
