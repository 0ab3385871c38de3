"""Records become rows: of keys, of appended records, of a captured table, of an import."""

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from raftlog.cluster.client.answers import Change, Item, Record
from raftlog.cluster.importer.formats.dialect import Dialect
from raftlog.cluster.importer.formats.lines import InputColumn, InputFormat
from raftlog.cluster.importer.formats.schema import SCHEMA_VERSION, Schema, encode, key_of
from raftlog.cluster.sinks.changes import UNCHANGED, RowChange
from raftlog.cluster.sinks.columns import ColumnError, cast_of, number_text
from raftlog.cluster.sinks.mapping import Misfit, RowMapping, SinkSource

AT = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


def record(operation: str, key: bytes | None, value: bytes | None, **more: Any) -> Record:
    """A record of the log at index 7."""
    fields: dict[str, Any] = dict.fromkeys(Record.__struct_fields__)
    fields |= {"index": 7, "term": 1, "time_ms": 1_700_000_000_000, "kind": "commands", "result": "applied"}
    return Record(**(fields | {"operation": operation, "key": key, "value": value} | more))


def mapping(source: SinkSource, columns: Mapping[str, str], *primary_key: str) -> RowMapping:
    """A mapping whose key is the first column if it is not given."""
    return RowMapping(source, columns, primary_key or (next(iter(columns)),))


KEYS = SinkSource(keys="customer/")
COLUMNS = {"id": "suffix:bigint", "name": "value.name", "born": "value.born:date", "version": "version"}


def test_a_put_is_a_row_and_a_delete_ends_it() -> None:
    """Keys outside the prefix are another sink's."""
    made = mapping(KEYS, COLUMNS)
    value = b'{"name": "Ada", "born": "1815-12-10", "more": 1}'
    found = made.of_record(record("put", b"customer/5", value, version=3, revision=9, create=2))
    assert found.rows == [RowChange(7, (5,), (5, "Ada", date(1815, 12, 10), 3))]
    assert made.of_record(record("delete", b"customer/5", None)).rows == [RowChange(7, (5,), None)]
    assert made.of_record(record("put", b"order/5", b"no JSON")).rows == []
    assert made.of_record(record("put", b"customer/5", value, result="compare_failed")).rows == ()


def test_a_transaction_changes_all_its_keys_at_one_index() -> None:
    """Its own bytes do not have the changes: the record of the log does."""
    made = mapping(KEYS, {"id": "suffix:bigint", "name": "value.name"})
    both = (
        Change(b"customer/1", b'{"name": "x"}', False, 2, 4, 1),
        Change(b"customer/2", None, True, 0, 4, 0),
        Change(b"other", b"x", False, 2, 4, 1),
    )
    found = made.of_record(record("txn", None, b"...", changes=both))
    assert found.rows == [RowChange(7, (1,), (1, "x")), RowChange(7, (2,), None)]


def test_a_key_of_the_state_is_the_same_row() -> None:
    """A sink that begins with the state has the rows that the log would have made."""
    made = mapping(KEYS, COLUMNS)
    item = Item(b"customer/5", b'{"name": "Ada", "born": "1815-12-10"}', 2, 9, 3)
    assert made.of_item(item, 7) == RowChange(7, (5,), (5, "Ada", date(1815, 12, 10), 3))


def test_records_are_rows_by_their_index() -> None:
    """Appended records; the key may have any place."""
    columns = {"i": "index", "k": "key", "at": "time", "event": "event_time", "trace": "header.trace", "x": "value.a.b"}
    made = mapping(SinkSource(records="sensor/"), columns)
    found = made.of_record(
        record("append", b"sensor/1", b'{"a": {"b": [1]}}', headers=(("trace", b"t"),), client_time_ms=0)
    )
    row = (7, "sensor/1", AT, datetime(1970, 1, 1, tzinfo=UTC), "t", [1])
    assert found.rows == [RowChange(7, (7,), row)]
    assert made.of_record(record("append", b"other", b"{}")).rows == ()
    assert made.of_record(record("put", b"sensor/1", b"{}")).rows == ()


def captured(op: str, before: Any, after: Any, table: str = "public.orders", **more: Any) -> Record:
    """A change that an import of PostgreSQL wrote."""
    value = {"op": op, "table": table, "lsn": "0/5", "n": 1, "xid": 9, "time": "…", "before": before, "after": after}
    return record("append", b'["public.orders",1]', json.dumps(value | more, separators=(",", ":")).encode())


ORDERS = SinkSource(table="public.orders")


def test_changes_of_a_table_are_rows_of_a_transaction() -> None:
    """An update that moves the key is a delete and an insert; decimals keep every digit."""
    made = mapping(ORDERS, {"id": "value.id:bigint", "amount": "value.amount:decimal(20,10)"})
    found = made.of_record(captured("insert", None, {"id": 1, "amount": 1234567890.0123456789}))
    assert (found.transaction, found.is_last) == ("0/5", False)
    exact = captured("insert", None, {"id": 1, "amount": None})
    exact = msgspec.structs.replace(
        exact, value=(exact.value or b"").replace(b'"amount":null', b'"amount":0.1234567891')
    )
    assert made.of_record(exact).rows[0].row == (1, Decimal("0.1234567891"))
    moved = made.of_record(captured("update", {"id": 1, "amount": 2}, {"id": 3, "amount": 2}, last=True))
    assert moved.rows == [RowChange(7, (1,), None), RowChange(7, (3,), (3, Decimal("2.0000000000")))]
    assert moved.is_last
    assert made.of_record(captured("delete", {"id": 3}, None)).rows == [RowChange(7, (3,), None)]
    truncate = (
        b'{"op":"truncate","table":"public.orders","lsn":"0/5","n":1,"xid":9,"cascade":false,"restart_identity":false}'
    )
    assert made.of_record(record("append", b'["public.orders"]', truncate)).truncates
    other = made.of_record(captured("insert", None, {"id": 1}, "public.others", last=True))
    assert (other.rows, other.transaction, other.is_last) == ([], "0/5", True)
    snapshot = made.of_record(captured("snapshot", None, {"id": 1}, xid=None))
    assert (len(snapshot.rows), snapshot.transaction) == (1, None)


def test_a_large_column_that_did_not_change_stays() -> None:
    """PostgreSQL does not log it, and the store has it."""
    made = mapping(ORDERS, {"id": "value.id", "note": "value.note"})
    found = made.of_record(captured("update", None, {"id": 1}, unchanged=["note"]))
    assert found.rows == [RowChange(7, (1,), (1, UNCHANGED))]


def test_rows_of_an_import_are_read_by_its_schema() -> None:
    """CSV cells become numbers; records of other imports are not this sink's."""
    columns = (InputColumn("id", "integer"), InputColumn("mag", "number"))
    schema = Schema(
        version=SCHEMA_VERSION,
        source="quakes.csv",
        format=InputFormat.CSV,
        values="csv",
        columns=columns,
        dialect=Dialect(),
    )
    made = mapping(SinkSource(of_import="quakes.csv"), {"id": "value.id:bigint", "mag": "value.mag:double"})
    assert made.of_record(record("append", None, b"1,2.5", session=4)).rows == ()
    made.of_record(record("put", key_of(4), encode(schema)))
    assert made.of_record(record("append", None, b"1,2.5", session=4)).rows == [RowChange(7, (1,), (1, 2.5))]
    assert made.of_record(record("append", None, b"1,2.5", session=5)).rows == ()


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("integer", "bigint"),
        ("int64", "bigint"),
        ("uint64", "string"),
        ("decimal128(30, 2)", "string"),
        ("double", "double"),
        ("bool", "boolean"),
        ("large_string", "string"),
        ("timestamp[us]", "string"),
        ("list<element: int64>", "json"),
        ("object", "json"),
    ],
)
def test_all_columns_of_an_import_have_the_types_of_its_schema(kind: str, column: str) -> None:
    """Of Parquet and Arrow too: text is no JSON in quotes, and no digit of a long number is lost."""
    made = mapping(SinkSource(of_import="taxi.parquet"), {"x": "value.x:json"})
    columns = (InputColumn("x", kind),)
    schema = Schema(
        version=SCHEMA_VERSION, source="taxi.parquet", format=InputFormat.PARQUET, values="json", columns=columns
    )
    made.of_record(record("put", key_of(4), encode(schema)))
    assert made.imported == {"x": f"value.x:{column}"}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"[1]", r"no object with members: \[1\]"),
        (b"{", "not readable"),
        (b'{"born": "x"}', r"born is x, which is no date of ISO 8601 \(value.born:date\)"),
        (b'{"born": 5}', "born is 5, which is no date"),
    ],
)
def test_what_does_not_fit_names_index_key_and_column(value: bytes, reason: str) -> None:
    """And nothing is stored of it."""
    with pytest.raises(Misfit, match=f"index 7, with the key customer/5: .*{reason}"):
        mapping(KEYS, COLUMNS).of_record(record("put", b"customer/5", value))


def test_a_fraction_without_a_type_keeps_its_digits() -> None:
    """That of msgpack is written as that of JSON, so that every store keeps the same text."""
    made = mapping(SinkSource(records="", values="msgpack"), {"i": "index", "n": "value.n"})
    for number in (1e300, 0.1, -0.0):
        (change,) = made.of_record(record("append", None, msgspec.msgpack.encode({"n": number}))).rows
        assert change.row is not None
        assert (type(change.row[1]), float(change.row[1])) == (Decimal, number)
        assert "E" not in str(change.row[1])


def test_a_key_has_a_value() -> None:
    """A NULL in a primary key is no row."""
    made = mapping(ORDERS, {"id": "value.id"})
    with pytest.raises(Misfit, match="id is of the primary key and has no value"):
        made.of_record(captured("insert", None, {"id": None}))


@pytest.mark.parametrize(
    ("source", "columns", "key", "message"),
    [
        (KEYS, {"id": "value.id"}, ["id"], "a deleted key has no value"),
        (KEYS, {"id": "key", "i": "index"}, ["id"], "i comes from index, which keys of the store lack"),
        (ORDERS, {"id": "value.id", "v": "version"}, ["id"], "which only keys of the store have"),
        (ORDERS, {"id": "value.id"}, ["no"], "primary_key names no, which columns does not have"),
        (ORDERS, {"id": "value.id"}, [], "primary_key names each column"),
        (ORDERS, {}, ["id"], "columns is empty"),
        (ORDERS, {"id": "valu.id"}, ["id"], "id comes from 'valu.id'"),
        (ORDERS, {"id": "value.id:number"}, ["id"], "id: 'number' is no type"),
        (ORDERS, {"id": "value.id:decimal(2,5)"}, ["id"], "more digits behind the point"),
    ],
)
def test_wrong_columns_are_refused(source: SinkSource, columns: dict[str, str], key: list[str], message: str) -> None:
    """Before anything is opened."""
    with pytest.raises(ColumnError, match=message):
        RowMapping(source, columns, key)


@pytest.mark.parametrize(
    ("kind", "value", "cell"),
    [
        ("string", {"a": Decimal("1.10")}, '{"a":1.10}'),
        ("string", b"x", "x"),
        ("int", "12", 12),
        ("bigint", Decimal("1e3"), 1000),
        ("bigint", Decimal("-123.000000000000000000000000000000"), -123),
        ("double", "1.5", 1.5),
        ("double", 2, 2.0),
        ("decimal(5,2)", 1.25, Decimal("1.25")),
        ("decimal(5,2)", "9.5", Decimal("9.50")),
        (
            "decimal(38,18)",
            Decimal("12345678901234567890.0123456789"),
            Decimal("12345678901234567890.012345678900000000"),
        ),
        ("boolean", "true", True),
        ("boolean", False, False),
        ("date", "2026-01-02", date(2026, 1, 2)),
        ("timestamp", "2023-11-14T23:13:20+01:00", AT),
        ("timestamp", "2023-11-14 22:13:20", AT),
        ("binary", b"\xff", b"\xff"),
        ("binary", "x", b"x"),
        ("json", [1, {"a": None}], '[1,{"a":null}]'),
    ],
)
def test_a_value_becomes_a_cell(kind: str, value: Any, cell: Any) -> None:
    """By the types of Spark SQL."""
    assert cast_of(kind)(value) == cell


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", b"\xff"),
        ("int", 1 << 31),
        ("int", 1.5),
        ("int", True),
        ("int", "1.0"),
        ("bigint", [1]),
        ("bigint", Decimal("NaN")),
        ("bigint", Decimal("1e999999999")),
        ("double", "x"),
        ("double", Decimal("1e999")),
        ("decimal(5,2)", 1234),
        ("decimal(5,2)", "1.255"),
        ("decimal(5,2)", "nan"),
        ("decimal(5,2)", True),
        ("boolean", "yes"),
        ("boolean", 2),
        ("date", "2026-13-01"),
        ("date", 20260101),
        ("timestamp", "now"),
        ("binary", 1),
    ],
)
def test_a_value_that_does_not_fit_is_refused(kind: str, value: Any) -> None:
    """Nothing is rounded, cut or guessed."""
    with pytest.raises((ValueError, TypeError, ArithmeticError)):
        cast_of(kind)(value)


@pytest.mark.parametrize("value", ["1" * 30 + ".5", "12345678901234567890123456789.0", "1e400", "1e-400"])
def test_a_number_of_many_digits_that_is_no_integer_is_called_so(value: str) -> None:
    """The context of decimals has 28 digits: beyond them its own error named a class of Python."""
    with pytest.raises(ValueError, match=r"^no integer"):
        cast_of("bigint")(Decimal(value))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1e999999999", "1E+999999999"),
        ("-1.50e-999999999", "-1.5E-999999999"),
        ("0e999999999", "0"),
        ("1e3000000", "1E+3000000"),
        ("1.50e3", "1500"),
        ("1e-7", "0.0000001"),
        ("1e100000", "1" + "0" * 100_000),
    ],
)
def test_a_number_of_few_bytes_stays_a_text_of_few_bytes(value: str, text: str) -> None:
    """Without an exponent these would be texts of a gigabyte: a sink takes less than 64 MB."""
    assert number_text(Decimal(value)) == text
    found = mapping(KEYS, {"id": "suffix", "n": "value.n"}).of_record(
        record("put", b"customer/1", b'{"n": %s}' % value.encode())
    )
    (row,) = (change.row for change in found.rows)
    assert row is not None
    assert number_text(row[1]) == text
