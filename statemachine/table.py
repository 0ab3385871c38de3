"""Maps keys to bytes and grows without a pause: many small dicts, each of which is resized on its own.

The store uses it. Resizing one dict of a million entries stops everything for 60 ms, one of ten million for half a
second, and on all nodes of a cluster at the same key. The dict of a key depends on this process's hashes, so no code
may rely on the order of a table: values that need an order are sorted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from xxhash import xxh64_intdigest

from raftlog.statemachine.digest import SEED

DICTS: Final = 256
"""Each has 40,000 entries of ten million, and moves them within 2 ms."""
SHIFT: Final = 56
"""The upper 8 bits of a key's xxh64 choose its dict."""


class Table:
    """Like a dict as far as it goes; code that has a key's hash finds its dict in `dicts`, by the upper bits
    (SHIFT)."""

    __slots__ = ("dicts",)

    def __init__(self) -> None:
        self.dicts: list[dict[bytes, bytes]] = [{} for _ in range(DICTS)]

    def get(self, key: bytes) -> bytes | None:
        """The value of the key."""
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
