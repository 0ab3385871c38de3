"""Walks a store for a snapshot: every key with its readable versions, in slices, while writes go on.

Most keys of a large store have one version that can be read. For these the loop calls no function of its own: with ten
million keys each call costs seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from xxhash import xxh64_intdigest

from raftlog.statemachine.digest import SEED
from raftlog.statemachine.store import RECORD_SIZE, STORED_SIZE, Store, is_delete, mod_of, record_mod
from raftlog.statemachine.table import SHIFT

WalkRow = tuple[bytes, Sequence[bytes]]
"""A key with records of it."""

SLICE_KEYS: Final = 250
"""Keys that are looked up at once, and versions that are passed over before others run. Whole slices fill a frame
(`snapshot.FRAME_ITEMS_MAX`)."""
SLICE_VERSIONS: Final = 64
"""Versions of one key that a row has."""
SLICE_BYTES: Final = 64 << 10
"""So many bytes of records end a slice, and a row of one key: values may be large."""


def walk(store: Store, oldest: int, newest: int) -> Iterator[list[WalkRow]]:
    """Every key with its versions from `oldest` to `newest`, newest first, in key order, in slices.

    Records are bytes for `store_load.Loader.add`. A key with many versions has several rows. The store may change
    between two slices. If it was pinned at the start, the walk still returns the versions of the start. There may be
    far more newer versions than old ones; for many of them in a row the walk yields an empty slice.
    """
    rows: list[WalkRow] = []
    size = passed = 0
    head = store.head.dicts
    keys = list(islice(store._all_keys(b"", None), SLICE_KEYS))
    while keys:
        for key in keys:
            record = head[xxh64_intdigest(key, SEED) >> SHIFT].get(key)
            # Whether the key's newest record is all that a walk gives of it.
            if record is not None and (
                (mod := mod_of(record)[0]) <= oldest or (mod <= newest and store._older(key, mod) is None)
            ):
                rows.append((key, (record[:STORED_SIZE] + record[RECORD_SIZE:],)))
                size += len(record)
            else:
                for stored in _versions(store, key, oldest, newest):
                    if stored:
                        rows.append((key, stored))
                        size += sum(map(len, stored))
                    else:
                        passed += 1
                    if size >= SLICE_BYTES or passed == SLICE_KEYS:
                        yield rows
                        if rows and passed == SLICE_KEYS:
                            yield []
                        rows, size, passed = [], 0, passed % SLICE_KEYS
            if size >= SLICE_BYTES:
                yield rows
                rows, size = [], 0
        if rows:
            yield rows
            rows, size = [], 0
        keys = list(islice(store._all_keys(keys[-1], None, inclusive=False), SLICE_KEYS))


def _versions(store: Store, key: bytes, oldest: int, newest: int) -> Iterator[list[bytes]]:
    """What a walk gives of a key, in pieces; an empty one for each version that it passes over."""
    record = store.head.get(key) or store.tombs.get(key)
    stored: list[bytes] = []
    size = 0
    while record is not None:
        mod = record_mod(record)
        if mod <= newest and (mod > oldest or not is_delete(record)):
            stored.append(record[:STORED_SIZE] + record[RECORD_SIZE:])
            size += len(record)
            if len(stored) == SLICE_VERSIONS or size >= SLICE_BYTES:
                yield stored
                stored, size = [], 0
        else:
            yield []
        record = store._older(key, mod) if mod > oldest else None
    if stored:
        yield stored
