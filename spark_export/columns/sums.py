"""Checks the CRCs of all pieces of a buffer in one pass over it.

A CRC is linear: XORing a piece's stored CRC into the four bytes behind it cancels the piece's own contribution. After
such an XOR behind every piece, one pass of the hardware's CRC over the buffer must give the stored CRC of the last
piece. One wrong piece always shows. Several wrong pieces together escape with a chance of 2**-32, as with any CRC.

Each such XOR reads and writes memory that no cache holds any more, and so does its reversal. When the caller knows the
bytes behind every piece (the magic of the next), they are overwritten without a read and not restored. That saves a
third of the time.

A header with its own CRC at its end has the same CRC for every content (the residue). So a header and the data behind
it are one piece. Its CRC combines the data's CRC with a contribution of the residue that depends only on the length of
the data.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final

import google_crc32c
import numpy as np
import numpy.typing as npt

from raftlog.spark_export.columns.slab import Ints

Crcs = npt.NDArray[np.uint32]
RESIDUE: Final = np.uint32(0x48674BC7)
"""CRC32C of anything followed by its own CRC32C."""
_WORD: Final = 4
_SHORT: Final = 4_096  # data up to so many bytes: what becomes of the residue is looked up


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of a buffer, in order: where each ends, and its CRC.

    `ends` is a range when the pieces lie at even distances. `crcs` is a single number when all have the same. `behind`
    has the four bytes behind each piece, or one value for all, when the caller knows them.
    """

    ends: Ints | range
    crcs: Crcs | np.uint32
    behind: Crcs | np.uint32 | None = None


def crcs_hold(buffer: memoryview, pieces: list[Pieces], smallest: int) -> bool:
    """Whether pieces that, taken together, partition the buffer have these CRCs.

    The check writes to the buffer. If it returns True, the four bytes behind each piece with a known `behind` have
    changed. `smallest` is the length of the shortest piece: below four bytes, the words behind two pieces would
    overlap.
    """
    if smallest < _WORD or len(buffer) < _WORD:
        return False  # the caller looks at each piece by itself
    last: np.uint32 | None = None
    inner: list[Pieces] = []
    for piece in pieces:
        ends, crcs, behind = piece.ends, piece.crcs, piece.behind
        if len(ends) and ends[-1] == len(buffer):
            ends = ends[:-1]
            last, crcs = (crcs, crcs) if isinstance(crcs, np.uint32) else (crcs[-1], crcs[:-1])
            behind = behind[:-1] if isinstance(behind, np.ndarray) else behind
        if len(ends):
            inner.append(Pieces(ends, crcs, behind))
    for piece in inner:
        _xor(buffer, piece)
    whole: int = google_crc32c.value(np.frombuffer(buffer, np.uint8))  # a memoryview it would not take, but uncopied
    holds = last is not None and whole == int(last)
    for piece in inner:
        if piece.behind is None:
            _xor(buffer, piece)
        elif not holds:
            _words(buffer)[piece.ends] = piece.behind
    return holds


def _xor(buffer: memoryview, piece: Pieces) -> None:
    """Into the word behind each piece. Done twice it is undone, where nothing is known of that word."""
    ends = piece.ends
    if piece.behind is not None:
        _words(buffer)[ends] = piece.crcs ^ piece.behind
    elif isinstance(ends, range):
        np.ndarray((len(ends),), "<u4", buffer, ends[0], (ends.step,)).__ixor__(piece.crcs)
    else:
        _words(buffer)[ends] ^= piece.crcs


def _words(buffer: memoryview) -> Crcs:
    """The four bytes at every position."""
    return np.ndarray((len(buffer) - _WORD + 1,), "<u4", buffer, 0, (1,))


def behind_headers(lengths: Ints, crcs: Crcs) -> Crcs:
    """CRCs of headers, each with its own at its end, and the data of so many bytes and that CRC behind it."""
    if int(lengths.max()) <= _SHORT:
        return _residues()[lengths] ^ crcs
    several, which = np.unique(lengths, return_inverse=True)
    return np.array([_residue_behind(int(length)) for length in several], np.uint32)[which] ^ crcs


@cache
def _residues() -> Crcs:
    return np.array([_residue_behind(length) for length in range(_SHORT + 1)], np.uint32)


def _residue_behind(length: int) -> int:
    """The contribution of the residue to the CRC of a header and `length` bytes behind it.

    It is the CRC of the header and zeros, XORed with the CRC of the zeros alone.
    """
    zeros = bytes(length)
    found: int = google_crc32c.extend(int(RESIDUE), zeros) ^ google_crc32c.value(zeros)
    return found
