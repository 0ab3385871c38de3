"""A load of the state asks for pages as of one index, goes on after a kill, and begins again after a compaction."""

from raftlog.cluster.client.answers import Item, Page
from raftlog.cluster.sinks.changes import RowChanges, StorePosition
from raftlog.cluster.sinks.following import StateLoad


def page(*keys: bytes, index: int = 9, revision: int = 4, more: bool = True) -> Page:
    """A page of the state."""
    items = tuple(Item(key, b"", 1, 1, 1) for key in keys)
    return Page(items, len(keys), "more" if more else None, revision, index)


def test_pages_of_a_load_are_as_of_one_index() -> None:
    """That of the first page, also for the log that follows."""
    load = StateLoad(None, b"k/")
    assert (load.start, load.revision, load.is_done) == (b"k/", None, False)
    assert load.index(page(b"k/1")) == 9
    assert load.batch(page(b"k/1"), ()) == (RowChanges(()), None, StorePosition(10, b"k/1".hex(), 4))
    assert (load.start, load.revision, load.is_done) == (b"k/1\0", 4, False)
    last = page(b"k/2", index=30, more=False)
    assert load.index(last) == 9
    load.batch(last, ())
    assert (load.position, load.is_done) == (StorePosition(10), True)


def test_a_load_that_was_killed_goes_on_at_its_newest_page() -> None:
    """Also one that had begun again and has no key yet."""
    load = StateLoad(StorePosition(10, b"k/1".hex(), 4), b"k/")
    assert (load.start, load.revision, load.is_done) == (b"k/1\0", 4, False)
    load = StateLoad(StorePosition(10, "", 4), b"k/")
    assert (load.start, load.revision, load.is_done) == (b"k/", 4, False)


def test_a_compacted_load_begins_again() -> None:
    """Nothing of the older revision stays."""
    load = StateLoad(StorePosition(10, b"k/1".hex(), 4), b"k/")
    batch = load.begun_again(page(index=20, revision=7))
    assert batch == (RowChanges((), truncates=True), StorePosition(10, b"k/1".hex(), 4), StorePosition(21, "", 7))
    assert (load.start, load.revision) == (b"k/", 7)
