"""The store against a deliberately naive twin: a full copy of all keys for every revision, and nothing clever."""

from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raftlog.statemachine.commands import Limits, Version
from raftlog.statemachine.digest import set_digest, state_row_hash
from raftlog.statemachine.store import RECORD_SIZE, STORED, FutureRevision, RevisionCompacted, Store
from raftlog.statemachine.store_load import Loader
from raftlog.statemachine.store_walk import WalkRow, walk

Copy = dict[bytes, Version]
KEYS = [bytes((first, second)) for first in b"abc" for second in b"\x00x\xff"]
keys = st.sampled_from(KEYS)
bounds = st.one_of(keys, st.sampled_from([b"", b"a", b"b", b"c", b"d", b"\xff"]))


class Twin:
    """Every revision is a full copy."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.copies: dict[int, Copy] = {1: {}}
        self.sizes: dict[int, int] = {}
        self.compacted = 1

    @property
    def revision(self) -> int:
        return max(self.copies)

    def step(self, writes: dict[bytes, bytes | None], index: int) -> None:
        """One request: None deletes."""
        before = self.copies[self.revision]
        after = dict(before)
        mod = self.revision + 1
        for key, value in writes.items():
            old = before.get(key)
            if value is None:
                after.pop(key, None)
            else:
                create, version = (old.create, old.version + 1) if old else (mod, 1)
                after[key] = Version(value, create, mod, version, index)
        if after != before:
            self.copies[mod] = after
            self.sizes[mod] = self.size(mod)
            self.trim()

    def trim(self) -> None:
        """The rule of the log alone."""
        self.compacted = max(self.compacted, self.revision - self.limits.history_revisions_max)
        while self.history_bytes() > self.limits.history_bytes_max:
            self.compacted += 1

    def history_bytes(self) -> int:
        """Of each revision above the compacted one: its keys, and the versions and deletes that it put aside."""
        return sum(self.sizes[revision] for revision in range(self.compacted + 1, self.revision + 1))

    def size(self, revision: int) -> int:
        """The same of one revision."""
        before, after = self.copies[revision - 1], self.copies[revision]
        total = 0
        for key in before | after:
            if before.get(key) != after.get(key):
                total += len(key) + (RECORD_SIZE + len(before[key].value) if key in before else 0)
                total += RECORD_SIZE if key not in after else 0
        return total

    def between(self, start: bytes, end: bytes, at: int) -> list[tuple[bytes, Version]]:
        """All of a range as of a revision."""
        return [(key, one) for key, one in sorted(self.copies[at].items()) if start <= key and (not end or key < end)]

    def walked(self, oldest: int, newest: int) -> list[tuple[bytes, list[Version | None]]]:
        """What a walk must give: for each key what reads may see, newest first, None for a delete."""
        rows: list[tuple[bytes, list[Version | None]]] = []
        for key in KEYS:
            seen = [self.copies[oldest].get(key)]
            for revision in range(oldest + 1, newest + 1):
                if (one := self.copies[revision].get(key)) != seen[-1]:
                    seen.append(one)
            if seen[0] is None:
                del seen[0]
            if seen:
                rows.append((key, seen[::-1]))
        return rows


def unpack(stored: bytes) -> Version | None:
    """A record of a walk as a version; None for a delete."""
    create, mod, version, index = STORED.unpack_from(stored)
    return Version(stored[STORED.size :], create, mod, version, index) if version else None


class Comparison(RuleBasedStateMachine):
    """Random steps on both; every read must agree, whatever was compacted, walked or restored meanwhile."""

    @initialize(
        revisions=st.sampled_from([1, 3, 8, 1_000]), size=st.sampled_from([1, 200, 1_000, 1_000_000]), data=st.data()
    )
    def start(self, revisions: int, size: int, data: st.DataObject) -> None:
        """Small limits, so that trimming happens all the time."""
        self.limits = Limits(history_revisions_max=revisions, history_bytes_max=size)
        self.store = Store()
        self.twin = Twin(self.limits)
        self.index = 0
        self.walk: Iterator[list[WalkRow]] | None = None
        self.walked: list[tuple[bytes, list[Version | None]]] = []
        self.expected: list[tuple[bytes, list[Version | None]]] = []

    @rule(writes=st.dictionaries(keys, st.one_of(st.none(), st.binary(max_size=3)), min_size=1, max_size=4))
    def step(self, writes: dict[bytes, bytes | None]) -> None:
        """One request of puts and deletes."""
        self.index += 1
        for key, value in writes.items():
            if value is None:
                self.store.delete(key, self.index)
            else:
                self.store.put(key, value, self.index)
        self.store.commit(self.index, self.limits)
        self.twin.step(writes, self.index)

    @rule(back=st.integers(0, 5))
    def compact(self, back: int) -> None:
        """Compaction to a recent revision."""
        revision = max(1, self.twin.revision - back)
        self.store.compact(revision)
        self.twin.compacted = max(self.twin.compacted, revision)

    @rule()
    def sweep(self) -> None:
        """Gives some memory back; no read may change by it."""
        self.store.sweep()

    @rule(start=bounds, end=bounds, limit=st.integers(1, 5), back=st.integers(-1, 6), after=st.one_of(st.none(), keys))
    def read(self, start: bytes, end: bytes, limit: int, back: int, after: bytes | None) -> None:
        """A page of a range as of some revision."""
        at = self.twin.revision - back
        if at < self.twin.compacted:
            with pytest.raises(RevisionCompacted):
                self.store.range(start, end, limit, at, after=after)
        elif at > self.twin.revision:
            with pytest.raises(FutureRevision):
                self.store.range(start, end, limit, at, after=after)
        else:
            whole = self.twin.between(start, end, at)
            rest = [item for item in whole if after is None or item[0] > after]
            expected = (rest[:limit], len(whole), len(rest) > limit)
            assert self.store.range(start, end, limit, at, after=after) == expected
            if at == self.twin.revision:
                assert self.store.range(start, end, limit, after=after) == expected

    @precondition(lambda self: self.walk is None)
    @rule()
    def start_walk(self) -> None:
        """A walk as of now begins."""
        self.store.pin()
        self.walk = walk(self.store, self.store.compacted, self.store.revision)
        self.walked = []
        self.expected = self.twin.walked(self.twin.compacted, self.twin.revision)

    @precondition(lambda self: self.walk is not None)
    @rule(steps=st.integers(1, 5))
    def go_on(self, steps: int) -> None:
        """It goes on while writes do; at its end it has given the content of its start."""
        assert self.walk is not None
        for _ in range(steps):
            rows = next(self.walk, None)
            if rows is None:
                self.walk = None
                self.store.unpin()
                assert self.walked == self.expected
                return
            for key, records in rows:
                if self.walked and self.walked[-1][0] == key:
                    self.walked[-1][1].extend(map(unpack, records))
                else:
                    self.walked.append((key, list(map(unpack, records))))

    @precondition(lambda self: self.walk is None)
    @rule()
    def restore(self) -> None:
        """A store built from a walk takes over; no read may change by it."""
        loader = Loader(self.store.revision, self.store.compacted)
        for rows in walk(self.store, self.store.compacted, self.store.revision):
            assert loader.add_rows(rows) == len(rows)
        self.store = loader.finish()

    @invariant()
    def agrees(self) -> None:
        """Marks, every key at every kept revision, and the bytes of history agree."""
        if not hasattr(self, "twin"):
            return
        twin, store = self.twin, self.store
        assert (store.revision, store.compacted) == (twin.revision, twin.compacted)
        assert store.history_bytes == twin.history_bytes()
        rows = twin.copies[twin.revision].items()
        hashes = [state_row_hash(key, one.value, one.create, one.mod, one.version) for key, one in rows]
        assert store.digest() == set_digest(hashes)
        for at in range(max(twin.compacted, twin.revision - 2), twin.revision + 1):
            assert {key: one for key in KEYS if (one := store.get(key, at))} == twin.copies[at]
            assert store.count(b"", None, at) == len(twin.copies[at])


TestStoreAgainstTwin = Comparison.TestCase
# Shrunk without the explain phase: a failure shows in seconds, not minutes.
TestStoreAgainstTwin.settings = settings(
    max_examples=150, stateful_step_count=40, phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]
)
