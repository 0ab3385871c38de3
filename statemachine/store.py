"""An ordered map of keys to their versions: etcd's revisions, ranges, time travel, and a bounded history.

The newest version of a live key is one packed bytes object in a dict: no Python object per field, nothing for the
garbage collector to walk. Versions that were replaced are kept, oldest first, only for keys that have some; they go
when the revision that replaced them is no longer above `compacted`. What a read may see depends on `compacted` alone;
when the memory is given back (`sweep`) does not, so that no single request has to do it all, and a walk as of a
revision can hold it back while writes go on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from struct import Struct
from typing import Any, Final

from sortedcontainers import SortedList
from xxhash import xxh64_intdigest

from statemachine.commands import Limits, Version
from statemachine.digest import LOW, SEED, pack_long
from statemachine.effects import Change

# create, mod, version, log index, row hash; then the value. Version 0 is a delete: create and hash 0, no value.
RECORD: Final = Struct("<QQQQQ")
RECORD_SIZE: Final = RECORD.size
_mod_of: Final = Struct("<8xQ").unpack_from
_version_of: Final = Struct("<16xQ").unpack_from

STORED: Final = Struct("<QQQQ")
STORED_SIZE: Final = STORED.size
"""A record in a snapshot: the same without the row hash, which is computed anew."""

LIST_MAX: Final = 64
"""Replaced versions of one key up to which a list, smaller than a deque, drops its first quickly enough."""
SWEEP_STEPS: Final = 4
"""Steps that one sweep takes up: more than the one that a request adds, so that it catches up."""
SLICE_KEYS: Final = 256
"""Keys that a walk looks up at once."""
SLICE_VERSIONS: Final = 64
"""Versions of one key that a walk yields at once."""

_new: Final = tuple.__new__  # a NamedTuple without the cost of its constructor


class Compacted(LookupError):
    """The revision is below the kept history; `oldest` is the oldest that can be read."""

    def __init__(self, revision: int, oldest: int) -> None:
        super().__init__(f"revision {revision} is compacted: the oldest that can be read is {oldest}")
        self.oldest = oldest


class FutureRevision(LookupError):
    """The store has not reached that revision; `newest` is the one that it has."""

    def __init__(self, revision: int, newest: int) -> None:
        super().__init__(f"revision {revision} is not reached yet: the newest is {newest}")
        self.newest = newest


def prefix_end(prefix: bytes) -> bytes:
    """The end of the range of all keys with that prefix; b"" (to the last key) where no key is above them all."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else b""


def next_key(key: bytes) -> bytes:
    """The smallest key above it: where the next page of a range starts."""
    return key + b"\0"


def _unpack(record: bytes) -> Version:
    create, mod, version, index, _ = RECORD.unpack_from(record)
    return _new(Version, (record[RECORD_SIZE:], create, mod, version, index))


class Store:
    """The map. Changes come in steps: `put` and `delete` under `revision + 1`, then one `commit`; queries never see
    a step that is half done because nothing runs between them."""

    __slots__ = (
        "_dead", "_pins", "_step_bytes", "_step_keys", "changed", "compacted", "gone", "head", "history",
        "history_bytes", "live", "revision", "sizes", "sum_high", "sum_low", "xor",
    )  # fmt: skip

    def __init__(self) -> None:
        self.revision = 1
        self.compacted = 1  # the oldest revision that can be read
        self.history_bytes = 0  # of what replaced versions still readable hold
        self.xor = self.sum_low = self.sum_high = 0  # digest of the live keys
        self.head: dict[bytes, bytes] = {}  # `RECORD` bytes of the newest version of each live key
        self.history: dict[bytes, list[bytes] | deque[bytes]] = {}
        self.live: Any = SortedList()  # the keys of head
        self.gone: Any = SortedList()  # keys that are deleted, but still have history
        # For each revision above `compacted`, in order: the keys it changed, and the bytes it moved into history.
        self.changed: deque[tuple[bytes, ...]] = deque()
        self.sizes: deque[int] = deque()
        self._dead: deque[tuple[bytes, ...]] = deque()  # steps whose replaced versions may be dropped
        self._pins: list[int] = []  # walks under way: nothing that they may see is dropped
        self._step_keys: list[bytes] = []
        self._step_bytes = 0

    def __len__(self) -> int:
        return len(self.head)

    def digest(self) -> tuple[int, int, int, int]:
        """Digest of the live keys, as the fields of `SetDigest`."""
        return len(self.head), self.xor, self.sum_low, self.sum_high

    # -- changes ----------------------------------------------------------------------------------------------

    def put(self, key: bytes, value: bytes, index: int, is_explicit: bool = False) -> Change:
        """Sets the key under the next revision; `index` is the log index of the request. `commit` ends the step."""
        mod = self.revision + 1
        old = self.head.get(key)
        if old is None:
            create, version, prior, old_hash = mod, 1, 0, 0
            if key in self.history:
                self.gone.remove(key)
            self.live.add(key)
        else:
            create, _, version, prior, old_hash = RECORD.unpack_from(old)
            version += 1
            self.keep(key, old)
            self._step_bytes += len(key) + len(old)
            self.sum_low -= old_hash & LOW
            self.sum_high -= old_hash >> 32
        new_hash = xxh64_intdigest(value, xxh64_intdigest(key, SEED))
        new_hash = xxh64_intdigest(pack_long(mod), xxh64_intdigest(pack_long(create), new_hash))
        new_hash = xxh64_intdigest(pack_long(version), new_hash)
        self.xor ^= old_hash ^ new_hash
        self.sum_low += new_hash & LOW
        self.sum_high += new_hash >> 32
        self.head[key] = RECORD.pack(create, mod, version, index, new_hash) + value
        self._step_keys.append(key)
        return _new(Change, (key, value, prior, create, version, is_explicit))

    def delete(self, key: bytes, index: int, is_explicit: bool = False) -> Change | None:
        """Deletes the key under the next revision; None where there is none. `commit` ends the step."""
        old = self.head.pop(key, None)
        if old is None:
            return None
        prior, old_hash = RECORD.unpack_from(old)[3:]
        self.xor ^= old_hash
        self.sum_low -= old_hash & LOW
        self.sum_high -= old_hash >> 32
        self.keep(key, old)
        self.keep(key, RECORD.pack(0, self.revision + 1, 0, index, 0))
        self._step_bytes += 2 * len(key) + len(old) + RECORD_SIZE
        self.live.remove(key)
        self.gone.add(key)
        self._step_keys.append(key)
        return _new(Change, (key, None, prior, 0, 0, is_explicit))

    def keep(self, key: bytes, record: bytes) -> None:
        """Moves a record into history."""
        past = self.history.get(key)
        if past is None:
            self.history[key] = [record]
        else:
            if len(past) == LIST_MAX and type(past) is list:
                past = self.history[key] = deque(past)
            past.append(record)

    def commit(self, limits: Limits) -> None:
        """Ends a step: it gets its revision if it changed something, and what is now too old is trimmed."""
        if not self._step_keys:
            return
        self.revision += 1
        self.changed.append(tuple(self._step_keys))
        self.sizes.append(self._step_bytes)
        self.history_bytes += self._step_bytes
        self._step_keys.clear()
        self._step_bytes = 0
        self.trim(limits)

    def trim(self, limits: Limits) -> None:
        """Raises `compacted` as far as the limits of history ask: by revisions and bytes, never by time."""
        if self.revision - self.compacted > limits.history_revisions_max:
            self.compact(self.revision - limits.history_revisions_max)
        while self.history_bytes > limits.history_bytes_max:
            self.compact(self.compacted + 1)
        if self._dead:
            self.sweep()

    def compact(self, revision: int) -> None:
        """Makes `revision` (not above the newest) the oldest that can be read, unless the oldest is above it."""
        while self.compacted < revision:
            self._dead.append(self.changed.popleft())
            self.history_bytes -= self.sizes.popleft()
            self.compacted += 1

    def sweep(self) -> None:
        """Drops versions that nobody can read any more: a few steps' worth, none while a walk needs them."""
        if self._pins:
            return
        for _ in range(min(SWEEP_STEPS, len(self._dead))):
            for key in self._dead.popleft():
                if key in self.history:
                    self._drop_old(key)

    @property
    def is_swept(self) -> bool:
        """Whether all that nobody can read any more is dropped."""
        return not self._dead

    def _drop_old(self, key: bytes) -> None:
        past = self.history[key]
        head = self.head.get(key)
        while past:
            if _version_of(past[0])[0] == 0:
                until = _mod_of(past[0])[0]  # a delete with nothing before it is the same as nothing
            elif len(past) > 1:
                until = _mod_of(past[1])[0]
            else:
                assert head is not None, "the history of a key that is gone ends with its delete"
                until = _mod_of(head)[0]
            if until > self.compacted:
                return
            if isinstance(past, list):
                past.pop(0)
            else:
                past.popleft()
        del self.history[key]
        if head is None:
            self.gone.remove(key)

    # -- reads ------------------------------------------------------------------------------------------------

    def check(self, at: int) -> None:
        """Raises Compacted or FutureRevision where the revision cannot be read."""
        if at > self.revision:
            raise FutureRevision(at, self.revision)
        if at < self.compacted:
            raise Compacted(at, self.compacted)

    def mod(self, key: bytes) -> int:
        """The key's mod revision, 0 where it is missing."""
        record = self.head.get(key)
        return 0 if record is None else _mod_of(record)[0]

    def get(self, key: bytes, at: int | None = None) -> Version | None:
        """The key's version, as of revision `at` where given. Raises Compacted or FutureRevision."""
        if at is None:
            record = self.head.get(key)
        else:
            self.check(at)
            record = self._record_at(key, at)
        return None if record is None else _unpack(record)

    def _record_at(self, key: bytes, at: int) -> bytes | None:
        """The record that was the newest at that revision; None where there was none."""
        head = self.head.get(key)
        if head is not None and _mod_of(head)[0] <= at:
            return head
        past = self.history.get(key)
        if past is None:
            return None
        place = bisect_right(past, at, key=record_mod)
        if place == 0 or _version_of(past[place - 1])[0] == 0:
            return None
        return past[place - 1]

    def keys(self, start: bytes, end: bytes | None) -> Iterator[bytes]:
        """The live keys of [start, end) in order; not to be used across a change."""
        keys: Iterator[bytes] = self.live.irange(start, end or None, (True, False))
        return keys

    def count(self, start: bytes, end: bytes | None, at: int | None = None) -> int:
        """How many keys [start, end) has (as of revision `at`): in logarithmic time, plus what changed since `at`."""
        live = _between(self.live, start, end)
        if at is None or at == self.revision:
            return live
        self.check(at)
        changes = self.revision - at
        if live + _between(self.gone, start, end) <= changes:
            return sum(self._record_at(key, at) is not None for key in self._all_keys(start, end))
        since: dict[bytes, None] = {}
        for step in islice(reversed(self.changed), changes):
            for key in step:
                if start <= key and (not end or key < end):
                    since[key] = None
        for key in since:
            live += (self._record_at(key, at) is not None) - (key in self.head)
        return live

    def _all_keys(self, start: bytes, end: bytes | None, inclusive: bool = True) -> Iterator[bytes]:
        """Live keys and those that are gone but have history."""
        live = self.live.irange(start, end or None, (inclusive, False))
        return merge(live, self.gone.irange(start, end or None, (inclusive, False))) if self.gone else live

    def range(
        self, start: bytes, end: bytes | None, limit: int, at: int | None = None, *,
        keys_only: bool = False, after: bytes | None = None, bytes_max: int | None = None,
    ) -> tuple[list[tuple[bytes, Version]], int, bool]:  # fmt: skip
        """Keys of [start, end) in order with their versions, how many there are in all, and whether more follow.

        `end` None or b"": to the last key. `after` goes on behind that key (the count stays that of the whole range).
        At most `limit`, and no more once they hold `bytes_max` bytes of keys and values (always at least one).
        `keys_only` leaves the values empty. Raises Compacted or FutureRevision.
        """
        count = self.count(start, end, at)
        if after is not None and after >= start:
            first, inclusive = after, False
        else:
            first, inclusive = start, True
        found: list[tuple[bytes, Version]] = []
        size = 0
        if at is None or at == self.revision:
            head = self.head
            records: Iterable[tuple[bytes, bytes | None]] = (
                (key, head[key]) for key in self.live.irange(first, end or None, (inclusive, False))
            )
        else:
            records = ((key, self._record_at(key, at)) for key in self._all_keys(first, end, inclusive))
        for key, record in records:
            if record is None:
                continue
            if len(found) >= limit or (bytes_max is not None and size >= bytes_max):
                return found, count, True
            found.append((key, _unpack(record[:RECORD_SIZE] if keys_only else record)))
            size += len(key) + (0 if keys_only else len(record) - RECORD_SIZE)
        return found, count, False

    def index_of(self, revision: int) -> int:
        """Log index of the request that made that revision. Raises Compacted (for `compacted` itself too: what made
        it may be gone) or FutureRevision."""
        self.check(revision)
        if revision == self.compacted:
            raise Compacted(revision, self.compacted + 1)
        key = self.changed[revision - self.compacted - 1][0]
        head = self.head.get(key)
        past = self.history.get(key, [])
        record = head
        if head is None or _mod_of(head)[0] != revision:
            record = past[bisect_right(past, revision, key=record_mod) - 1]
        assert record is not None, "a kept revision has its versions"
        _, mod, _, index, _ = RECORD.unpack_from(record)
        assert mod == revision, "a kept revision has its versions"
        return int(index)

    # -- snapshots --------------------------------------------------------------------------------------------

    def pin(self, revision: int) -> None:
        """Nothing that can be read now is dropped until `unpin` of the same revision."""
        self._pins.append(revision)

    def unpin(self, revision: int) -> None:
        """Ends a pin."""
        self._pins.remove(revision)

    def walk(self, oldest: int, newest: int) -> Iterator[tuple[bytes, list[bytes]]]:
        """Every key with what reads from `oldest` to `newest` may see of it, oldest first, in key order.

        Records are bytes for `store_load.Loader.add`. A key with many versions comes several times. The store may
        change between two steps: what comes stays as of the start, if the store was pinned then.
        """
        keys = list(islice(self._all_keys(b"", None), SLICE_KEYS))
        while keys:
            for key in keys:
                yield from self._walk_key(key, oldest, newest)
            keys = list(islice(self._all_keys(keys[-1], None, inclusive=False), SLICE_KEYS))

    def _walk_key(self, key: bytes, oldest: int, newest: int) -> Iterator[tuple[bytes, list[bytes]]]:
        # Between two yields a head may become a past record, at the end of what is past: so the head is looked at in
        # the same moment in which the past records turn out to be at their end.
        place = -1
        while True:
            past, head = self.history.get(key, ()), self.head.get(key)
            if place < 0:
                place = _first_visible(past, head, oldest)
            records = list(islice(past, place, place + SLICE_VERSIONS))
            is_end = len(records) < SLICE_VERSIONS
            if is_end and head is not None:
                records.append(head)
            stored = [_without_hash(record) for record in records if _mod_of(record)[0] <= newest]
            if stored:
                yield key, stored
            if is_end or len(stored) < len(records):
                return
            place += SLICE_VERSIONS


def _between(keys: Any, start: bytes, end: bytes | None) -> int:
    """How many of the sorted keys are in [start, end)."""
    above: int = keys.bisect_left(end) if end else len(keys)
    below: int = keys.bisect_left(start)
    return max(0, above - below)


def record_mod(record: bytes) -> int:
    """The revision that made the record."""
    mod: int = _mod_of(record)[0]
    return mod


def _first_visible(past: Sequence[bytes], head: bytes | None, oldest: int) -> int:
    """Place in `past` of the first record that a read at `oldest` or later may see."""
    if head is not None and record_mod(head) <= oldest:
        return len(past)
    place = bisect_right(past, oldest, key=record_mod)
    if place and _version_of(past[place - 1])[0]:
        place -= 1  # it was replaced or deleted only later
    return place


def _without_hash(record: bytes) -> bytes:
    return record[:STORED_SIZE] + record[RECORD_SIZE:]
