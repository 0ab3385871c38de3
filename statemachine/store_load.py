"""Builds a store from what a walk of one gave: the way back from a snapshot."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sortedcontainers import SortedList

from statemachine.digest import set_digest, state_row_hash
from statemachine.store import RECORD, RECORD_SIZE, STORED, STORED_SIZE, Store, record_mod


class Loader:
    """Takes the keys of `Store.walk` in its order; `finish` gives a store equal to the one that was walked."""

    def __init__(self, revision: int, compacted: int) -> None:
        if not 1 <= compacted <= revision:
            raise ValueError(f"revision {revision} with the oldest at {compacted}")
        self._store = Store()
        self._store.revision, self._store.compacted = revision, compacted
        self._steps: list[list[bytes]] = [[] for _ in range(revision - compacted)]
        self._sizes = [0] * (revision - compacted)
        self._last = b""

    def add(self, key: bytes, records: Sequence[bytes]) -> None:
        """Takes the next records. Raises ValueError where they are not what a walk gives."""
        if not key or key < self._last or not records:
            raise ValueError(f"key {key!r} comes after {self._last!r}")
        self._last = key
        store = self._store
        for stored in records:
            if len(stored) < STORED_SIZE:
                raise ValueError(f"a version of key {key!r} is cut short")
            create, mod, version, index = STORED.unpack_from(stored)
            value = stored[STORED_SIZE:]
            self._replace(key, mod)
            if version == 0:
                if create or value or key not in store.history:
                    raise ValueError(f"key {key!r} is deleted at revision {mod} without having been there")
                record = RECORD.pack(0, mod, 0, index, 0)
                store.history[key].append(record)
                self._count(key, mod, record)
            else:
                if not 1 <= create <= mod:
                    raise ValueError(f"key {key!r} was created at {create}, after revision {mod}")
                row_hash = state_row_hash(key, value, create, mod, version)
                store.head[key] = RECORD.pack(create, mod, version, index, row_hash) + value
            if mod > store.compacted:
                self._steps[mod - store.compacted - 1].append(key)

    def _replace(self, key: bytes, mod: int) -> None:
        """A version of revision `mod` comes: what was the newest so far goes into history."""
        store = self._store
        old = store.head.pop(key, None)
        past = store.history.get(key)
        newest = old if old is not None else past[-1] if past else None
        if not (0 if newest is None else record_mod(newest)) < mod <= store.revision:
            raise ValueError(f"versions of key {key!r} do not follow each other up to revision {store.revision}")
        if old is not None:
            store.keep(key, old)
            self._count(key, mod, old)

    def _count(self, key: bytes, mod: int, record: bytes) -> None:
        """The record went into history with the step that made revision `mod`."""
        store = self._store
        if mod <= store.compacted:
            raise ValueError(f"key {key!r} has a version that was replaced below the oldest that can be read")
        size = len(key) + len(record)
        store.history_bytes += size
        self._sizes[mod - store.compacted - 1] += size

    def finish(self) -> Store:
        """The store. Raises ValueError where revisions are missing."""
        store = self._store
        if not all(self._steps):
            raise ValueError("a revision above the oldest changed no key")
        store.changed = deque(tuple(step) for step in self._steps)
        store.sizes = deque(self._sizes)
        store.live = SortedList(store.head)
        store.gone = SortedList(key for key in store.history if key not in store.head)
        _, store.xor, store.sum_low, store.sum_high = set_digest(
            RECORD.unpack_from(record)[4] for record in store.head.values()
        )
        return store


assert RECORD_SIZE == STORED_SIZE + 8, "the row hash is the last field, so that a slice leaves it out"
