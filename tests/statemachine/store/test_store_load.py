"""Loading a store: back from what a walk gave, and nothing else is taken."""

import pytest

from raftlog.statemachine.commands import Limits
from raftlog.statemachine.store import STORED, Store
from raftlog.statemachine.store_load import Loader
from raftlog.statemachine.store_walk import walk

Rows = list[tuple[bytes, list[bytes]]]


def walked(store: Store) -> Rows:
    """What a walk over all that can be read gives."""
    slices = walk(store, store.compacted, store.revision)
    return [(key, list(records)) for rows in slices for key, records in rows]


def store_with_history() -> Store:
    """Seven revisions, the first two compacted: puts, a delete, a key created again, and a step of two keys."""
    store = Store()
    for index, step in enumerate(([b"a"], [b"b"], [b"a", b"c"], [b"-b"], [b"b"], [b"a"]), start=1):
        for key in step:
            if key.startswith(b"-"):
                store.delete(key[1:], index)
            else:
                store.put(key, b"v%d" % index, index)
        store.commit(index, Limits())
    store.compact(3)
    return store


def stored(create: int, mod: int, version: int, index: int, value: bytes = b"v") -> bytes:
    """One record of a walk."""
    return STORED.pack(create, mod, version, index) + value


def load(rows: Rows, revision: int, compacted: int) -> Store:
    """A store of these rows."""
    loader = Loader(revision, compacted)
    loader.add_rows(rows)
    return loader.finish()


def test_a_walked_store_loads_equal() -> None:
    """Keys, history, digests, bytes of history and the index of each revision."""
    store = store_with_history()
    loaded = load(walked(store), store.revision, store.compacted)
    assert walked(loaded) == walked(store)
    assert (loaded.digest(), loaded.history_bytes) == (store.digest(), store.history_bytes)
    for at in range(store.compacted, store.revision + 1):
        assert loaded.range(b"", None, 9, at) == store.range(b"", None, 9, at)
        assert at == store.compacted or loaded.index_of(at) == store.index_of(at)


def test_records_of_a_key_may_come_in_pieces() -> None:
    """A key with a long history is given several times."""
    store = store_with_history()
    loader = Loader(store.revision, store.compacted)
    for key, records in walked(store):
        for record in records:
            loader.add(key, [record])
    assert walked(loader.finish()) == walked(store)


@pytest.mark.parametrize(("revision", "compacted"), [(0, 0), (1, 0), (3, 4)])
def test_impossible_revisions_are_refused(revision: int, compacted: int) -> None:
    """The first revision is 1, and the compacted revision is not in the future."""
    with pytest.raises(ValueError, match="with the oldest at"):
        Loader(revision, compacted)


DAMAGED: dict[str, tuple[Rows, str]] = {
    "a key without records": ([(b"a", [])], "comes after"),
    "no key": ([(b"", [stored(2, 2, 1, 1)])], "comes after"),
    "keys out of order": ([(b"b", [stored(2, 2, 1, 1)]), (b"a", [stored(3, 3, 1, 2)])], "comes after"),
    "half a record": ([(b"a", [b"x" * 10])], "cut short"),
    "a delete with a value": ([(b"a", [stored(0, 3, 0, 2, b"v")])], "delete"),
    "a delete with a creation": ([(b"a", [stored(2, 3, 0, 2, b"")])], "delete"),
    "a delete that was compacted": ([(b"a", [stored(0, 2, 0, 2, b"")])], "delete"),
    "created after its change": ([(b"a", [stored(4, 3, 1, 2)])], "was created at"),
    "created at nothing": ([(b"a", [stored(0, 3, 1, 2)])], "was created at"),
    "versions not newest first": ([(b"a", [stored(3, 3, 1, 2), stored(3, 4, 2, 3)])], "cannot come after"),
    "two versions that were compacted": ([(b"a", [stored(2, 2, 1, 1), stored(1, 1, 1, 1)])], "cannot come after"),
    "a revision of the future": ([(b"a", [stored(9, 9, 1, 2)])], "the newest is"),
    "a revision of two entries": ([(b"a", [stored(3, 3, 1, 2)]), (b"b", [stored(3, 3, 1, 5)])], "was made by"),
    "a revision is missing": ([(b"a", [stored(4, 4, 1, 2)])], "changed no key"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_records_in_an_impossible_order_are_refused(what: str) -> None:
    """Each check by itself, under revision 4 with 2 as the oldest."""
    rows, words = DAMAGED[what]
    with pytest.raises(ValueError, match=words):
        load(rows, 4, 2)


def test_any_changed_record_is_refused_or_gives_another_store() -> None:
    """One byte of one record is changed: a store that loads from it, if any, differs from the store that was walked."""
    store = store_with_history()
    rows = walked(store)
    refused = 0
    for row, (key, records) in enumerate(rows):
        for number, record in enumerate(records):
            for place in range(len(record)):
                damaged = [(each, list(parts)) for each, parts in rows]
                changed = record[:place] + bytes((record[place] ^ 1,)) + record[place + 1 :]
                damaged[row] = (key, [*records[:number], changed, *records[number + 1 :]])
                try:
                    loaded = load(damaged, store.revision, store.compacted)
                except ValueError:
                    refused += 1
                else:
                    assert walked(loaded) != rows
    assert refused > 100
