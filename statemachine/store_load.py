"""Builds a store from what a walk of one gave: the way back from a snapshot."""

from __future__ import annotations

from collections.abc import Sequence

from sortedcontainers import SortedList

from statemachine.digest import set_digest, state_row_hash
from statemachine.store import RECORD, RECORD_SIZE, STORED, STORED_SIZE, Store


class Loader:
    """Takes the keys of `store_walk.walk` in its order; `finish` gives a store equal to the one that was walked."""

    def __init__(self, revision: int, compacted: int) -> None:
        if not 1 <= compacted <= revision:
            raise ValueError(f"revision {revision} with the oldest at {compacted}")
        self._store = Store(revision, compacted)
        # Of each revision above `compacted`: keys with what they replaced, bytes, log index.
        self._replaced: list[dict[bytes, bytes | None]] = [{} for _ in range(revision - compacted)]
        self._sizes = [0] * (revision - compacted)
        self._indexes = [0] * (revision - compacted)
        self._key = b""
        self._newer = 0  # mod revision of the record that replaced the one to come; 0: there is none

    def add(self, key: bytes, records: Sequence[bytes]) -> None:
        """Takes the next records, newest first. Raises ValueError where they are not what a walk gives."""
        if not records or not self._key <= key or not key:
            raise ValueError(f"key {key!r} comes after {self._key!r}")
        if key != self._key:
            self._key, self._newer = key, 0
        for stored in records:
            if len(stored) < STORED_SIZE:
                raise ValueError(f"a version of key {key!r} is cut short")
            self._add(key, stored)

    def _add(self, key: bytes, stored: bytes) -> None:
        store, newer = self._store, self._newer
        create, mod, version, index = STORED.unpack_from(stored)
        value = stored[STORED_SIZE:]
        is_old = mod <= store.compacted
        if version == 0:
            if create or value or is_old:
                raise ValueError(f"the delete of key {key!r} at revision {mod} is none that can be read")
            record = RECORD.pack(0, mod, 0, index, 0)
        else:
            if not 1 <= create <= mod:
                raise ValueError(f"key {key!r} was created at {create}, after revision {mod}")
            row_hash = 0 if newer else state_row_hash(key, value, create, mod, version)  # of the live keys' digest
            record = RECORD.pack(create, mod, version, index, row_hash) + value
        if newer:
            if not store.compacted < newer or not mod < newer:
                raise ValueError(f"version {mod} of key {key!r} cannot come after {newer}")
            self._replaced[newer - store.compacted - 1][key] = record
            self._sizes[newer - store.compacted - 1] += len(record) if version else 0
        else:
            if mod > store.revision:
                raise ValueError(f"key {key!r} has revision {mod}, the newest is {store.revision}")
            (store.head if version else store.tombs)[key] = record
        if not is_old:
            place = mod - store.compacted - 1
            self._replaced[place][key] = None
            self._sizes[place] += len(key) + (0 if version else RECORD_SIZE)
            if self._indexes[place] not in (0, index):
                raise ValueError(f"revision {mod} was made by {self._indexes[place]} and by {index}")
            self._indexes[place] = index
        self._newer = mod

    def finish(self) -> Store:
        """The store. Raises ValueError where revisions are missing."""
        store = self._store
        for index, size, replaced in zip(self._indexes, self._sizes, self._replaced, strict=True):
            if not replaced:
                raise ValueError("a revision above the oldest changed no key")
            if len(replaced) == 1:
                store.steps.append((index, size, *replaced.popitem()))
            else:
                store.steps.append((index, size, None, replaced))
            store.history_bytes += size
        store.live = SortedList(store.head)
        store.gone = SortedList(store.tombs)
        _, store.xor, store.sum_low, store.sum_high = set_digest(
            RECORD.unpack_from(record)[4] for record in store.head.values()
        )
        return store
