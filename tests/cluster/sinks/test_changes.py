"""Batches hold whole indexes, the last change of each key, and whole transactions."""

from hypothesis import given, strategies as st

from raftlog.cluster.sinks import following
from raftlog.cluster.sinks.changes import UNCHANGED, MappedRecord, RowChange, SinkBatch, StorePosition, StoreRow
from raftlog.cluster.sinks.following import LogFollower


def put(index: int, key: object, *cells: object) -> RowChange:
    """The row of a key."""
    return RowChange(index, (key,), (key, *cells))


def gone(index: int, key: object) -> RowChange:
    """The end of the row of a key."""
    return RowChange(index, (key,), None)


def collected(follower: LogFollower, records: list[MappedRecord]) -> list[SinkBatch]:
    """All batches of the records."""
    found = [batch for record in records if (batch := follower.add(record)) is not None]
    last = follower.take()
    return found if last is None else [*found, last]


def applied(batches: list[SinkBatch]) -> dict[StoreRow, StoreRow]:
    """The rows of a store that got the batches, each of which follows the one before."""
    rows: dict[StoreRow, StoreRow] = {}
    position = None
    for batch in batches:
        assert position in (None, batch.expected)
        position = batch.next
        if batch.changes.truncates:
            rows.clear()
        assert len({each.key for each in batch.changes.rows}) == len(batch.changes.rows)
        for each in batch.changes.rows:
            rows.pop(each.key, None)
            if each.row is not None:
                rows[each.key] = each.row
    return rows


def test_the_last_change_of_a_key_is_written() -> None:
    """Also where the key went in between."""
    follower = LogFollower(StorePosition(1))
    (batch,) = collected(
        follower,
        [
            MappedRecord(1, [put(1, "a", 1), put(1, "b", 1)]),
            MappedRecord(2, [gone(2, "a")]),
            MappedRecord(3, [put(3, "a", 3)]),
            MappedRecord(4, [gone(4, "b")]),
        ],
    )
    assert {each.key[0]: each.row for each in batch.changes.rows} == {"a": ("a", 3), "b": None}
    assert (batch.expected, batch.next) == (StorePosition(1), StorePosition(5))


def test_an_index_is_never_split() -> None:
    """A transaction of many keys is one index, and goes into one batch, however large."""
    follower = LogFollower(StorePosition(1))
    many = [put(1, key, 0) for key in range(following.BATCH_ROWS_MAX + 5)]
    batches = collected(follower, [MappedRecord(1, many), MappedRecord(2, [put(2, "x", 0)])])
    assert [len(batch.changes.rows) for batch in batches] == [following.BATCH_ROWS_MAX + 5, 1]
    assert [batch.next.next for batch in batches] == [2, 3]


def test_a_batch_ends_by_bytes_too() -> None:
    """Large values do not fill the memory."""
    size = following.BATCH_BYTES_MAX // 2
    records = [MappedRecord(index, [put(index, index, 0)], size=size) for index in range(1, 7)]
    assert [len(batch.changes.rows) for batch in collected(LogFollower(StorePosition(1)), records)] == [2, 2, 2]


def test_a_transaction_is_seen_whole_or_not_at_all() -> None:
    """Records of others may stand between its own; the records before it can be written."""
    follower = LogFollower(StorePosition(1))
    for record in (
        MappedRecord(1, [put(1, "a", 1)]),
        MappedRecord(2, [put(2, "b", 2)], transaction="0/1"),
        MappedRecord(3, [put(3, "c", 3)]),
        MappedRecord(4, [put(4, "b", 4)], transaction="0/1"),
    ):
        assert follower.add(record) is None
    follower.pass_to(9)
    first = follower.take()
    assert first is not None
    assert ([each.key for each in first.changes.rows], first.next) == ([("a",)], StorePosition(2))
    assert follower.next_index == 9
    assert follower.take() is None
    follower.add(MappedRecord(9, transaction="0/1", is_last=True))
    second = follower.take()
    assert second is not None
    assert {each.key[0]: each.row for each in second.changes.rows} == {"b": ("b", 4), "c": ("c", 3)}
    assert (second.expected, second.next) == (StorePosition(2), StorePosition(10))


def test_a_transaction_without_a_mark_ends_with_the_next_one() -> None:
    """As in records of a capture that did not mark the last one."""
    follower = LogFollower(StorePosition(1))
    follower.add(MappedRecord(1, [put(1, "a", 1)], transaction="0/1"))
    follower.add(MappedRecord(2, [put(2, "b", 2)], transaction="0/2"))
    first = follower.take()
    assert first is not None
    assert (len(first.changes.rows), first.next) == (1, StorePosition(2))


def test_a_transaction_that_is_too_large_is_split_and_counted() -> None:
    """The memory of a sink is bounded whatever a source does."""
    follower = LogFollower(StorePosition(1))
    size = following.TRANSACTION_BYTES_MAX // 4
    records = [MappedRecord(index, [put(index, index, 0)], transaction="0/1", size=size) for index in range(1, 9)]
    batches = collected(follower, records)
    assert follower.split == 2
    assert [batch.next.next for batch in batches] == [5, 9]


def test_a_truncate_ends_a_batch_and_drops_what_was_before() -> None:
    """What follows in its transaction stays with it."""
    batches = collected(
        LogFollower(StorePosition(1)),
        [
            MappedRecord(1, [put(1, "a", 1)]),
            MappedRecord(2, truncates=True, transaction="0/1"),
            MappedRecord(3, [put(3, "b", 3)], transaction="0/1", is_last=True),
            MappedRecord(4, [put(4, "c", 4)]),
        ],
    )
    assert [(batch.changes.truncates, [each.key for each in batch.changes.rows]) for batch in batches] == [
        (True, [("b",)]),
        (False, [("c",)]),
    ]


def test_a_value_that_is_not_known_is_taken_from_the_change_before() -> None:
    """PostgreSQL does not log a large column that did not change."""
    (batch,) = collected(
        LogFollower(StorePosition(1)),
        [MappedRecord(1, [put(1, "a", "large", 1)]), MappedRecord(2, [put(2, "a", UNCHANGED, 2)])],
    )
    assert batch.changes.rows[0].row == ("a", "large", 2)


_RECORDS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=3),
        st.booleans(),
        st.sampled_from([None, None, "x", "y"]),
        st.booleans(),
        st.sampled_from([0, 1 << 20, 3 << 20, 9 << 20]),
    ),
    max_size=40,
)


@given(_RECORDS)
def test_any_batches_make_the_rows_that_the_records_make(
    drawn: list[tuple[list[tuple[int, bool]], bool, str | None, bool, int]],
) -> None:
    """Whatever the sizes, truncates and transactions: batches follow each other, and nothing is lost or doubled."""
    records = [
        MappedRecord(
            index,
            [put(index, key, index) if is_put else gone(index, key) for key, is_put in dict(rows).items()],
            truncates and transaction is not None,
            transaction,
            is_last,
            size,
        )
        for index, (rows, truncates, transaction, is_last, size) in enumerate(drawn, 1)
    ]
    end = MappedRecord(len(records) + 1, transaction="end", is_last=True)
    expected: dict[StoreRow, StoreRow] = {}
    for record in records:
        if record.truncates:
            expected.clear()
        for each in record.rows:
            expected.pop(each.key, None)
            if each.row is not None:
                expected[each.key] = each.row
    batches = collected(LogFollower(StorePosition(1)), [*records, end])
    assert applied(batches) == expected
    assert batches[-1].next == StorePosition(end.index + 1)
