"""Columns without a schema of the user: from the schemas of imports in the log, and from samples; no Spark runs."""

import json
from typing import Any

import msgspec
import pytest

from raftlog.cluster.importer.formats.dialect import Dialect
from raftlog.cluster.importer.formats.schema import encode, key_of
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.spark_export.columns.schema import SHOWN
from raftlog.spark_export.errors import ExportError, UsageError
from raftlog.spark_export.source.views import default_schema
from raftlog.statemachine.commands import Operation
from tests.spark_export import logs
from tests.spark_export.imports import add_import, appended, schema
from tests.spark_export.server import Served, serving
from tests.spark_export.source.shown import shown


def columns_of(log: logs.Log, **options: Any) -> dict[str, str]:
    """The columns beside the log's own, with their types."""
    with serving(Served(log)) as url:
        found = default_schema({"endpoints": url, "timeoutSeconds": "1", **options})
    assert found.names[: len(SHOWN.names)] == SHOWN.names
    return {each.name: each.dataType.simpleString() for each in found.fields[len(SHOWN.names) :]}


def members_of(log: logs.Log, **options: Any) -> list[dict[str, Any]]:
    """The rows without the log's own columns, with the rescued column as an object."""
    rows = [{name: row[name] for name in row if name not in SHOWN.names} for row in shown(Served(log), **options)]
    for row in rows:
        row["_rescued_data"] = row["_rescued_data"] and json.loads(row["_rescued_data"])
    return rows


QUAKES = schema("csv", ("DateTime", "string"), ("Magnitude", "number"), ("time", "integer"), dialect=Dialect(";"))
VISITS = schema("json", ("Magnitude", "string"), ("place", "object"), ("n", "integer"), source="visits.ndjson")


def two_imports() -> tuple[logs.RealLog, int, int]:
    """Two imports whose records alternate with appends of others, and their sessions."""
    log = appended(b'{"n": 1, "own": true}', b"no format at all")
    one = add_import(log, QUAKES, [b"2016/01/01;1.5;7", b'"a;b";big;8'], [b"2016/01/02;;9"], repeat=True)
    log.commit(encode_block([BlockRecord(Operation.APPEND, b"k", msgspec.msgpack.encode({"n": 2}))]))
    other = add_import(log, VISITS, [b'{"Magnitude": 3, "place": {"x": 1}, "n": 4}', b'{"n": "five", "more": 6}'])
    return log, one, other


def test_imports_name_the_columns() -> None:
    """valueFormat=auto has the columns of all imports, each record read as its import wrote it. Types that differ
    become text. Others' records are JSON or msgpack by their first byte; the rest is rescued. Repetitions and the
    schemas' own records do not come.
    """
    log, _, _ = two_imports()
    assert columns_of(log, valueFormat="auto") == {
        "DateTime": "string",
        "Magnitude": "string",
        "value_time": "bigint",
        "place": "string",
        "n": "bigint",
        "_rescued_data": "string",
    }
    blank = dict.fromkeys(("DateTime", "Magnitude", "value_time", "place", "n", "_rescued_data"))
    assert members_of(log, valueFormat="auto") == [
        blank | {"n": 1, "_rescued_data": {"own": True}},
        blank | {"_rescued_data": "no format at all"},
        blank | {"DateTime": "2016/01/01", "Magnitude": "1.5", "value_time": 7},
        blank | {"DateTime": "a;b", "Magnitude": "big", "value_time": 8},
        blank | {"DateTime": "2016/01/02", "Magnitude": None, "value_time": 9},
        blank | {"n": 2},
        blank | {"Magnitude": "3", "place": '{"x":1}', "n": 4},
        blank | {"_rescued_data": {"n": "five", "more": 6}},
    ]


def test_one_import_is_read_by_its_name_or_session() -> None:
    """Only its records come, with its own types; the log's columns alone work too. An unknown name lists those there
    are, and a log without imports says so."""
    log, one, other = two_imports()
    for source in ("quakes.csv", str(one)):
        assert columns_of(log, importSource=source) == {
            "DateTime": "string",
            "Magnitude": "double",
            "value_time": "bigint",
            "_rescued_data": "string",
        }
        assert members_of(log, importSource=source) == [
            {"DateTime": "2016/01/01", "Magnitude": 1.5, "value_time": 7, "_rescued_data": None},
            {"DateTime": "a;b", "Magnitude": None, "value_time": 8, "_rescued_data": {"Magnitude": "big"}},
            {"DateTime": "2016/01/02", "Magnitude": None, "value_time": 9, "_rescued_data": None},
        ]
    from pyspark.sql.types import LongType, StructType

    asked = StructType().add("index", LongType()).add("session", LongType())
    rows = shown(Served(log), schema=asked, importSource="visits.ndjson")
    assert [row["session"] for row in rows] == [other] * 2
    again = shown(Served(log), schema=asked, importSource=str(one), records="all")
    assert len(again) == 6  # the repetitions too
    with pytest.raises(UsageError, match=rf"'quake.csv'; the log has imports of quakes.csv \(session {one}\), visits"):
        columns_of(log, importSource="quake.csv")
    with pytest.raises(UsageError, match=r"'a\.csv'; the log has no import with a schema"):
        columns_of(appended(b"{}"), importSource="a.csv")


def test_every_type_of_an_import_is_a_type_of_spark() -> None:
    """Those of JSON and CSV, and those of Arrow by name; a type that Spark would cut is text."""
    types = {
        "integer": "bigint",
        "number": "double",
        "boolean": "boolean",
        "string": "string",
        "object": "string",
        "array": "string",
        "json": "string",
        "int8": "bigint",
        "uint64": "decimal(20,0)",
        "float": "double",
        "timestamp[us, tz=UTC]": "timestamp",
        "timestamp[ms]": "timestamp",
        "timestamp[ns]": "string",
        "date32[day]": "date",
        "decimal128(10, 2)": "decimal(10,2)",
        "decimal256(50, 2)": "string",
        "duration[ms]": "bigint",
        "list<item: int64>": "string",
        "binary": "string",
        "dictionary<x>": "string",
    }
    log = appended()
    columns = [(f"c{number}", name) for number, name in enumerate(types)]
    value = {name: None for name, _ in columns} | {"c8": 2**64 - 1, "c10": "2026-01-01T00:00:00Z", "c14": "1.25"}
    add_import(log, schema("json", *columns), [msgspec.json.encode(value)])
    assert [*columns_of(log, valueFormat="auto").values()] == [*types.values(), "string"]
    (row,) = members_of(log, valueFormat="auto")
    assert (row["_rescued_data"], row["c8"], str(row["c14"])) == (None, 2**64 - 1, "1.25")


@pytest.mark.parametrize(
    ("values", "lines", "expected"),
    [
        (
            "access",
            [b'10.0.0.1 - ann [01/Jan/2026:00:00:00 +0000] "GET /a HTTP/1.1" 200 5 "-" "curl"', b"broken"],
            [{"value_host": None, "host": "10.0.0.1", "user": "ann", "path": "/a", "status": "200"}, "broken"],
        ),
        ("syslog", [b"<34>1 2026-01-01T00:00:00Z web app - - - hello"], [{"host": "web", "message": "hello"}]),
        ("lines", [b"any text", b"\xff"], [{"line": "any text"}, {"_value_b64": "/w=="}]),
    ],
)
def test_lines_of_logs_have_the_fields_of_their_format(values: str, lines: list[bytes], expected: list[Any]) -> None:
    """Access logs, syslog, and plain lines, whose schema has no columns; a line that is none is rescued."""
    log = appended()
    add_import(log, schema(values), lines)
    for row, due in zip(members_of(log, valueFormat="auto"), expected, strict=True):
        if isinstance(due, dict) and "_value_b64" not in due:
            assert row["_rescued_data"] is None
            assert {name: row.get(name) for name in due} == due
        else:
            assert row["_rescued_data"] == due


def test_a_schema_that_cannot_be_read_is_an_error() -> None:
    """It names the key. Formats that need no schema go on."""
    log = appended(
        b'{"a": 1}', BlockRecord(Operation.PUT, key_of(7), encode(QUAKES).replace(b'"version":1', b'"version":9'))
    )
    with pytest.raises(ExportError, match=r"raftlog/import/0+7' cannot be read: .*version 9.*With valueFormat raw"):
        columns_of(log, valueFormat="auto")
    assert columns_of(log, valueFormat="json", inferSchema="true", operations="append")["a"] == "bigint"


def test_a_sample_names_the_columns() -> None:
    """Nested and changing members: integers and fractions are numbers, structures and arrays are joined, and what has
    no common type is text."""
    values: list[Any] = [
        {"n": 1, "d": 1, "mixed": 1, "place": {"x": 1}, "tags": [1], "none": None, "Key": "k", "big": 2**70, "N": 3},
        {"n": 2, "d": 0.5, "mixed": {"a": 1}, "place": {"y": [{"z": True}]}, "tags": [None, 0.5], "empty": {}},
        [1],
        *[{"n": number} for number in range(3, 30)],
        {"n": "last", "new": 1, "place": {"x": "far"}},
    ]
    log = appended(*map(msgspec.json.encode, values))
    whole = columns_of(log, valueFormat="json", inferSchema="true")
    assert whole == {
        "n": "string",
        "d": "double",
        "mixed": "string",
        "place": "struct<x:string,y:array<struct<z:boolean>>>",
        "tags": "array<double>",
        "none": "string",
        "value_Key": "string",
        "big": "string",
        "empty": "string",
        "new": "bigint",
        "_rescued_data": "string",
    }
    rows = members_of(log, valueFormat="json", inferSchema="true")
    assert rows[0]["big"] == str(2**70)
    assert rows[0]["_rescued_data"] == {"N": 3}  # Spark sees no difference between n and N
    assert rows[1]["mixed"] == '{"a":1}'
    assert rows[2]["_rescued_data"] == [1]
    assert [row["_rescued_data"] for row in rows[3:]] == [None] * 28


def test_a_sample_is_the_begin_and_the_end_of_the_range() -> None:
    """Records between are not looked at, and what they have more is rescued. A stream that begins at the end looks at
    the newest records."""
    values = [{"first": 1}, {"middle": 1}, {"middle": 2}, {"last": 1}]
    log = appended(*map(msgspec.json.encode, values))
    assert [*columns_of(log, valueFormat="auto", samplingRecords="2")] == ["first", "last", "_rescued_data"]
    rows = members_of(log, valueFormat="auto", samplingRecords="2")
    assert [row["_rescued_data"] for row in rows] == [None, {"middle": 1}, {"middle": 2}, None]
    for starting in ("latest", "snapshot", "-10m", str(len(values) + 1)):
        found = columns_of(log, valueFormat="auto", startingOffsets=starting)
        assert [*found] == ["first", "middle", "last", "_rescued_data"]
    assert [*columns_of(log, valueFormat="auto", startingOffsets="4")] == ["last", "_rescued_data"]


def test_a_sample_of_csv_counts_and_types_the_cells() -> None:
    """c1, c2, … or the names in `columns`; text without inferSchema, as Spark reads CSV."""
    log = appended(b"1,2.5,x,true", b"2,,007,false", b"3,1e3,y,true", b"odd")
    assert columns_of(log, valueFormat="csv") == dict.fromkeys(("c1", "c2", "c3", "c4", "_rescued_data"), "string")
    typed = columns_of(log, valueFormat="csv", inferSchema="true", columns="id,d,text,is", endingOffsets="4")
    assert typed == {"id": "bigint", "d": "double", "text": "string", "is": "boolean", "_rescued_data": "string"}
    assert columns_of(log, valueFormat="csv", columns="a,b") == dict.fromkeys(("a", "b", "_rescued_data"), "string")
    rows = members_of(log, valueFormat="csv")
    assert rows[3] == {"c1": "odd", "c2": None, "c3": None, "c4": None, "_rescued_data": {"_cells": ["odd"]}}


@pytest.mark.parametrize("form", ["json", "csv", "auto"])
def test_no_members_are_an_error(form: str) -> None:
    """An empty log, and one whose values are of another format."""
    for log in (appended(b"\xff"), logs.appends(0, 1)):
        with pytest.raises(
            UsageError, match=rf"no columns can be inferred: records looked at: \d; .* in {form}\. Name"
        ):
            columns_of(log, valueFormat=form, inferSchema="true")


def test_maps_are_not_columns() -> None:
    """More than 1,000 members are an error that says so; a nested structure of so many is text."""
    names = {f"m{number}": 1 for number in range(1001)}
    with pytest.raises(UsageError, match="1001 different members, more than 1000"):
        columns_of(appended(msgspec.json.encode(names)), valueFormat="json", inferSchema="true")
    nested = appended(msgspec.json.encode({"map": names, "same": {"a": 1, "A": 2}}))
    assert columns_of(nested, valueFormat="json", inferSchema="true") == {
        "map": "string",
        "same": "string",
        "_rescued_data": "string",
    }
