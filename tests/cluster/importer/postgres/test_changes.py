"""Bytes that PostgreSQL 15 sent become records; any other bytes are refused with a clear error."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.importer.postgres.changes import Changes, PrimaryKeys
from raftlog.cluster.importer.postgres.messages import (
    Begin,
    Commit,
    MessageError,
    PgColumn,
    Relation,
    RowInserted,
    decode,
)
from raftlog.cluster.importer.postgres.values import KeyColumn, PgTable, lsn_of, unescaped
from raftlog.cluster.importer.source import SourceError

CAPTURED = [
    bytes.fromhex(re.sub(r"(\w{4})\*1050", lambda found: found[1] * 1050, line))
    for line in Path(__file__).with_name("captured.txt").read_text().splitlines()
]
"""One message a line, as `pg_logical_slot_get_binary_changes` gave them; long texts of one letter are shortened."""

F = 16418  # the number of public.f, whose replica identity is full
KEYS = {F: (KeyColumn("x", 1700, 0),)}  # its primary key
TIME_MS = 1_795_690_132_431
BIG = "x" * 2100


def fed(changes: Changes, messages: list[bytes]) -> Iterator[NewRecord]:
    """The records of the messages."""
    for data in messages:
        if (message := decode(data)) is not None:
            yield from changes.feed(message)


def shown(record: NewRecord) -> tuple[Any, Any, Any]:
    """Key, operation and the images of a record."""
    value = json.loads(record.value or b"")
    more = {
        name: each for name, each in value.items() if name not in ("op", "table", "lsn", "n", "xid", "time", "last")
    }
    return json.loads(record.key or b""), value["op"], more


def test_inserts_updates_deletes_truncates_and_new_columns_become_records() -> None:
    """Also a changed primary key, a large column that did not change, and the two kinds of images before."""
    found = [*fed(Changes(0, 0, 0, KEYS, dict), CAPTURED)]
    full = "y" * 2100
    flags = {"cascade": True, "restart_identity": True}
    rows = [shown(each) for each in found]
    assert rows[:10] == [
        (["public.t", 1], "insert", {"before": None, "after": {"a": 1, "name": "ä", "big": BIG}}),
        (["public.t", 2], "insert", {"before": None, "after": {"a": 2, "name": None, "big": "s"}}),
        (["public.t", 1], "update", {"before": None, "after": {"a": 1, "name": "b"}, "unchanged": ["big"]}),
        (["public.t", 2], "delete", {"before": {"a": 2}, "after": None, "moved_to": {"a": 3}}),
        (
            ["public.t", 3],
            "insert",
            {"before": None, "after": {"a": 3, "name": None, "big": "s"}, "moved_from": {"a": 2}},
        ),
        (["public.t", 3], "delete", {"before": {"a": 3}, "after": None}),
        (["public.f", 1.5], "insert", {"before": None, "after": {"x": 1.5, "big": full}}),
        (["public.f", 1.5], "delete", {"before": {"x": 1.5, "big": full}, "after": None, "moved_to": {"x": 2}}),
        (
            ["public.f", 2],
            "insert",
            {"before": None, "after": {"x": 2, "big": full}, "moved_from": {"x": 1.5}},
        ),
        (["public.f", 2], "delete", {"before": {"x": 2, "big": full}, "after": None}),
    ]
    after = {"a": 4, "name": None, "big": None, "extra": True}
    assert rows[10] == (["public.t", 4], "insert", {"before": None, "after": after})
    assert rows[13:] == [(["public.t"], "truncate", flags), (["public.f"], "truncate", flags)]
    first = json.loads(found[0].value or b"")
    place = {name: first[name] for name in ("table", "lsn", "n", "xid", "time")}
    assert place == {"table": "public.t", "lsn": "0/1593D68", "n": 1, "xid": 758, "time": "2026-11-26T10:48:52.431471Z"}
    assert found[0].time_ms == TIME_MS
    places = [(json.loads(each.value or b"")["lsn"], json.loads(each.value or b"")["n"]) for each in found]
    assert len({*places}) == len(found)


def test_values_keep_their_types_and_every_digit() -> None:
    """Numbers, times, JSON, and PostgreSQL's own text for the rest."""
    kinds = [each for each in fed(Changes(0, 0, 0, KEYS, dict), CAPTURED) if b'"public.kinds"' in (each.key or b"")]
    first, second = (re.sub(rb'.*"after":', b"", each.value or b"").decode() for each in kinds)
    assert first == (
        '{"id":9007199254740993,"b":false,"s":-7,"d":"NaN","n":12345678901234567890.1200,"txt":"a\\"\\\\\\t\\n€",'
        '"ts":"2026-01-02T03:04:05.678901","tz":"2026-01-02T01:04:05Z","day":"2026-01-02","j":{"a":  [1, 2]},'
        '"jb":{"k": 1.10},"by":"\\\\x00ff","arr":"{1,NULL,3}","u":"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11","m":"ok",'
        '"nul":null}}'
    )
    assert second == (
        '{"id":2,"b":true,"s":7,"d":1e+300,"n":"NaN","txt":"","ts":"0044-03-15 00:00:00 BC","tz":"infinity",'
        '"day":"infinity","j":null,"jb":"s","by":"\\\\x","arr":"{}","u":null,"m":null,"nul":null},"last":true}'
    )


def test_the_last_change_of_a_transaction_says_so() -> None:
    """And no other one, so that a reader knows when it has the whole transaction."""
    found = [json.loads(each.value or b"") for each in fed(Changes(0, 0, 0, KEYS, dict), CAPTURED)]
    by_transaction: dict[str, list[bool]] = {}
    for each in found:
        by_transaction.setdefault(each["lsn"], []).append(each.get("last", False))
    assert len(by_transaction) > 3
    assert any(len(each) > 1 for each in by_transaction.values())
    assert all(each == [*[False] * (len(each) - 1), True] for each in by_transaction.values())


def test_reading_goes_on_after_any_record() -> None:
    """From the position after each message, the rest is what a reading without an interruption gives."""
    whole = [*fed(Changes(0, 0, 0, KEYS, dict), CAPTURED)]
    one = Changes(0, 0, 0, KEYS, dict)
    given: list[NewRecord] = []
    for data in CAPTURED:
        if (message := decode(data)) is not None:
            given += one.feed(message)
        if one.commit and not one.done:
            continue  # the position before a transaction's first record is that of the one before
        again = Changes(one.lsn, one.commit, one.done, KEYS, dict)
        # PostgreSQL sends every transaction whose commit is at the position or after it, from its beginning.
        sent, is_sent = [], False
        for each in CAPTURED:
            if each[:1] == b"B":
                is_sent = int.from_bytes(each[1:9]) >= one.lsn
            if is_sent or each[:1] in (b"R", b"Y"):  # columns are sent again with every connection
                sent.append(each)
        assert [*given, *fed(again, sent)] == whole


def test_another_history_is_refused() -> None:
    """The transaction that is half done must come first, with as many records."""
    begin, columns, insert, commit = (CAPTURED[at] for at in (0, 1, 2, 4))
    for at, lsn, messages in ((1, lsn_of("0/1593D68"), [begin, columns, commit]), (1, 5, [begin, columns, insert])):
        with pytest.raises(SourceError, match="another history"):
            list(fed(Changes(0, lsn, at, KEYS, dict), messages))


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([b""], "an empty message"),
        ([b"x"], "is no message of pgoutput's protocol version 1"),
        ([CAPTURED[2][:-1]], "the message ends too early"),
        ([CAPTURED[2] + b"!"], "longer than what it says"),
        ([CAPTURED[2][:5] + b"K" + CAPTURED[2][6:]], "which begins a row"),
        ([CAPTURED[2][:8] + b"b" + CAPTURED[2][9:]], "is no kind of value"),
        ([CAPTURED[1].replace(b"public", b"\xff\xff\xff\xff\xff\xff")], "a name is not UTF-8"),
        ([CAPTURED[2]], "outside a transaction"),
        ([CAPTURED[0], CAPTURED[2]], "without its columns"),
        ([CAPTURED[0], CAPTURED[0]], "within another"),
        ([CAPTURED[4]], "without its beginning"),
        ([CAPTURED[0][:9] + b"\x7f" * 12], "is no time"),
        ([CAPTURED[0], CAPTURED[1], CAPTURED[2].replace(b"\xc3\xa4", b"\xff\xff")], "column name is not UTF-8"),
        ([CAPTURED[0], CAPTURED[1], CAPTURED[2][:7] + b"\1" + CAPTURED[2][8:14]], "a row has 1 column, the table 3"),
    ],
)
def test_bytes_that_are_no_message_are_refused_with_what_is_wrong(messages: list[bytes], told: str) -> None:
    """The error has none of the user's data."""
    with pytest.raises(MessageError, match=told) as raised:
        list(fed(Changes(0, 0, 0, KEYS, dict), messages))
    assert "xxx" not in str(raised.value)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_altered_bytes_give_a_record_or_a_clear_error_and_nothing_else(data: st.DataObject) -> None:
    """Any message with bytes changed, cut or added, in a stream that is right up to it."""
    at = data.draw(st.integers(0, len(CAPTURED) - 1))
    altered = bytearray(CAPTURED[at])
    for _ in range(data.draw(st.integers(1, 3))):
        where = data.draw(st.integers(0, min(len(altered), 60)))
        altered[where : where + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    changes = Changes(0, 0, 0, KEYS, dict)
    list(fed(changes, CAPTURED[:at]))
    try:
        for record in fed(changes, [bytes(altered), *CAPTURED[at + 1 :]]):
            json.loads(record.value or b"", parse_constant=pytest.fail)
            json.loads(record.key or b"")
    except SourceError:
        pass


def test_rows_of_copy_are_the_same_values_as_those_of_the_stream() -> None:
    """PostgreSQL escapes tabs, line feeds and backslashes there."""
    assert unescaped(rb"a\tb\\x00 \N|\N||\n\\N".split(b"|")) == [b"a\tb\\x00 N", None, b"", b"\n\\N"]
    assert lsn_of("16/B374D848") == 0x16_B374_D848


def test_a_key_or_a_change_that_is_too_long_names_the_table_and_the_way_out() -> None:
    """Before it is sent."""
    relation = decode(CAPTURED[1])
    assert isinstance(relation, Relation)
    assert isinstance(decode(CAPTURED[4]), Commit)
    table = PgTable(relation)
    with pytest.raises(MessageError, match=r"public\.t has a key of 6015 bytes: the limit is 4096\. .* USING INDEX"):
        table.key([b"a" * 6000, None, None])
    place = Changes(0, 0, 0, KEYS, dict)
    insert = CAPTURED[2][:6] + b"\0\3t\0\0\0\0011t" + (5 << 20).to_bytes(4) + b"1" * (5 << 20) + b"n"
    with pytest.raises(MessageError, match=r"a change of public\.t has \d+ bytes .* SET TABLE public\.t \(column"):
        list(fed(place, [CAPTURED[0], CAPTURED[1], insert]))


def table_of(*columns: str) -> Relation:
    """A table with a full identity, all of whose columns are integers."""
    return Relation(7, "public.o", "f", tuple(PgColumn(each, 23, True) for each in columns))


def keys_of(changes: Changes, *relations: Relation) -> list[Any]:
    """The key of a row with the values 1, 2, … under each of the relations."""
    changes.feed(Begin(1, 0, 1))
    found: list[NewRecord] = []
    for each in relations:
        changes.feed(each)
        row: Any = [b"%d" % number for number in range(1, len(each.columns) + 1)]
        found += changes.feed(RowInserted(7, row))
    found += changes.feed(Commit(1, 1))
    return [json.loads(record.key or b"") for record in found]


def test_a_renamed_primary_key_of_a_full_table_stays_the_key() -> None:
    """The messages before the rename have the old name, the catalog the new one; while following it is the other way.
    The place of the column decides, also where another column has its old name."""
    for now in ("id", "order_id", "other"):
        changes = Changes(0, 0, 0, {7: (KeyColumn(now, 23, 0),)}, dict)
        relations = table_of("id", "v"), table_of("order_id", "v", "id"), table_of("x", "order_id")
        assert keys_of(changes, *relations) == [["public.o", 1]] * 3


def test_without_a_certain_place_the_names_decide_and_the_catalog_is_asked_again() -> None:
    """A column before the key was dropped. A table that was added while following is asked for, too."""
    answers: list[PrimaryKeys] = [{7: (KeyColumn("id", 23, None),)}, {7: (KeyColumn("order_id", 23, None),)}]
    changes = Changes(0, 0, 0, {}, lambda: answers.pop(0))
    assert keys_of(changes, table_of("a", "id"), table_of("id"), table_of("order_id")) == [
        ["public.o", 2],
        ["public.o", 1],
        ["public.o", 1],
    ]
    assert answers == []
    assert keys_of(Changes(0, 0, 0, {7: ()}, dict), table_of("a")) == [["public.o"]]  # it has no primary key


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ({}, r"public\.o, which .* is not in the publication now.* add it to the publication again; else begin again"),
        ({7: (KeyColumn("k", 23, None),)}, r"with the columns a, b, and its primary key is now k: .* begin again"),
        ({7: (KeyColumn("k", 20, 0),)}, r"primary key is now k"),
        ({7: (KeyColumn("a", 23, None), KeyColumn("k", 23, 0))}, r"primary key is now a, k"),
        ({7: (KeyColumn("a", 23, 0), KeyColumn("k", 23, 2))}, r"primary key is now a, k"),
    ],
    ids=["unknown table", "no such name", "another type", "one column twice", "too few columns"],
)
def test_a_key_that_is_not_certain_is_refused_and_never_shorter(known: PrimaryKeys, told: str) -> None:
    """The error names the table, the columns, and the way out."""
    with pytest.raises(SourceError, match=told):
        keys_of(Changes(0, 0, 0, known, lambda: known), table_of("a", "b"))
