"""Row hashes and set digests: golden numbers that Spark's built-in functions gave for the same rows."""

from itertools import permutations
from typing import Any

import pytest
from xxhash import xxh64_intdigest

from raftlog.statemachine.digest import (
    EMPTY,
    MASKED,
    SEED,
    ChangeRow,
    DigestHistory,
    Inside,
    LogRow,
    NotYet,
    SetDigest,
    TooOld,
    log_digest,
    log_row_hashes,
    pack_long,
    set_digest,
    state_row_hash,
)


def log_row_hash(row: LogRow) -> int:
    """The hash of one row."""
    return next(log_row_hashes((row,)))


CONFIGURATION = LogRow._make(
    [1, 1, 1_700_000_000_000, "configuration", None, None, b"\x93\x01", *[None] * 5, "applied", 1, *[None] * 5]
)
APPEND = CONFIGURATION._replace(
    index=7,
    term=2,
    time_ms=1_700_000_000_123,
    kind="commands",
    operation="append",
    key=b"k\xc3\xa9y",
    value=b"v" * 40,
    headers=(("trace", b"\x00\xff"), ("trace", b"")),
    client_time_ms=1_699_999_999_999,
    session=9,
    sequence=4,
    revision=3,
)
PUT = LogRow(
    8, 2, 1_700_000_000_123, "commands", "put", b"a", b"", None, None, 0, None, None, "applied", 4, None, 0, 4, 1, None
)
TXN = CONFIGURATION._replace(
    index=9,
    term=2,
    time_ms=1_700_000_000_124,
    kind="commands",
    operation="txn",
    value=b"\x94\x01",
    revision=5,
    succeeded=True,
    changes=(ChangeRow(b"a", b"2", False, 4, 5, 2), ChangeRow(b"b", None, True, 0, 5, 0)),
)
REFUSED = TXN._replace(
    index=10,
    time_ms=1_700_000_000_125,
    operation="delete_range",
    key=b"",
    value=b"",
    headers=(),
    client_time_ms=-5,
    result="refused",
    succeeded=False,
    changes=(),
)

# pyspark 4.3.0: xxhash64(index, term, unix_millis(time), kind, mask, operation, key, value, size(headers), headers, …)
GOLDEN = {
    CONFIGURATION: 13725489684671010375,
    APPEND: 10996662980943503254,
    PUT: 14296922875699505625,
    TXN: 18006918509632623272,
    REFUSED: 14961409002591796812,
}


def chain(*parts: bytes) -> int:
    """The definition, written out."""
    row_hash = 42
    for part in parts:
        row_hash = xxh64_intdigest(part, seed=row_hash)
    return row_hash


@pytest.mark.parametrize(
    ("parts", "golden"),
    [
        ((b"Spark",), -4294468057691064905),
        ((b"ABC", b"DEF"), 3233247871021311208),
        ((pack_long(2),), -3341702809300393011),
        ((pack_long(-1), "é".encode()), -8262813727794516599),
    ],
)
def test_chain_is_sparks_xxhash64(parts: tuple[bytes, ...], golden: int) -> None:
    """The chain of xxh64 from 42 gives what Spark's xxhash64 gives for text and bigints (signed there)."""
    assert chain(*parts) == golden % 2**64
    assert SEED == 42


@pytest.mark.parametrize(
    ("row", "golden"),
    [
        ((b"a", b"2", 4, 5, 2), 16783734988552858136),
        ((b"key", b"", 2, 2, 1), 17641174431701631797),
        ((b"\xff\x00", b"v" * 300, 2**53 - 1, 2**53 - 1, 9), 4047670107903266662),
    ],
)
def test_state_row_hash_is_golden(row: tuple[bytes, bytes, int, int, int], golden: int) -> None:
    """A live key hashes to what Spark gave, and to the definition written out."""
    key, value, *numbers = row
    assert state_row_hash(*row) == golden == chain(key, value, *map(pack_long, numbers))


def test_log_row_hashes_are_golden() -> None:
    """Rows of every shape hash to what Spark gave, alone and in bulk."""
    assert {row: log_row_hash(row) for row in GOLDEN} == GOLDEN
    assert list(log_row_hashes(GOLDEN)) == list(GOLDEN.values())


def test_every_column_counts() -> None:
    """Altering any one column of a row, or making it null, changes its hash."""
    full = APPEND._replace(argument=3, succeeded=True, prior_index=1, create=2, version=3, changes=TXN.changes)
    columns: dict[str, Any] = full._asdict()
    always = ("index", "term", "time_ms", "kind", "result", "revision")
    nulled: list[dict[str, Any]] = [{**columns, name: None} for name in columns if name not in always]
    altered = [{**columns, name: _other(value)} for name, value in columns.items()]
    hashes = [log_row_hash(LogRow(**one)) for one in (columns, *nulled, *altered)]
    assert (len(nulled), len(altered)) == (len(MASKED), len(LogRow._fields))
    assert len(set(hashes)) == len(hashes)


def test_what_not_every_reader_may_see_is_left_out() -> None:
    """The value of a configuration or of a change of permissions does not count; all else of its row does."""
    access = PUT._replace(operation="access", key=None, value=b"roles and hashes")
    for row in (CONFIGURATION, access):
        assert log_row_hash(row) == log_row_hash(row._replace(value=None))
        assert log_row_hash(row) != log_row_hash(row._replace(revision=9))
    assert log_row_hash(access) != log_row_hash(access._replace(operation="put"))


def _other(value: Any) -> Any:
    """Another value of the same type."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return value + "x"
        case bytes():
            return value + b"x"
        case _:
            return value[:1]


def test_the_mask_shows_which_columns_hold_a_value() -> None:
    """The same bytes in another column, or an empty value instead of none, give another hash."""
    as_key = PUT._replace(key=b"x", value=None)
    as_value = PUT._replace(key=None, value=b"x")
    as_empty = PUT._replace(key=b"x", value=b"")
    assert len({log_row_hash(row) for row in (as_key, as_value, as_empty)}) == 3
    assert log_row_hash(PUT._replace(headers=())) != log_row_hash(PUT)


def test_set_digest_does_not_depend_on_order_and_adds_up() -> None:
    """A set's digest is the same in any order, and that of a whole is that of its parts together."""
    hashes = [log_row_hash(row) for row in GOLDEN]
    digests = {set_digest(order) for order in permutations(hashes)}
    assert len(digests) == 1
    whole = digests.pop()
    assert whole == set_digest(hashes[:2]).merged(set_digest(hashes[2:])).merged(EMPTY) == log_digest(GOLDEN)
    assert whole.count == 5
    assert whole.sum_low == sum(row_hash & 0xFFFFFFFF for row_hash in hashes)
    assert whole.sum_high == sum(row_hash >> 32 for row_hash in hashes)


def test_set_digest_is_shown_as_hex() -> None:
    """Count, xor as 16 hex digits, and both sums as hex without padding."""
    assert SetDigest(2, 0xAB, 0x1F, 0).as_hex() == (2, "00000000000000ab", "1f", "0")


def test_a_doubled_row_is_seen() -> None:
    """Two equal rows more leave the xor as it was, but the count and the sums change."""
    row_hash = log_row_hash(APPEND)
    once, thrice = set_digest([row_hash]), set_digest([row_hash] * 3)
    assert once.xor == thrice.xor
    assert once != thrice


def test_digests_are_remembered_at_the_ends_of_the_newest_entries() -> None:
    """Ends answer; inside an entry both neighbours are named; older and newer indexes each have their error."""
    history = DigestHistory()
    for end in (0, 1, 4, 9):
        history.remember(end, (end, end, end, end), 3)
    assert len(history) == 3
    assert history.at(4) == SetDigest(4, 4, 4, 4)
    with pytest.raises(Inside) as inside:
        history.at(6)
    assert (inside.value.before, inside.value.after) == (4, 9)
    with pytest.raises(TooOld, match="is no longer kept: the oldest is at") as too_old:
        history.at(0)
    assert too_old.value.oldest == 1
    with pytest.raises(NotYet) as not_yet:
        history.at(10)
    assert not_yet.value.applied == 9
    with pytest.raises(NotYet):
        DigestHistory().at(1)


def test_remembered_ends_are_counted_after_an_index() -> None:
    """Those behind it only, wherever it is: at an end, inside an entry, before the oldest, behind the newest."""
    history = DigestHistory()
    assert history.count_after(0) == 0
    for end in (1, 4, 9, 12):
        history.remember(end, (end, end, end, end), 3)
    assert [history.count_after(index) for index in (0, 3, 4, 6, 9, 11, 12, 13)] == [3, 3, 2, 2, 1, 1, 0, 0]
