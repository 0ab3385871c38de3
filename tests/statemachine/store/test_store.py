"""The store against etcd's rules, one named test each."""

import pytest

from raftlog.statemachine.commands import Limits, Version
from raftlog.statemachine.digest import SetDigest, set_digest, state_row_hash
from raftlog.statemachine.store import SWEEP_STEPS, FutureRevision, RevisionCompacted, Store, next_key, prefix_end
from tests.statemachine.driver import keys_of

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


def test_an_empty_store_is_at_revision_1() -> None:
    """etcd's first revision is 1, and it can be read: there is nothing in it."""
    store = Store()
    assert (store.revision, store.compacted, len(store)) == (1, 1, 0)
    assert store.get(b"a", 1) is None
    assert store.range(b"", None, 10, 1) == ([], 0, False)


def test_each_step_is_one_revision_and_an_empty_step_is_none() -> None:
    """A step that changed something is one revision, however much it changed; one that changed nothing is none."""
    store = Store()
    put(store, b"a")
    assert store.revision == 2
    delete(store, b"missing")
    assert store.revision == 2
    for key in (b"b", b"c"):
        store.put(key, b"v", 5)
    store.delete(b"a", 5)
    store.commit(5, LIMITS)
    assert store.revision == 3
    assert [version.mod for _, version in store.range(b"", None, 10)[0]] == [3, 3]


def test_create_mod_and_version_of_a_key() -> None:
    """create stays, mod is the newest revision, version counts puts; after a delete all of them start again."""
    store = Store()
    put(store, b"a", b"1")
    put(store, b"b")
    put(store, b"a", b"2")
    assert store.get(b"a") == Version(b"2", 2, 4, 2, 40)
    delete(store, b"a")
    assert store.get(b"a") is None
    assert store.mod(b"a") == 0
    put(store, b"a", b"3")
    assert store.get(b"a") == Version(b"3", 6, 6, 1, 60)


def test_putting_the_same_value_is_a_new_version() -> None:
    """As in etcd, a put is a change even if the value is the one that is there."""
    store = Store()
    put(store, b"a", b"same")
    put(store, b"a", b"same")
    assert store.get(b"a") == Version(b"same", 2, 3, 2, 30)


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


def test_every_kept_revision_can_be_read() -> None:
    """Time travel: a read at a revision sees exactly the keys of that revision, deletes included."""
    store = Store()
    put(store, b"a", b"1")  # 2
    put(store, b"b", b"1")  # 3
    put(store, b"a", b"2")  # 4
    delete(store, b"a")  # 5
    put(store, b"a", b"3")  # 6
    assert [store.get(b"a", at) and store.get(b"a", at).value for at in range(1, 7)] == [  # type: ignore[union-attr]
        None,
        b"1",
        b"1",
        b"2",
        None,
        b"3",
    ]
    assert [keys_of(store.range(b"", None, 9, at)[0]) for at in range(1, 7)] == [
        [],
        [b"a"],
        [b"a", b"b"],
        [b"a", b"b"],
        [b"b"],
        [b"a", b"b"],
    ]
    assert [store.count(b"", None, at) for at in range(1, 7)] == [0, 1, 2, 2, 1, 2]


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


def test_history_is_trimmed_by_revisions() -> None:
    """Only the newest `history_revisions_max` revisions before this one stay readable, by the number alone."""
    limits = Limits(history_revisions_max=3)
    store = Store()
    for _ in range(10):
        put(store, b"a", limits=limits)
    assert (store.revision, store.compacted) == (11, 8)
    assert store.get(b"a", 8) is not None
    with pytest.raises(RevisionCompacted):
        store.get(b"a", 7)


def test_history_is_trimmed_by_bytes() -> None:
    """Large replaced values push the oldest revisions out before their number does."""
    limits = Limits(history_bytes_max=3_000)
    store = Store()
    for _ in range(10):
        put(store, b"a", b"v" * 900, limits)
    assert store.history_bytes <= 3_000
    assert store.compacted == 8
    put(store, b"a", b"small", limits)
    delete(store, b"a", limits)
    assert store.history_bytes <= 3_000


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


def test_ranges_are_half_open_and_in_order_of_bytes() -> None:
    """[start, end), keys in the order of their bytes; no end or an empty one means to the last key."""
    store = Store()
    for key in (b"b", b"a", b"a\x00", b"\xff", b"ab", b"B"):
        put(store, key)
    assert keys_of(store.range(b"", None, 99)[0]) == [b"B", b"a", b"a\x00", b"ab", b"b", b"\xff"]
    assert keys_of(store.range(b"a", b"b", 99)[0]) == [b"a", b"a\x00", b"ab"]
    assert keys_of(store.range(b"b", b"", 99)[0]) == [b"b", b"\xff"]
    assert store.range(b"b", b"a", 99) == ([], 0, False)
    assert store.count(b"b", b"a") == 0


def test_pages_go_on_after_the_last_key_and_count_the_whole_range() -> None:
    """limit cuts, more says so, `after` goes on, and the count is that of the range on every page."""
    store = Store()
    for number in range(5):
        put(store, b"k%d" % number)
    first, count, more = store.range(b"k", b"l", 2)
    assert (keys_of(first), count, more) == ([b"k0", b"k1"], 5, True)
    second, count, more = store.range(b"k", b"l", 2, after=b"k1")
    assert (keys_of(second), count, more) == ([b"k2", b"k3"], 5, True)
    third, count, more = store.range(b"k", b"l", 2, after=b"k3")
    assert (keys_of(third), count, more) == ([b"k4"], 5, False)
    assert store.range(b"k", b"l", 5)[2] is False
    assert keys_of(store.range(b"k1", b"l", 1, after=b"a")[0]) == [b"k1"]


def test_pages_at_one_revision_do_not_see_later_writes() -> None:
    """A page read at the first page's revision is as of then, although keys came, went and changed since."""
    store = Store()
    for number in range(6):
        put(store, b"k%d" % number, b"old")
    at = store.revision
    delete(store, b"k3")
    put(store, b"k35")
    put(store, b"k4", b"new")
    items, count, more = store.range(b"k", b"l", 9, at, after=b"k2")
    assert [(key, version.value) for key, version in items] == [(b"k3", b"old"), (b"k4", b"old"), (b"k5", b"old")]
    assert (count, more) == (6, False)


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


def test_the_digest_is_that_of_the_live_rows() -> None:
    """Kept incrementally, it is at any time the set digest of the live keys' rows."""
    store = Store()
    for number in range(50):
        put(store, b"k%d" % (number % 9), b"%d" % number)
        if number % 4 == 0:
            delete(store, b"k%d" % (number % 5))
        rows = store.range(b"", None, 99)[0]
        hashes = [state_row_hash(key, one.value, one.create, one.mod, one.version) for key, one in rows]
        assert SetDigest._make(store.digest()) == set_digest(hashes)


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
