"""A walk gives every key with all that reads may see of it, and lets others run as often as it promises."""

from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st

from raftlog.statemachine import store_walk
from raftlog.statemachine.commands import Limits, Version
from raftlog.statemachine.machine import StateMachine
from raftlog.statemachine.store import STORED, STORED_SIZE, Store
from raftlog.statemachine.store_walk import SLICE_BYTES, SLICE_KEYS, walk
from tests.statemachine.driver import Driver

KEYS = [b"a", b"b", b"c", b"d"]


@given(
    st.lists(st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), min_size=1, max_size=3), max_size=30),
    st.integers(0, 30),
    st.integers(0, 30),
)
def test_a_walk_gives_the_versions_that_reads_may_see(
    steps: list[list[tuple[bytes, bool]]], compacted: int, newest: int
) -> None:
    """Puts and deletes in any order, several keys in a step, part of the history compacted, some of it newer than the
    walk: in key order, newest first, the very versions that reads of those revisions give, and the deletes between."""
    store = Store()
    for index, step in enumerate(steps, start=1):
        for key, is_put in dict(step).items():
            if is_put:
                store.put(key, b"v%d" % index, index)
            else:
                store.delete(key, index)
        store.commit(index, Limits())
    oldest = min(max(compacted, store.compacted), store.revision)
    store.compact(oldest)
    newest = min(max(newest, oldest), store.revision)
    rows = [row for rows in walk(store, oldest, newest) for row in rows]
    assert [key for key, _ in rows] == sorted({key for key, _ in rows})
    seen = {key: [(*STORED.unpack_from(each), each[STORED_SIZE:]) for each in records] for key, records in rows}
    for key in KEYS:
        versions = seen.get(key, [])
        mods = [mod for _, mod, *_ in versions]
        assert mods == sorted(set(mods), reverse=True)
        assert all(mod > oldest for mod in mods[:-1]), "no more than one that is older, and no delete"
        assert not versions or mods[-1] > oldest or versions[-1][2]
        for revision in range(oldest, newest + 1):
            found = next((each for each in versions if each[1] <= revision), None)
            read = store.get(key, revision)
            if read is None:
                assert found is None or found[2] == 0
            else:
                assert found == (read.create, read.mod, read.version, read.index, read.value)


def test_a_walk_that_meets_only_newer_keys_lets_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot begun over a few keys, then thousands of new ones around them: between two chunks it looks at a slice
    of them, however few it keeps; and what it keeps is what would have come at once."""
    looked = 0
    versions = store_walk._versions

    def counted(store: Store, key: bytes, oldest: int, newest: int) -> Iterator[list[bytes]]:
        nonlocal looked
        looked += 1
        return versions(store, key, oldest, newest)

    driver = Driver()
    for number in range(0, 10_000, 1_000):
        driver.put(b"k%05d" % number, b"old")
    at_once = list(driver.machine.snapshot())
    walk = driver.machine.snapshot()
    for number in range(10_000):
        driver.put(b"k%05d" % number, b"new")
    monkeypatch.setattr(store_walk, "_versions", counted)
    chunks, most, before = [], 0, 0
    for chunk in walk:
        chunks.append(chunk)
        most, before = max(most, looked - before), looked
    assert looked == 10_000
    assert most <= SLICE_KEYS + 10
    assert [chunk for chunk in chunks if chunk] == at_once
    assert len(chunks) - len(at_once) == 10_000 // SLICE_KEYS  # each key has one newer version


def test_a_walk_past_many_newer_versions_of_one_key_lets_others_run() -> None:
    """One key written thousands of times since the snapshot began: the way back to what it was has as many pauses."""
    driver = Driver()
    driver.put(b"hot", b"old")
    at_once = list(driver.machine.snapshot())
    walk = driver.machine.snapshot()
    for _ in range(20 * SLICE_KEYS):
        driver.put(b"hot", b"new")
    chunks = list(walk)
    assert [chunk for chunk in chunks if chunk] == at_once
    assert len(chunks) - len(at_once) == 20


def test_large_values_end_a_slice() -> None:
    """A slice of a walk is bounded by its bytes, too, and so are the copies made before others run."""
    store = Store()
    for number in range(20):
        store.put(b"k%02d" % number, bytes(SLICE_BYTES // 2), 1)
    store.commit(1, Limits())
    assert [len(rows) for rows in walk(store, 1, store.revision)] == [2] * 10


def test_a_key_with_a_long_history_comes_in_pieces() -> None:
    """Thousands of versions of one key are as many slices, newest first, and come back readable at each revision."""
    driver = Driver()
    for number in range(3_000):
        driver.put(b"hot", b"%04d" % number + b"x" * 100)
    walk = driver.machine.snapshot()
    chunks = [next(walk), next(walk)]
    driver.put(b"hot", b"later")
    chunks += walk
    restored = StateMachine.restore(chunks)
    for revision in (2, 1_000, 3_001):
        assert restored.get(b"hot", revision) == driver.machine.get(b"hot", revision)
    assert restored.get(b"hot") == Version(b"2999" + b"x" * 100, 2, 3_001, 3_000, 3_000)
