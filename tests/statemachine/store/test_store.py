"""The store alone: names of errors, limits, and the shape of what comes back."""

import pytest

from raftlog.statemachine.commands import Limits, Version
from raftlog.statemachine.store import (
    COUNTS_KEPT,
    SWEEP_STEPS,
    FutureRevision,
    RevisionCompacted,
    Store,
    next_key,
    prefix_end,
)

LIMITS = Limits()


def put(store: Store, key: bytes, value: bytes = b"v", limits: Limits = LIMITS) -> None:
    """A put as a step of its own; its index is ten times its revision."""
    index = 10 * (store.revision + 1)
    store.put(key, value, index)
    store.commit(index, limits)


def delete(store: Store, key: bytes, limits: Limits = LIMITS) -> None:
    """A delete as a step of its own."""
    index = 10 * (store.revision + 1)
    store.delete(key, index)
    store.commit(index, limits)


def test_changes_name_the_index_of_the_replaced_version() -> None:
    """A change names the request that wrote the version before it; 0 if there was none, also after a delete."""
    store = Store()
    assert store.put(b"a", b"1", 7).prior_index == 0
    store.commit(7, LIMITS)
    assert store.put(b"a", b"2", 9).prior_index == 7
    store.commit(9, LIMITS)
    gone = store.delete(b"a", 11)
    store.commit(11, LIMITS)
    assert gone is not None
    assert (gone.prior_index, gone.is_delete, gone.create, gone.version) == (9, True, 0, 0)
    assert store.put(b"a", b"3", 13).prior_index == 0
    assert store.delete(b"b", 13) is None


def test_revisions_outside_the_history_are_refused_by_name() -> None:
    """Below the oldest: Compacted with the oldest; above the newest: FutureRevision with the newest."""
    store = Store()
    for _ in range(5):
        put(store, b"a")
    store.compact(4)
    with pytest.raises(RevisionCompacted, match="oldest that can be read is 4") as compacted:
        store.get(b"a", 3)
    assert compacted.value.oldest == 4
    with pytest.raises(FutureRevision, match="newest is 6") as future:
        store.range(b"", None, 1, 7)
    assert future.value.newest == 6
    assert store.get(b"a", 4) == Version(b"v", 2, 4, 3, 40)


def test_unreadable_history_is_freed_a_few_steps_at_a_time() -> None:
    """After a compaction reads below are refused at once; the memory goes in slices of SWEEP_STEPS."""
    store = Store()
    for _ in range(20):
        put(store, b"a")
    delete(store, b"a")
    store.compact(store.revision)
    rounds = 0
    while store.freed != store.compacted:
        assert list(store.tombs)
        store.sweep()
        rounds += 1
    assert rounds == -(-21 // SWEEP_STEPS)
    assert not list(store.tombs)
    assert not store.gone
    assert not any(store.steps)


def test_steps_given_back_do_not_pile_up() -> None:
    """The list of steps stays near the history's length, however many revisions there were; and reads stay right."""
    limits = Limits(history_revisions_max=10)
    store = Store()
    for number in range(20_000):
        put(store, b"k%d" % (number % 7), b"%d" % number, limits)
    assert len(store.steps) < 9_000
    assert store.get(b"k0", store.revision - 8) == Version(b"%d" % 19_985, 2, 19_987, 2_856, 199_870)
    assert store.index_of(store.revision - 8) == 10 * (store.revision - 8)


def test_answers_are_bounded_by_bytes_too() -> None:
    """A page ends once it holds `bytes_max`, but never before its first key; without values only keys count."""
    store = Store()
    for number in range(9):
        put(store, b"k%d" % number, b"v" * 100)
    items, _, more = store.range(b"", None, 99, bytes_max=250)
    assert (len(items), more) == (3, True)
    assert len(store.range(b"", None, 99, bytes_max=1)[0]) == 1
    items, _, more = store.range(b"", None, 99, bytes_max=250, keys_only=True)
    assert (len(items), more) == (9, False)
    assert items[0] == (b"k0", Version(b"", 2, 2, 1, 20))


def test_the_pages_of_a_range_count_once() -> None:
    """The count at an old revision is kept: it cannot change. Of the newest counts only, and not of the present."""
    store = Store()
    for at in range(4):
        put(store, b"%d" % at)
    old = store.revision
    put(store, b"4")
    assert (store.count(b"", None, old), store.count(b"", None, store.revision)) == (4, 5)
    put(store, b"5")
    steps, store.steps = store.steps, []  # what a count reads
    assert (store.count(b"", None, old), store.count(b"", None)) == (4, 6)
    store.steps = steps
    for at in range(COUNTS_KEPT + 1):
        assert store.count(b"", b"x%d" % at, old) == 4
    assert len(store._counts) <= COUNTS_KEPT


def test_count_at_a_revision_either_way() -> None:
    """The count as of a revision is the same, computed from the keys or from the later changes."""
    store = Store()
    for number in range(100):
        put(store, b"k%02d" % number)
    for number in range(0, 100, 3):
        delete(store, b"k%02d" % number)
    for at in range(1, store.revision + 1):
        naive = sum(store.get(b"k%02d" % number, at) is not None for number in range(100))
        assert store.count(b"", None, at) == naive
        assert store.count(b"k30", b"k40", at) == sum(
            store.get(b"k%02d" % number, at) is not None for number in range(30, 40)
        )


def test_a_revision_names_the_index_that_made_it() -> None:
    """A watch from a revision finds its log index: for each that is kept, not for the compacted one, not beyond."""
    store = Store()
    for _ in range(4):
        put(store, b"a")
    delete(store, b"a")
    assert [store.index_of(revision) for revision in range(2, 7)] == [20, 30, 40, 50, 60]
    store.compact(3)
    assert store.index_of(4) == 40
    with pytest.raises(RevisionCompacted) as compacted:
        store.index_of(3)
    assert compacted.value.oldest == 4
    with pytest.raises(FutureRevision):
        store.index_of(7)


@pytest.mark.parametrize(
    ("prefix", "end"),
    [(b"a", b"b"), (b"a/", b"a0"), (b"a\xff", b"b"), (b"\xff\xff", b""), (b"", b""), (b"a\x00", b"a\x01")],
)
def test_prefix_end_is_the_first_key_above(prefix: bytes, end: bytes) -> None:
    """The end of a prefix's range: its last byte that can grow, one higher; none where nothing lies above."""
    assert prefix_end(prefix) == end


def test_next_key_leaves_nothing_out() -> None:
    """The smallest key above one is itself and a zero byte."""
    assert next_key(b"a") == b"a\x00"
    assert sorted([b"a\x00", b"a", b"aa"]) == [b"a", next_key(b"a"), b"aa"]
