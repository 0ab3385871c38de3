"""A map of keys to bytes that grows without a pause: many small dicts, each of which moves on its own when it is full.

One dict of a million entries that grows stops everything for 60 ms while it moves them, one of ten million for half a
second, and all nodes of a cluster at the same key. Which dict a key is in depends on this process's hashes, so the
order of a table is nobody's business: what must be in order is sorted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from xxhash import xxh64_intdigest

from statemachine.digest import SEED

DICTS: Final = 256
"""Each has 40,000 entries of ten million, and moves them within 2 ms."""
SHIFT: Final = 56
"""The upper 8 bits of a key's xxh64 choose its dict."""


class Table:
    """Like a dict as far as it goes; who has a key's hash finds its dict in `dicts`, by the upper bits (SHIFT)."""

    __slots__ = ("dicts",)

    def __init__(self) -> None:
        self.dicts: list[dict[bytes, bytes]] = [{} for _ in range(DICTS)]

    def get(self, key: bytes) -> bytes | None:
        """What is kept under the key."""
        return self.dicts[xxh64_intdigest(key, SEED) >> SHIFT].get(key)

    def pop(self, key: bytes) -> bytes | None:
        """The same; it is gone then."""
        return self.dicts[xxh64_intdigest(key, SEED) >> SHIFT].pop(key, None)

    def __getitem__(self, key: bytes) -> bytes:
        return self.dicts[xxh64_intdigest(key, SEED) >> SHIFT][key]

    def __setitem__(self, key: bytes, record: bytes) -> None:
        self.dicts[xxh64_intdigest(key, SEED) >> SHIFT][key] = record

    def __contains__(self, key: bytes) -> bool:
        return key in self.dicts[xxh64_intdigest(key, SEED) >> SHIFT]

    def __iter__(self) -> Iterator[bytes]:
        for each in self.dicts:
            yield from each

    def values(self) -> Iterator[bytes]:
        """All that is kept, in no order."""
        for each in self.dicts:
            yield from each.values()
