"""The table of keys: a map like any other, whose growing never moves more than a small part of it."""

import sys

from hypothesis import given, strategies as st
from xxhash import xxh64_intdigest

from raftlog.statemachine.digest import SEED
from raftlog.statemachine.table import DICTS, SHIFT, Table


@given(st.lists(st.tuples(st.sampled_from(["set", "pop"]), st.integers(0, 40).map(lambda number: b"%d" % number))))
def test_a_table_behaves_as_a_dict(steps: list[tuple[str, bytes]]) -> None:
    """Whatever is set and taken out, it holds what a dict would."""
    table, twin = Table(), dict[bytes, bytes]()
    for number, (what, key) in enumerate(steps):
        if what == "pop":
            assert table.pop(key) == twin.pop(key, None)
        else:
            table[key] = twin[key] = b"%d" % number
        by_hash = table.dicts[xxh64_intdigest(key, SEED) >> SHIFT].get(key)
        assert (table.get(key), key in table, by_hash) == (twin.get(key), key in twin, twin.get(key))
    assert sorted(table) == sorted(twin)
    assert sorted(table.values()) == sorted(twin.values())
    assert all(table[key] == twin[key] for key in twin)


def test_keys_are_spread_so_that_no_dict_is_large() -> None:
    """A dict moves all that it has when it is full, and nothing else runs meanwhile: each has its share and no more, in
    slots of its own (a fifth above the share is far beyond chance), whatever the keys have in common."""
    table = Table()
    for number in range(DICTS * 1_000):
        table[b"key-%08d" % number] = b""
    assert max(map(len, table.dicts)) < 1_200
    assert max(map(sys.getsizeof, table.dicts)) < 100_000
