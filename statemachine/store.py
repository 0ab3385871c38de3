"""Maps ordered keys to their versions: etcd's revisions, ranges, time travel, and a bounded history.

The state machine calls it. The newest version of a live key is one packed bytes object in a table: no Python object per
field, nothing for the garbage collector to walk. Every revision has one step: the keys that it changed, each with the
version that it replaced. That is the whole history: from a key's newest version the steps lead back to any older one,
and trimming removes steps at the old end. `compacted` alone decides what a read may see. Freeing memory (`sweep`) does
not change it. So no single request must free everything, and a walk as of a revision can delay it while writes go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from struct import Struct
from typing import Any, Final

from sortedcontainers import SortedList
from xxhash import xxh64_intdigest

from raftlog.statemachine.commands import Limits, Version
from raftlog.statemachine.digest import LOW, SEED, pack_long
from raftlog.statemachine.effects import KeyChange
from raftlog.statemachine.table import SHIFT, Table

# create, mod, version, log index, row hash; then the value. Version 0 is a delete: create and hash 0, no value. Of what
# is replaced the hash is not needed: `store_load.Loader` leaves it 0.
RECORD: Final = Struct("<QQQQQ")
RECORD_SIZE: Final = RECORD.size
_unpack_record: Final = RECORD.unpack_from
_pack_record: Final = RECORD.pack
mod_of: Final = Struct("<8xQ").unpack_from
"""Of a record: its mod revision, as a tuple of one."""
_version_of: Final = Struct("<16xQ").unpack_from

STORED: Final = Struct("<QQQQ")
STORED_SIZE: Final = STORED.size
"""A record in a snapshot: the same without the row hash, which is computed again."""

RevisionStep = tuple[int, int, bytes | None, Any]
"""What made a revision: log index, bytes of history, then a key and the record that it replaced (None: there was
none), or, where several keys changed, None and a dict of them."""

SWEEP_STEPS: Final = 4
"""Steps that one sweep gives back: more than the one that a request adds, so that it catches up."""
GAP_MAX: Final = 4_096
"""Steps given back before the list of steps is moved together, if they are most of it."""
COUNTS_KEPT: Final = 16
"""Counts of ranges at old revisions that are kept: they never change, and each page of a range has the same."""
_PACKED_ONE: Final = pack_long(1)
_new: Final = tuple.__new__  # a NamedTuple without the cost of its constructor


class RevisionCompacted(LookupError):
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
    """The smallest key above it: the end of the range that holds this key alone."""
    return key + b"\0"


def _unpack(record: bytes) -> Version:
    create, mod, version, index, _ = RECORD.unpack_from(record)
    return _new(Version, (record[RECORD_SIZE:], create, mod, version, index))


class Store:
    """The map. Changes come in steps: `put` and `delete` under `revision + 1`, then one `commit`. Queries never see
    an unfinished step, because no query runs during a step."""

    __slots__ = (
        "_counts",
        "_pins",
        "_start",
        "_step",
        "_step_bytes",
        "compacted",
        "freed",
        "gone",
        "head",
        "history_bytes",
        "live",
        "revision",
        "steps",
        "sum_high",
        "sum_low",
        "tombs",
        "xor",
    )

    def __init__(self, revision: int = 1, compacted: int = 1) -> None:
        self.revision = revision
        self.compacted = compacted  # the oldest revision that can be read
        self.history_bytes = 0  # that the steps above `compacted` hold
        self.xor = self.sum_low = self.sum_high = 0  # digest of the live keys
        self.head = Table()  # `RECORD` bytes of the newest version of each live key
        self.tombs = Table()  # of keys that are deleted, but still have history: the delete's
        self.live: Any = SortedList()  # the keys of head
        self.gone: Any = SortedList()  # the keys of tombs
        self.steps: list[RevisionStep | None] = []  # of the revisions above `_start`; None where given back
        self._start = compacted
        self.freed = compacted  # the steps up to this revision are given back
        self._pins = 0  # walks under way: nothing is given back
        self._step: dict[bytes, bytes | None] = {}  # of the step under way
        self._step_bytes = 0
        self._counts: dict[tuple[bytes, bytes | None, int], int] = {}  # by start, end and an old revision

    def digest(self) -> tuple[int, int, int, int]:
        """Digest of the live keys, as the fields of `SetDigest`."""
        return len(self.live), self.xor, self.sum_low, self.sum_high

    # -- changes ----------------------------------------------------------------------------------------------

    def put(self, key: bytes, value: bytes, index: int, is_explicit: bool = False) -> KeyChange:
        """Sets the key under the next revision; `index` is the log index of the request. `commit` ends the step."""
        mod = self.revision + 1
        key_hash = xxh64_intdigest(key, SEED)
        head = self.head.dicts[key_hash >> SHIFT]
        row_hash = xxh64_intdigest(value, key_hash)
        old = head.get(key)
        if old is None:
            create, version, prior = mod, 1, 0
            packed_mod = pack_long(mod)
            row_hash = xxh64_intdigest(packed_mod, xxh64_intdigest(packed_mod, row_hash))
            row_hash = xxh64_intdigest(_PACKED_ONE, row_hash)
            self.xor ^= row_hash
            self.sum_low += row_hash & LOW
            self.sum_high += row_hash >> 32
            if self.gone and (tomb := self.tombs.pop(key)) is not None:
                self.gone.remove(key)
                self._step[key] = tomb
            else:
                self._step[key] = None
            self.live.add(key)
            self._step_bytes += len(key)
        else:
            create, _, version, prior, old_hash = _unpack_record(old)
            version += 1
            row_hash = xxh64_intdigest(pack_long(mod), xxh64_intdigest(pack_long(create), row_hash))
            row_hash = xxh64_intdigest(pack_long(version), row_hash)
            self.xor ^= old_hash ^ row_hash
            self.sum_low += (row_hash & LOW) - (old_hash & LOW)
            self.sum_high += (row_hash >> 32) - (old_hash >> 32)
            self._step[key] = old
            self._step_bytes += len(key) + len(old)
        head[key] = _pack_record(create, mod, version, index, row_hash) + value
        return _new(KeyChange, (key, value, prior, create, version, is_explicit))

    def delete(self, key: bytes, index: int, is_explicit: bool = False) -> KeyChange | None:
        """Deletes the key under the next revision; None where there is none. `commit` ends the step."""
        old = self.head.pop(key)
        if old is None:
            return None
        prior, old_hash = _unpack_record(old)[3:]
        self.xor ^= old_hash
        self.sum_low -= old_hash & LOW
        self.sum_high -= old_hash >> 32
        self.tombs[key] = _pack_record(0, self.revision + 1, 0, index, 0)
        self.live.remove(key)
        self.gone.add(key)
        self._step[key] = old
        self._step_bytes += len(key) + len(old) + RECORD_SIZE
        return _new(KeyChange, (key, None, prior, 0, 0, is_explicit))

    def commit(self, index: int, limits: Limits) -> None:
        """Ends the step of the request at `index`. It gets its revision if it changed something, and history beyond the
        limits is trimmed."""
        step = self._step
        if not step:
            return
        size = self._step_bytes
        if len(step) == 1:
            self.steps.append((index, size, *step.popitem()))
        else:
            self.steps.append((index, size, None, step))
            self._step = {}
        self._step_bytes = 0
        self.history_bytes += size
        self.revision += 1
        if (
            self.revision - self.compacted > limits.history_revisions_max
            or self.history_bytes > limits.history_bytes_max
        ):
            self.trim(limits)

    def trim(self, limits: Limits) -> None:
        """Raises `compacted` as far as the limits of history ask: by revisions and bytes, never by time."""
        oldest = self.revision - limits.history_revisions_max
        if oldest > self.compacted:
            self.compact(oldest)
        while self.history_bytes > limits.history_bytes_max:
            self.compact(self.compacted + 1)
        self.sweep()

    def compact(self, revision: int) -> None:
        """Makes `revision` (not above the newest) the oldest that can be read, unless the oldest is above it."""
        steps, start = self.steps, self._start
        for compacted in range(self.compacted, revision):
            step = steps[compacted - start]
            assert step is not None, "only steps that cannot be read are given back"
            self.history_bytes -= step[1]
            self.compacted = compacted + 1

    def sweep(self) -> None:
        """Frees unreadable versions: a few steps, none while a walk needs them."""
        if self._pins:
            return
        steps, start, freed = self.steps, self._start, self.freed
        last = min(self.compacted, freed + SWEEP_STEPS)
        while freed < last:
            step = steps[freed - start]
            assert step is not None, "given back only once"
            steps[freed - start] = None
            freed += 1
            if self.gone:
                self._forget_tombs(step, freed)
        self.freed = freed
        gap = freed - start
        if gap >= GAP_MAX and 2 * gap >= len(steps):
            del steps[:gap]
            self._start = freed

    def _forget_tombs(self, step: RevisionStep, revision: int) -> None:
        """The deletes of that revision need no trace any more: before them nothing can be read."""
        for key in step[3] if step[2] is None else (step[2],):
            tomb = self.tombs.get(key)
            if tomb is not None and record_mod(tomb) == revision:
                self.tombs.pop(key)
                self.gone.remove(key)

    # -- reads ------------------------------------------------------------------------------------------------

    def check(self, at: int) -> None:
        """Raises RevisionCompacted or FutureRevision where the revision cannot be read."""
        if at > self.revision:
            raise FutureRevision(at, self.revision)
        if at < self.compacted:
            raise RevisionCompacted(at, self.compacted)

    def mod(self, key: bytes) -> int:
        """The key's mod revision, 0 where it is missing."""
        record = self.head.get(key)
        return 0 if record is None else record_mod(record)

    def get(self, key: bytes, at: int | None = None) -> Version | None:
        """The key's version, as of revision `at` where given. Raises RevisionCompacted or FutureRevision."""
        if at is None:
            record = self.head.get(key)
        else:
            self.check(at)
            record = self._record_at(key, at)
        return None if record is None else _unpack(record)

    def _record_at(self, key: bytes, at: int) -> bytes | None:
        """The record that was the newest at that revision; None where there was none. Goes back version by version."""
        record = self._newest(key, at)
        return None if record is None or is_delete(record) else record

    def _newest(self, key: bytes, at: int) -> bytes | None:
        """The same, deletes included."""
        record = self.head.get(key) or self.tombs.get(key)
        while record is not None and (mod := record_mod(record)) > at:
            record = self._older(key, mod)
        return record

    def _older(self, key: bytes, mod: int) -> bytes | None:
        """What the record of revision `mod` replaced."""
        step = self.steps[mod - self._start - 1]
        assert step is not None, "a revision that can be read has its step"
        old: bytes | None = step[3] if step[2] is not None else step[3][key]
        return old

    def keys(self, start: bytes, end: bytes | None) -> Iterator[bytes]:
        """The live keys of [start, end) in order; not to be used across a change."""
        keys: Iterator[bytes] = self.live.irange(start, end or None, (True, False))
        return keys

    def count(self, start: bytes, end: bytes | None, at: int | None = None) -> int:
        """How many keys [start, end) has (as of revision `at`): in logarithmic time, plus what changed since `at`,
        once for each range and old revision."""
        if at is None or at == self.revision:
            return _between(self.live, start, end)
        self.check(at)
        wanted = (start, end, at)
        if (count := self._counts.get(wanted)) is None:
            count = self._count_at(start, end, at)
            if len(self._counts) == COUNTS_KEPT:
                self._counts.clear()
            self._counts[wanted] = count
        return count

    def _count_at(self, start: bytes, end: bytes | None, at: int) -> int:
        """How many keys [start, end) had, from what changed since or from all of its keys, whichever are fewer."""
        count = _between(self.live, start, end)
        changes = self.revision - at
        if count + _between(self.gone, start, end) <= changes:
            return sum(self._record_at(key, at) is not None for key in self._all_keys(start, end))
        since: dict[bytes, None] = {}
        for step in self.steps[-changes:]:
            assert step is not None, "a revision that can be read has its step"
            for key in step[3] if step[2] is None else (step[2],):
                if start <= key and (not end or key < end):
                    since[key] = None
        for key in since:
            count += (self._record_at(key, at) is not None) - (key in self.head)
        return count

    def _all_keys(self, start: bytes, end: bytes | None, inclusive: bool = True) -> Iterator[bytes]:
        """Live keys and those that are gone but have history."""
        live = self.live.irange(start, end or None, (inclusive, False))
        return merge(live, self.gone.irange(start, end or None, (inclusive, False))) if self.gone else live

    def range(
        self,
        start: bytes,
        end: bytes | None,
        limit: int,
        at: int | None = None,
        *,
        keys_only: bool = False,
        after: bytes | None = None,
        bytes_max: int | None = None,
    ) -> tuple[list[tuple[bytes, Version]], int, bool]:
        """Keys of [start, end) in order with their versions, how many there are in all, and whether more follow.

        `end` None or b"": to the last key. `after` goes on behind that key (the count stays that of the whole range).
        At most `limit`, and no more once they hold `bytes_max` bytes of keys and values (always at least one).
        `keys_only` leaves the values empty. Raises RevisionCompacted or FutureRevision.
        """
        count = self.count(start, end, at)
        if after is not None and after >= start:
            first, inclusive = after, False
        else:
            first, inclusive = start, True
        found: list[tuple[bytes, Version]] = []
        size = 0
        records: Iterable[tuple[bytes, bytes | None]]
        if at is None or at == self.revision:
            keys = self.live.irange(first, end or None, (inclusive, False))
            records = ((key, self.head[key]) for key in keys)
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
        """Log index of the request that made that revision. Raises FutureRevision, or RevisionCompacted: for
        `compacted` itself too, as the request that made it is gone."""
        self.check(revision)
        if revision == self.compacted:
            raise RevisionCompacted(revision, self.compacted + 1)
        step = self.steps[revision - self._start - 1]
        assert step is not None, "a revision that can be read has its step"
        return step[0]

    # -- snapshots --------------------------------------------------------------------------------------------

    def pin(self) -> None:
        """Nothing that can be read now is given back until `unpin`."""
        self._pins += 1

    def unpin(self) -> None:
        """Ends a pin."""
        self._pins -= 1


def record_mod(record: bytes) -> int:
    """The revision that made the record."""
    mod: int = mod_of(record)[0]
    return mod


def is_delete(record: bytes) -> bool:
    """Whether the record says that its key is gone."""
    return not _version_of(record)[0]


def _between(keys: Any, start: bytes, end: bytes | None) -> int:
    """How many of the sorted keys are in [start, end)."""
    above: int = keys.bisect_left(end) if end else len(keys)
    below: int = keys.bisect_left(start)
    return max(0, above - below)
