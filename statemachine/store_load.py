"""Builds a store from the rows of a walk: the way back from a snapshot.

`raftlog.statemachine.snapshot` calls it. Keys come in order, so their lists need no sorting: sorting ten million keys
in the order of a hash table would stop every thread of the process for many seconds. Most keys have one readable
version; these are added in one loop without a function call each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sortedcontainers import SortedList
from xxhash import xxh64_intdigest

from raftlog.statemachine.digest import LOW, SEED, state_row_hash
from raftlog.statemachine.store import RECORD, RECORD_SIZE, STORED, STORED_SIZE, Store
from raftlog.statemachine.store_walk import WalkRow
from raftlog.statemachine.table import SHIFT


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
        self._live: list[bytes] = []  # keys in order
        self._gone: list[bytes] = []
        self._key = b""
        self._newer = 0  # mod revision of the record that replaced the one to come; 0: there is none

    def add_rows(self, rows: Iterable[WalkRow]) -> int:
        """Takes the next rows of a walk; returns their number. Raises ValueError if they are not rows of a walk.

        Rows that are made one by one are no garbage to collect: a collection would walk the lists of all keys so far.
        """
        store, chain = self._store, xxh64_intdigest
        head, compacted, revision = store.head.dicts, store.compacted, store.revision
        count = xor = low = high = 0
        for key, records in rows:
            count += 1
            if len(records) == 1 and self._key < key and len(stored := records[0]) >= STORED_SIZE:
                create, mod, version, index = STORED.unpack_from(stored)
                if version and 1 <= create <= mod <= revision:
                    value = stored[STORED_SIZE:]
                    key_hash = chain(key, SEED)
                    # `digest.state_row_hash`: the numbers are packed already.
                    row_hash = chain(stored[8:16], chain(stored[:8], chain(value, key_hash)))
                    row_hash = chain(stored[16:24], row_hash)
                    head[key_hash >> SHIFT][key] = RECORD.pack(create, mod, version, index, row_hash) + value
                    xor ^= row_hash
                    low += row_hash & LOW
                    high += row_hash >> 32
                    self._live.append(key)
                    if mod > compacted:
                        self._note_change(key, mod, index, len(key))
                    self._key, self._newer = key, mod
                    continue
            self.add(key, records)
        store.xor ^= xor
        store.sum_low += low
        store.sum_high += high
        return count

    def add(self, key: bytes, records: Sequence[bytes]) -> None:
        """Takes the next records, newest first. Raises ValueError if they are not records of a walk."""
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
            if version:
                store.head[key] = record
                store.xor ^= row_hash
                store.sum_low += row_hash & LOW
                store.sum_high += row_hash >> 32
            else:
                store.tombs[key] = record
            (self._live if version else self._gone).append(key)
        if not is_old:
            self._note_change(key, mod, index, len(key) + (0 if version else RECORD_SIZE))
        self._newer = mod

    def _note_change(self, key: bytes, mod: int, index: int, size: int) -> None:
        """The revision `mod`, which can be read, changed that key; an older record may still come."""
        place = mod - self._store.compacted - 1
        self._replaced[place][key] = None
        self._sizes[place] += size
        if self._indexes[place] not in (0, index):
            raise ValueError(f"revision {mod} was made by {self._indexes[place]} and by {index}")
        self._indexes[place] = index

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
        store.live, store.gone = SortedList(self._live), SortedList(self._gone)
        return store
