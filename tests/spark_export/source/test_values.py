"""Values as typed columns: formats, types, and the rescued column, which takes what does not fit; no Spark runs."""

import json
import math
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from raftlog.raft.codec.block import BlockRecord
from raftlog.spark_export.errors import ExportError, UsageError
from raftlog.spark_export.source.fitting import NOTHING, column, fit
from raftlog.statemachine.commands import Operation
from tests.spark_export.imports import appended
from tests.spark_export.server import Served
from tests.spark_export.source.shown import shown

INT, TEXT = T.IntegerType(), T.StringType()
TYPES: dict[str, T.DataType] = {
    "TINYINT": T.ByteType(),
    "SMALLINT": T.ShortType(),
    "INT": INT,
    "BIGINT": T.LongType(),
    "FLOAT": T.FloatType(),
    "DOUBLE": T.DoubleType(),
    "BOOLEAN": T.BooleanType(),
    "TIMESTAMP": T.TimestampType(),
    "DATE": T.DateType(),
    "BINARY": T.BinaryType(),
    "STRING": TEXT,
    "PLACE": T.StructType().add("x", INT).add("y", TEXT),
    "TAGS": T.ArrayType(INT),
    "DECIMAL": T.DecimalType(6, 2),
    "MAP": T.MapType(TEXT, T.LongType()),
}
"""Types by name: Spark's own parser of names needs a session."""


def ddl(text: str) -> T.StructType:
    """A user's schema, as `name TYPE, …`."""
    return T.StructType([T.StructField(name, TYPES[kind]) for name, kind in map(str.split, text.split(", "))])


def rows_of(*values: bytes, schema: str, **options: Any) -> list[dict[str, Any]]:
    """The rows of these values, with the rescued column as an object."""
    rows = shown(Served(appended(*values)), schema=ddl(schema), **options)
    for row in rows:
        if row.get("_rescued_data") is not None:
            row["_rescued_data"] = json.loads(row["_rescued_data"])
    return rows


def jsons(*values: Any) -> list[bytes]:
    """Each value in JSON."""
    return [msgspec.json.encode(value) for value in values]


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_what_does_not_fit_is_rescued(form: str) -> None:
    """Unknown members, members of another type, parts of structures, values that are no object, and values of no
    format: each is in the rescued column, and what fits is in its own. Together they hold every member.
    """
    encode = msgspec.json.encode if form == "json" else msgspec.msgpack.encode
    values: list[Any] = [
        {"user": "ü", "amount": 1.5, "place": {"x": 1, "y": "b"}},
        {"user": "v", "amount": "much", "more": [1, {"a": None}]},
        {"amount": 2, "place": {"x": "far", "y": "near", "z": 3}},
        {"user": None, "tags": ["a", {"b": 1}], "place": [1]},
        [1, 2],
        {},
    ]
    rows = rows_of(
        *(encode(value) for value in values),
        b"\xc1\xff",
        b"",
        valueFormat=form,
        schema="user STRING, amount DOUBLE, place PLACE, tags TAGS, _rescued_data STRING",
    )
    blank = {"user": None, "amount": None, "place": None, "tags": None, "_rescued_data": None}
    broken = {"_value_b64": "wf8="}
    assert rows == [
        {"user": "ü", "amount": 1.5, "place": {"x": 1, "y": "b"}, "tags": None, "_rescued_data": None},
        blank | {"user": "v", "_rescued_data": {"amount": "much", "more": [1, {"a": None}]}},
        blank | {"amount": 2.0, "place": {"x": None, "y": "near"}, "_rescued_data": {"place": {"x": "far", "z": 3}}},
        blank | {"_rescued_data": {"tags": ["a", {"b": 1}], "place": [1]}},
        blank | {"_rescued_data": [1, 2]},
        blank,
        blank | {"_rescued_data": broken},
        blank | {"_rescued_data": ""},
    ]


def test_types_take_what_they_hold_without_loss() -> None:
    """Each type with values that fit it and values that do not: sizes, exact numbers, dates, decimals, maps."""
    good = {
        "t": 127,
        "s": -32768,
        "i": 3.0,
        "l": 2**63 - 1,
        "f": 0.5,
        "d": 2**53,
        "b": True,
        "at": "2026-01-02T03:04:05.5Z",
        "day": "2026-01-02",
        "dec": "12.30",
        "m": {"a": 1, "b": None},
        "bin": "ü",
        "text": {"a": [1]},
    }
    bad = {
        "t": 128,
        "s": True,
        "i": 1 << 31,
        "l": 1.5,
        "f": 1e39,
        "d": 2**53 + 1,
        "b": 1,
        "at": 5,
        "day": "02.01.2026",
        "dec": "1.234",
        "m": {"a": "x"},
        "bin": 7,
    }
    schema = (
        "t TINYINT, s SMALLINT, i INT, l BIGINT, f FLOAT, d DOUBLE, b BOOLEAN, at TIMESTAMP, day DATE, "
        "dec DECIMAL, m MAP, bin BINARY, text STRING, _rescued_data STRING"
    )
    fits, misfits = rows_of(*jsons(good, bad), schema=schema, valueFormat="json")
    assert fits == good | {
        "i": 3,
        "d": 2.0**53,
        "at": datetime(2026, 1, 2, 3, 4, 5, 500_000, UTC),
        "day": date(2026, 1, 2),
        "dec": Decimal("12.30"),
        "m": [("a", 1), ("b", None)],
        "bin": "ü".encode(),
        "text": '{"a":[1]}',
        "_rescued_data": None,
    }
    assert misfits == dict.fromkeys(good) | {"_rescued_data": bad}
    zone = rows_of(
        *jsons({"at": "2026-01-02T03:00:00+02:00"}, {"at": "2026-01-02 01:00"}),
        schema="at TIMESTAMP",
        valueFormat="json",
    )
    assert {row["at"] for row in zone} == {datetime(2026, 1, 2, 1, 0, tzinfo=UTC)}
    odd = rows_of(*jsons({"d": "NaN"}, {"d": "-inf"}), schema="d DOUBLE, _rescued_data STRING", valueFormat="json")
    assert str([row["d"] for row in odd]) == "[nan, -inf]"
    assert [row["_rescued_data"] for row in odd] == [None, None]


@pytest.mark.parametrize(
    ("options", "values", "cells"),
    [
        ({}, [b'a,"b, ""c""",3', b'"two\nlines",,4\r'], [("a", 'b, "c"', 3), ("two\nlines", None, 4)]),
        ({"delimiter": ";", "quote": "'"}, [b"a;'b; c';3", b"'d''e';\xc3\xbc;4"], [("a", "b; c", 3), ("d'e", "ü", 4)]),
        ({"delimiter": r"\t", "escape": "\\"}, [b'a\t"b \\"c\\""\t3'], [("a", 'b "c"', 3)]),
        ({"delimiter": "|"}, [b"a,1|b|-3"], [("a,1", "b", -3)]),
    ],
)
def test_dialects_of_csv(options: dict[str, str], values: list[bytes], cells: list[tuple[Any, ...]]) -> None:
    """Delimiters, quotes, escapes, and line ends inside of quotes; the user's schema names the cells in order, or the
    option `columns` does, and the schema some of them in any order."""
    rows = rows_of(
        *values, schema="one STRING, two STRING, n BIGINT, _rescued_data STRING", valueFormat="csv", **options
    )
    assert [tuple(row.values()) for row in rows] == [(*each, None) for each in cells]
    named = rows_of(
        *values, schema="n INT, index BIGINT, one STRING", valueFormat="csv", columns="one,two,n", **options
    )
    assert [(row["n"], row["one"]) for row in named] == [(n, one) for one, _, n in cells]


def test_rows_of_csv_that_do_not_fit_are_rescued() -> None:
    """Cells of another type, too many and too few cells, a quote that does not end, other bytes than UTF-8. An empty
    cell is null in a column that is not of text."""
    rows = rows_of(
        b"1,2.5,x",
        b"one,,x",
        b"1,2",
        b"1,2,3,4",
        b'1,"2,3',
        b"\xff,1,2",
        b"0x1F,1e3,",
        b"1_0, 1,TRUE",
        b"7,nan,y",
        schema="n BIGINT, d DOUBLE, text STRING, _rescued_data STRING",
        valueFormat="csv",
    )
    assert str([tuple(row.values()) for row in rows]) == str(
        [
            (1, 2.5, "x", None),
            (None, None, "x", {"n": "one"}),
            (1, 2.0, None, {"_cells": ["1", "2"]}),
            (1, 2.0, "3", {"_cells": ["1", "2", "3", "4"]}),
            (None, None, None, '1,"2,3'),
            (None, None, None, {"_value_b64": "/ywxLDI="}),
            (None, 1000.0, None, {"n": "0x1F"}),
            (None, None, "TRUE", {"n": "1_0", "d": " 1"}),
            (7, float("nan"), "y", None),
        ]
    )
    wide = rows_of(b'"' + b"x" * 200_000 + b'",1', schema="text STRING, n INT", valueFormat="csv")
    assert [(len(row["text"]), row["n"]) for row in wide] == [(200_000, 1)]


def test_without_the_rescued_column_nothing_is_lost_silently() -> None:
    """A warning counts the records of which a part became null and shows the first one; FAILFAST stops there. Members
    that the schema does not name are a choice of the user, and no loss."""
    values = jsons({"n": 1, "more": 2}, {"n": "x"}, {"n": None}, {"n": 2.5})
    with pytest.warns(UserWarning, match=r'parts of 2 values from index 1 to 4 .* n in the value at index 2 .*: "x"\.'):
        rows = rows_of(*values, schema="n INT", valueFormat="json")
    assert [row["n"] for row in rows] == [1, None, None, None]
    with pytest.raises(ExportError, match=r'n in the value at index 2 is not int32: "x"\. With mode=PERMISSIVE it is'):
        rows_of(*values, schema="n INT, _rescued_data STRING", valueFormat="json", mode="FAILFAST")
    assert rows_of(*values[:1], schema="n INT", valueFormat="json", mode="FAILFAST") == [{"n": 1}]


def test_a_member_with_the_name_of_a_column_has_a_prefix() -> None:
    """`value_time` is the member `time`, for `time` is the log's; the rescued column may have another name."""
    log = appended(BlockRecord(Operation.APPEND, b"k", b'{"time": 5, "Key": "a", "x": 1}'))
    schema = ddl("key BINARY, value_time BIGINT, value_Key STRING, rest STRING")
    rows = shown(Served(log), schema=schema, valueFormat="json", rescuedDataColumn="rest")
    assert rows == [{"key": b"k", "value_time": 5, "value_Key": "a", "rest": '{"x":1}'}]


def test_event_time_is_the_clients_time_or_the_leaders() -> None:
    """The column is a timestamp in every format; a member may have that name with another type."""
    from raftlog.raft.codec.block import encode_headers
    from tests.spark_export import logs

    own = BlockRecord(Operation.APPEND, None, b'{"event_time": "late"}', encode_headers([]), logs.START_MS - 86_400_000)
    log = appended(own, b'{"event_time": "now"}')
    for form in ("raw", "json", "auto"):
        rows = shown(
            Served(log), schema=ddl("event_time TIMESTAMP, time TIMESTAMP, client_time TIMESTAMP"), valueFormat=form
        )
        assert [row["event_time"] for row in rows] == [row["client_time"] or row["time"] for row in rows]
        assert rows[0]["event_time"] == logs.EPOCH + (logs.START_MS - 86_400_000) * (
            rows[0]["event_time"].resolution * 1000
        )
    text = shown(Served(log), schema=ddl("event_time STRING"), valueFormat="json")
    assert [row["event_time"] for row in text] == ["late", "now"]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"valueFormat": "xml"}, "valueFormat is 'xml'; it may be raw, json, msgpack, csv, auto"),
        ({"valueFormat": "json", "delimiter": ";"}, "delimiter is for valueFormat=csv, but valueFormat is 'json'"),
        ({"valueFormat": "csv", "delimiter": ";;"}, "delimiter is ';;'; it must be one character"),
        ({"valueFormat": "csv", "quote": "a"}, "quote is 'a'; it must be one character"),
        ({"valueFormat": "csv", "delimiter": '"'}, "delimiter '\"', quote '\"' and escape '' must differ"),
        ({"valueFormat": "csv", "columns": "a,,b"}, "columns is 'a,,b'; it must name each column"),
        ({"valueFormat": "csv", "columns": "a,A"}, "columns is 'a,A'; it must name each column of a row of CSV once"),
        ({"inferSchema": "true"}, "inferSchema needs valueFormat json, msgpack, csv or auto, but valueFormat is 'raw'"),
        ({"valueFormat": "json", "inferSchema": "yes"}, "inferSchema is 'yes'; it must be true or false"),
        ({"valueFormat": "json", "samplingRecords": "0"}, "samplingRecords is '0'; it must be a whole number from 1"),
        ({"valueFormat": "json", "rescuedDataColumn": "Key"}, "rescuedDataColumn is 'Key'; it must be a name that no"),
        (
            {"valueFormat": "json", "importSource": "a.csv"},
            "importSource reads values as they were .*json",
        ),
        ({"importSource": " "}, "importSource is empty"),
        ({"importSource": "a.csv", "asOf": "5"}, "importSource says nothing beside asOf"),
        ({"importSource": "a.csv", "changes": "true"}, "valueFormat must be raw beside changes"),
    ],
)
def test_wrong_options_of_values_are_refused(options: dict[str, Any], match: str) -> None:
    """Each with its name, its value, and what it may be."""
    with pytest.raises(UsageError, match=match):
        shown(Served(appended(b"{}")), schema=ddl("index BIGINT"), **options)


@pytest.mark.parametrize("seed", range(20))
def test_a_column_is_what_each_value_gives(seed: int) -> None:
    """Whole columns are made faster than value by value, with the same result: values, rests and misfits."""
    chance = random.Random(seed)
    scalars = [None, True, 0, -1, 2**53 + 1, 2**70, 0.5, 3.0, math.inf, "x", "", "7", "NaN", "\ud800", b"\xff"]

    def value(depth: int) -> Any:
        kind = chance.random()
        if depth and kind < 0.3:
            return {name: value(depth - 1) for name in chance.sample("abcd", chance.randint(0, 3))}
        if depth and kind < 0.5:
            return [value(depth - 1) for _ in range(chance.randint(0, 3))]
        return chance.choice(scalars)

    simple = [pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.binary(), pa.int8(), pa.float32()]
    inner = pa.struct([("a", chance.choice(simple)), ("b", pa.list_(chance.choice(simple)))])
    for kind in (*simple, inner, pa.list_(inner), pa.list_(chance.choice(simple)), pa.map_(pa.string(), pa.int64())):
        for values in ([value(3) for _ in range(20)], [chance.choice([1, None]), 2], [[1], None, []], [{"a": None}]):
            made, left = column(values, kind, None)
            fits = [fit(each, kind) for each in values]
            assert str(made.to_pylist()) == str(pa.array([each.value for each in fits], kind).to_pylist())
            made.validate(full=True)
            rests = {place: each for place, each in enumerate(fits) if each.rest is not NOTHING}
            assert left.keys() == rests.keys()
            for place, each in rests.items():
                assert (left[place].rest, left[place].is_misfit) == (each.rest, each.is_misfit)


def test_json_that_other_programs_write_is_read_as_it_was_imported() -> None:
    """NaN and numbers beyond all floats, which strict JSON does not have; the other members are not lost with them."""
    rows = rows_of(
        b'{"d":NaN,"n":1}',
        b'{"d":-Infinity}',
        b'{"d":1e400,"n":2}',
        b"{'n':3}",
        schema="d DOUBLE, n INT, _rescued_data STRING",
        valueFormat="json",
    )
    assert str([tuple(row.values()) for row in rows]) == str(
        [(math.nan, 1, None), (-math.inf, None, None), (math.inf, 2, None), (None, None, "{'n':3}")]
    )
