"""Defines the errors, the bound of numbers and the checksum that every codec uses."""

from __future__ import annotations

from struct import Struct
from typing import Final

import google_crc32c

INDEX_MAX: Final = 2**53 - 1
"""Indexes, terms, revisions, sessions and sequences stay exact as JSON numbers (docs/promises.md: keys are bytes)."""


class Corrupt(ValueError):
    """Bytes that fail their check: damage on disk, or a peer that does not speak the protocol."""


class UnknownVersion(ValueError):
    """Intact bytes of a version, kind or flag that this code does not know: upgrade before going on."""


def crc32c(data: bytes | memoryview, start: int = 0) -> int:
    """CRC32C (Castagnoli) of `data`, continuing from `start`."""
    crc: int = google_crc32c.extend(start, data if type(data) is bytes else bytes(data))
    return crc


CRC: Final = Struct("<I")
