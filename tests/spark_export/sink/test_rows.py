"""Rows with a user's own columns become records, and the source reads the same rows from them; no Spark runs."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from raftlog.raft.codec.block import BlockRecord, encode_headers
from raftlog.spark_export.errors import UsageError
from raftlog.spark_export.sink import sink
from raftlog.spark_export.sink.options import parse_sink_options
from raftlog.spark_export.sink.rows import check_columns, pairs, records
from raftlog.statemachine.commands import Operation
from tests.spark_export.imports import appended
from tests.spark_export.server import Served
from tests.spark_export.source.shown import shown

TIME = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
PLACE = T.StructType().add("x", "double").add("at", "timestamp")
SCHEMA = (
    T.StructType()
    .add("user", "string")
    .add("when", "timestamp")
    .add("n", "long")
    .add("d", "double")
    .add("is", "boolean")
    .add("day", "date")
    .add("price", T.DecimalType(20, 3))
    .add("raw", "binary")
    .add("place", PLACE)
    .add("tags", T.ArrayType(T.StringType()))
    .add("scores", T.MapType(T.StringType(), T.DoubleType()))
)
ROWS: list[dict[str, Any]] = [
    {
        "user": 'ü "x", y\nz',
        "when": TIME,
        "n": -(2**63),
        "d": 0.1,
        "is": True,
        "day": date(2026, 1, 2),
        "price": Decimal("12345678901234567.100"),
        "raw": b"\x00\xff",
        "place": {"x": 1.5, "at": TIME},
        "tags": ["a", None, ""],
        "scores": [("a", 1.0), ("b", None)],
    },
    dict.fromkeys(SCHEMA.names),
    dict.fromkeys(SCHEMA.names) | {"user": "", "d": math.inf, "place": {"x": -math.inf, "at": None}, "tags": []},
]


def written(rows: list[dict[str, Any]], schema: T.StructType, **options: str) -> list[Any]:
    """The records of these rows."""
    from pyspark.sql.pandas.types import to_arrow_schema

    parsed = parse_sink_options({"endpoints": "127.0.0.1:1", **options}, streaming=False)
    check_columns(schema, parsed)
    batch = pa.RecordBatch.from_pylist(rows, to_arrow_schema(schema, timezone="UTC"))
    return [*records(iter([batch]), parsed)]


def log_of(found: list[Any]) -> Served:
    """A log of these records."""
    return Served(
        appended(
            *(BlockRecord(Operation.APPEND, each.key, each.value, encode_headers([]), each.time_ms) for each in found)
        )
    )


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_what_is_written_is_read_back(form: str) -> None:
    """Every type, null and empty, not finite, nested: key and time are in their own places, and the rest is in the
    value, from which the source makes the same columns. In JSON bytes are base64.
    """
    found = written(ROWS, SCHEMA, valueFormat=form, keyColumn="user", timeColumn="when")
    assert [(each.key, each.time_ms) for each in found] == [
        ('ü "x", y\nz'.encode(), TIME.timestamp() * 1000),
        (None, None),
        (b"", None),
    ]
    rest = T.StructType([each for each in SCHEMA.fields if each.name not in ("user", "when")])
    rows = shown(log_of(found), schema=T.StructType([*rest.fields]).add("_rescued_data", "string"), valueFormat=form)
    due = [{name: row[name] for name in rest.names} | {"_rescued_data": None} for row in ROWS]
    if form == "json":
        due[0]["raw"] = b"AP8="
    assert rows == due


def test_csv_is_read_back_by_the_order_of_its_columns() -> None:
    """Quotes, delimiters and line ends in cells; nested values are JSON, and null is an empty cell."""
    schema = T.StructType([each for each in SCHEMA.fields if each.name != "raw"])
    rows = [{name: row[name] for name in schema.names} for row in ROWS]
    found = written(rows, schema, valueFormat="csv")
    assert found[0].value.decode() == (
        '"ü ""x"", y\nz",2026-01-02T03:04:05.678000Z,-9223372036854775808,0.1,true,2026-01-02,12345678901234567.100,'
        '"{""x"":1.5,""at"":""2026-01-02T03:04:05.678000Z""}","[""a"",null,""""]","{""a"":1.0,""b"":null}"'
    )
    flat = T.StructType(
        [
            T.StructField(each.name, each.dataType if isinstance(each.dataType, T.AtomicType) else T.StringType())
            for each in schema.fields
        ]
    ).add("_rescued_data", "string")
    back = shown(log_of(found), schema=flat, valueFormat="csv")
    assert [row["_rescued_data"] for row in back] == [None] * 3
    simple = ("when", "n", "is", "day", "price")
    assert [[row[name] for name in simple] for row in back] == [[row[name] for name in simple] for row in ROWS]
    assert [row["user"] for row in back] == ['ü "x", y\nz', None, None]


def test_a_csv_cell_with_any_line_end_is_read_back() -> None:
    """It is quoted, also if nothing else in the cell needs quotes."""
    schema = T.StructType().add("a", "string").add("b", "string").add("c", "integer")
    cells = ["line one\nline two", "one\rtwo", "one\r\ntwo", "\n", "\r", "ends\r\n", "plain"]
    found = written([{"a": "x", "b": cell, "c": 3} for cell in cells], schema, valueFormat="csv")
    assert [each.value for each in found] == [f'x,"{cell}",3'.encode() for cell in cells[:-1]] + [b"x,plain,3"]
    (last,) = written([{"a": "x\n"}], T.StructType().add("a", "string"), valueFormat="csv")
    assert last.value == b'"x\n"'
    back = shown(log_of(found), schema=T.StructType([*schema.fields]).add("_rescued_data", "string"), valueFormat="csv")
    assert back == [{"a": "x", "b": cell, "c": 3, "_rescued_data": None} for cell in cells]


def test_a_row_always_gives_the_same_bytes() -> None:
    """A repeated task must send the requests that it sent before."""
    for form in ("json", "msgpack", "csv"):
        one, other = (written(ROWS, SCHEMA, valueFormat=form, keyColumn="user") for _ in range(2))
        assert one == other


def test_a_request_ends_only_where_the_next_row_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by its rows nor by its bytes; the bytes of a request that was sent do not count for the next one."""
    monkeypatch.setattr(sink, "BYTES_PER_REQUEST", 100)
    options = parse_sink_options({"endpoints": "127.0.0.1:1", "recordsPerRequest": "4"}, streaming=False)
    sizes = [60, 60, 30, 10, 10, 10, 10, 10, 10, 95, 200, 50, 50]
    sent: list[list[int]] = []
    task: Any = SimpleNamespace(is_done=False, append=lambda chunk: sent.append([len(each.value) for each in chunk]))
    sink.write_rows(task, options, iter([pa.RecordBatch.from_pylist([{"value": b"x" * size} for size in sizes])]))
    assert sent == [[60], [60, 30, 10], [10, 10, 10, 10], [10], [95], [200], [50, 50]]


def test_rows_are_put_under_their_key() -> None:
    """With operation=put; integers are keys as text. A row without a key is an error."""
    schema = T.StructType().add("id", "integer").add("name", "string")
    options = parse_sink_options({"endpoints": "127.0.0.1:1", "operation": "put", "keyColumn": "id"}, streaming=False)
    check_columns(schema, options)
    batch = pa.RecordBatch.from_pylist([{"id": 7, "name": "a"}, {"id": None, "name": "b"}])
    found = pairs(iter([batch]), options)
    assert next(found) == (b"7", b'{"name":"a"}')
    with pytest.raises(UsageError, match="a row to put has no key"):
        next(found)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"valueFormat": "xml"}, "valueFormat is 'xml'; it may be json, msgpack, csv"),
        ({"keyColumn": "User"}, "keyColumn is 'User'; the columns are user, when, n"),
        ({"keyColumn": "d"}, "keyColumn is 'd', which is double; it must be string, binary, tinyint"),
        ({"timeColumn": "day"}, "timeColumn is 'day', which is date; it must be timestamp"),
        ({"keyColumn": "when"}, "keyColumn is 'when', which is timestamp"),
        ({"operation": "put", "valueFormat": "json"}, "put needs keyColumn, and no timeColumn"),
        ({"operation": "put", "keyColumn": "user", "timeColumn": "when"}, "put needs keyColumn, and no timeColumn"),
        ({}, "column 'user' cannot be written: select only value, key, .* or set valueFormat to json, msgpack, csv"),
    ],
)
def test_wrong_roles_of_columns_are_refused(options: dict[str, str], match: str) -> None:
    """Each names the option, its value, and what it may be; nothing is written."""
    with pytest.raises(UsageError, match=match):
        written([], SCHEMA, **options)


def test_columns_that_no_format_carries_are_refused() -> None:
    """An interval, and a frame of which nothing is left for the value."""
    with pytest.raises(UsageError, match=r"column a\.b cannot be interval day to second"):
        written([], T.StructType().add("a", T.StructType().add("b", T.DayTimeIntervalType())), valueFormat="json")
    with pytest.raises(UsageError, match="no column is left for the value"):
        written([], T.StructType().add("k", "string"), keyColumn="k")
