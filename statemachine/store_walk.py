"""Walks a store for a snapshot: every key with what can be read of it, in slices, while writes go on.

Most keys of a large store have one version and no more: each costs a look at its record, and no generator of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from statemachine.store import RECORD_SIZE, STORED_SIZE, Store, is_delete, record_mod

Row = tuple[bytes, Sequence[bytes]]
"""A key with records of it."""

SLICE_KEYS: Final = 256
"""Keys that are looked up at once, and versions that are passed over before others run."""
SLICE_VERSIONS: Final = 64
"""Versions of one key that a row has."""
SLICE_BYTES: Final = 64 << 10
"""So many bytes of records end a slice: values may be large."""


def walk(store: Store, oldest: int, newest: int) -> Iterator[list[Row]]:
    """Every key with what reads from `oldest` to `newest` may see of it, newest first, in key order, in slices.

    Records are bytes for `store_load.Loader.add`. A key with many versions has several rows. The store may change
    between two slices: what comes stays as of the start, if the store was pinned then. Versions that are newer than
    that have nothing to give, and may be far more than the others: an empty slice comes for so many of them.
    """
    rows: list[Row] = []
    size = passed = 0
    keys = list(islice(store._all_keys(b"", None), SLICE_KEYS))
    while keys:
        for key in keys:
            record = store.head.get(key)
            if record is not None and _is_alone(store, key, record, oldest, newest):
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


def _is_alone(store: Store, key: bytes, record: bytes, oldest: int, newest: int) -> bool:
    """Whether the key's newest record is all that a walk gives of it: true of most keys of a large store."""
    mod = record_mod(record)
    if mod <= oldest:
        return True
    if mod > newest:
        return False
    return store._older(key, mod) is None


def _versions(store: Store, key: bytes, oldest: int, newest: int) -> Iterator[list[bytes]]:
    """What a walk gives of a key, in pieces; an empty one for each version that it passes over."""
    record = store.head.get(key) or store.tombs.get(key)
    stored: list[bytes] = []
    while record is not None:
        mod = record_mod(record)
        if mod <= newest and (mod > oldest or not is_delete(record)):
            stored.append(record[:STORED_SIZE] + record[RECORD_SIZE:])
            if len(stored) == SLICE_VERSIONS:
                yield stored
                stored = []
        else:
            yield []
        record = store._older(key, mod) if mod > oldest else None
    if stored:
        yield stored
