"""What options show of a range: some rows, parsed values, the state as of an index, the change feed; no Spark runs."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DayTimeIntervalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from raftlog.raft.codec.block import BlockRecord
from raftlog.spark_export.columns.frames import Frames
from raftlog.spark_export.columns.schema import STATE
from raftlog.spark_export.errors import DataLossError, ExportError, UsageError
from raftlog.spark_export.fetch.options import parse_options
from raftlog.spark_export.fetch.ranges import Range
from raftlog.spark_export.fetch.reader import slabs
from raftlog.spark_export.source import bounds, feed
from raftlog.spark_export.source.views import default_schema
from raftlog.statemachine.commands import Operation
from tests.spark_export import logs
from tests.spark_export.server import Served, folded, serving
from tests.spark_export.source.shown import shown

LOG = logs.real(20, batch=False)
BATCHED = logs.real(20, batch=True)
MIXED = logs.mixed(7, 80, records_max=3)


def typed(**columns: DataType) -> StructType:
    """A user's schema."""
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("options", "is_wanted"),
    [
        ({}, logs.is_user),
        ({"records": "all"}, lambda row: True),
        ({"records": "user"}, logs.is_user),
        ({"operations": "put,txn"}, lambda row: logs.is_user(row) and row["operation"] in ("put", "txn")),
        (
            {"operations": "session_open,void", "records": "all"},
            lambda row: row["operation"] in ("session_open", "void"),
        ),
        ({"keyPrefix": "k"}, lambda row: logs.is_user(row) and (row["key"] or b"").startswith(b"k")),
        (
            {"keyPrefix": "k", "operations": "delete"},
            lambda row: logs.is_user(row) and row["operation"] == "delete" and (row["key"] or b"").startswith(b"k"),
        ),
        ({"keyPrefix": "nobody's"}, lambda row: False),
    ],
)
def test_rows_are_chosen(options: dict[str, Any], is_wanted: Any) -> None:
    """By writer, operation and beginning of the key; over ranges that begin and end inside entries."""
    rows = list(logs.naive_rows(MIXED.entries, MIXED.effects))
    for start, stop in ((1, len(rows) + 1), (5, 90)):
        expected = [logs.shown(row) for row in rows if start <= row["index"] < stop and is_wanted(row)]
        assert shown(Served(MIXED), start, stop, **options) == expected


VALUES: list[Any] = [
    {"user": "ü", "amount": 1.5, "tags": ["a", "b"], "place": {"x": 1, "unknown": 2}},
    {"user": None, "amount": 3, "place": {}},
    [1, 2],
    "text",
    {"user": 7, "amount": "much", "tags": "none", "place": [1]},
    {"amount": 2},
]
INDEX, TEXT, BYTES = LongType(), StringType(), BinaryType()
SCHEMA = typed(index=INDEX, user=TEXT, amount=DoubleType(), tags=ArrayType(TEXT), place=typed(x=LongType(), y=TEXT))
NOTHING = {"user": None, "amount": None, "tags": None, "place": None}
MEMBERS = [
    {"user": "ü", "amount": 1.5, "tags": ["a", "b"], "place": {"x": 1, "y": None}},
    {"user": None, "amount": 3.0, "tags": None, "place": {"x": None, "y": None}},
    NOTHING,
    NOTHING,
    NOTHING | {"user": "7"},
    NOTHING | {"amount": 2.0},
]


BAD = (b"\xc1", b"\x92\x01")  # neither JSON nor msgpack


def of_values(encode: Any, *more: bytes | None) -> logs.Log:
    """Appends of these values, encoded, and of some that are not of the format."""
    log = logs.Log()
    values = [*(encode(value) for value in VALUES), *more]
    log.plain([BlockRecord(Operation.APPEND, None, value) for value in values])
    return log


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_values_become_columns(form: str) -> None:
    """Members of the value come by name; a missing or wrong one is null. The whole value comes as text or as a
    structure. A value of another format is null, or on request an error that names the index.
    """
    encode: Any = (lambda value: json.dumps(value, indent=1).encode()) if form == "json" else msgspec.msgpack.encode
    log = of_values(encode, *BAD, None)
    with pytest.warns(UserWarning, match=r"parts of 5 values .* the first: the value at index 3 .*_rescued_data"):
        rows = shown(Served(log), schema=SCHEMA, valueFormat=form)
    assert [row.pop("index") for row in rows] == list(range(1, 10))
    assert rows == MEMBERS + [NOTHING] * 3

    with pytest.warns(UserWarning, match="parts of 2 values"):
        texts = [row["value"] for row in shown(Served(log), valueFormat=form)]
    assert [text if text is None else json.loads(text) for text in texts[: len(VALUES)]] == VALUES
    assert texts[-1] is None
    raw = shown(Served(log), schema=typed(value=BYTES, index=INDEX), valueFormat=form)
    assert [row["value"] for row in raw] == [*(encode(value) for value in VALUES), *BAD, None]
    with pytest.warns(UserWarning, match="parts of 5 values"):
        wholes = shown(Served(log), schema=typed(value=typed(amount=DoubleType())), valueFormat=form)
    assert [row["value"] for row in wholes][:2] == [{"amount": 1.5}, {"amount": 3.0}]
    with pytest.raises(ExportError, match=r"value at index 3 is no object"):
        shown(Served(of_values(encode)), schema=SCHEMA, valueFormat=form, mode="FAILFAST")
    wrong = of_values(encode)
    with pytest.raises(ExportError, match=r'amount in the value at index 5 is not double: "much"'):
        shown(Served(wrong), 5, schema=SCHEMA, valueFormat=form, mode="FAILFAST")
    with pytest.raises(ExportError, match=f"value at index 7 is no {form}"):
        shown(Served(log), schema=typed(index=INDEX, value=TEXT), valueFormat=form, mode="FAILFAST")


def test_columns_that_cannot_be_are_refused() -> None:
    """Other names are members only of a value that has a format; its types are those of JSON and msgpack."""
    with pytest.raises(UsageError, match=r"no column 'user'.*valueFormat=json"):
        shown(Served(MIXED), schema=typed(user=TEXT))
    with pytest.raises(UsageError, match="column value is binary, not string; valueFormat"):
        shown(Served(MIXED), schema=typed(value=TEXT))
    with pytest.raises(UsageError, match=r"user cannot be map<bigint,string>"):
        shown(Served(MIXED), schema=typed(user=MapType(INDEX, TEXT)), valueFormat="json")
    with pytest.raises(UsageError, match=r"place\.at cannot be interval day to second"):
        shown(Served(MIXED), schema=typed(place=typed(at=DayTimeIntervalType())), valueFormat="json")
    with pytest.raises(UsageError, match="_rescued_data takes what does not fit, as JSON: it is string, not bigint"):
        shown(Served(MIXED), schema=typed(_rescued_data=INDEX), valueFormat="json")
    with pytest.raises(UsageError, match="with asOf there is no column 'index'"):
        shown(Served(LOG), schema=typed(index=INDEX), asOf=5)
    with pytest.raises(UsageError, match="column before is binary, not string"):
        shown(Served(LOG), schema=typed(before=TEXT), changes="true")


# ---------------------------------------------------------------------------------------------------------------
# The state.


def naive_state(log: logs.Log, index: int, prefix: bytes = b"") -> list[tuple[Any, ...]]:
    """The live keys after that index, row by row."""
    rows = [row for row in logs.naive_rows(log.entries, log.effects) if row["index"] <= index]
    return sorted(each for each in folded(rows) if each[0].startswith(prefix))


def as_state(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Rows as naive_state has them."""
    return sorted(tuple(row[name] for name in STATE.names) for row in rows)


@pytest.mark.parametrize("log", [LOG, BATCHED], ids=["single", "batched"])
def test_the_state_as_of_any_index(log: logs.RealLog) -> None:
    """Folded from the log, the state at its end has the state machine's own digest. At any earlier index, inside
    entries too, it is the state of the rows up to there; also by time, by prefix, and of some columns.
    """
    for index in (1, 10, log.last.index // 2, log.last.index - 1, log.last.index):
        assert as_state(shown(Served(log), asOf=index)) == naive_state(log, index)
    assert len(naive_state(log, log.last.index)) == log.machine.digest().count > 0
    assert as_state(shown(Served(log), asOf=log.last.index, keyPrefix="k")) == naive_state(log, log.last.index, b"k")
    moment = (logs.EPOCH + timedelta(milliseconds=log.entries[20].time_ms)).isoformat()
    assert as_state(shown(Served(log), asOf=moment)) == naive_state(log, log.entries[20].index)
    assert as_state(shown(Served(log), asOf="2999-01-01")) == naive_state(log, log.last.index)
    keys = shown(Served(log), asOf=log.last.index, schema=typed(key=BYTES))
    assert sorted(row["key"] for row in keys) == [row[0] for row in naive_state(log, log.last.index)]
    with pytest.raises(UsageError, match=f"asOf is index {log.last.index + 1}, but the log ends at"):
        shown(Served(log), asOf=log.last.index + 1)


def test_a_time_is_the_same_place_of_the_log_for_a_state_and_for_a_range() -> None:
    """At the time of each entry, a millisecond before and one after: the state is that after all entries up to then, a
    range begins with the first entry of then or later, and one that ends then has none of them."""
    times = [entry.time_ms for entry in LOG.entries]
    with serving(Served(LOG)) as url:
        for time_ms in sorted({time_ms + more for time_ms in times[:20] for more in (-1, 0, 1)}):
            moment = (logs.EPOCH + timedelta(milliseconds=time_ms)).isoformat()
            until = max((entry.index for entry in LOG.entries if entry.time_ms <= time_ms), default=0)
            first = min(entry.first for entry in LOG.entries if entry.time_ms >= time_ms)
            assert bounds.state_index(parse_options({"endpoints": url, "asOf": moment}))[1] == until
            for name, expected in (("startingTimestamp", (first, LOG.last.index + 1)), ("endingTimestamp", (1, first))):
                given = {"endpoints": url, "startingOffsets": "earliest", name: str(time_ms)}
                if name == "startingTimestamp":
                    del given["startingOffsets"]
                assert bounds.batch_range(parse_options(given))[1:] == expected, (name, time_ms)


def test_the_state_of_a_trimmed_log_comes_from_the_cluster() -> None:
    """Where the beginning is gone the cluster is asked by revision, and where its history is gone too, it is an
    error, not half a state."""
    index = LOG.last.index - 10
    served = Served(LOG, oldest=index - 5)
    assert as_state(shown(served, asOf=index)) == naive_state(LOG, index)
    assert any("/v1/kv" in each and "continuation" in each for each in served.asked)
    with pytest.raises(DataLossError, match="compacted"):
        shown(Served(LOG, oldest=index - 5, kept_revision=10**6), asOf=index)


def test_a_stream_can_begin_with_the_state() -> None:
    """Its first rows are puts that make the state; from the cluster's history, or folded where that has gone."""
    last = LOG.last.index
    expected = naive_state(LOG, last)
    for kept_revision in (1, 10**6):
        rows = shown(Served(LOG, kept_revision=kept_revision), revision=LOG.revision)
        assert {(row["index"], row["kind"], row["operation"], row["result"]) for row in rows} == {
            (last, "snapshot", "put", "applied")
        }
        got = sorted((row["key"], row["value"], row["create"], row["revision"], row["version"]) for row in rows)
        assert got == expected
    some = shown(Served(LOG), revision=LOG.revision, keyPrefix="k", schema=typed(key=BYTES))
    assert sorted(row["key"] for row in some) == [row[0] for row in naive_state(LOG, last, b"k")]
    assert shown(Served(LOG), revision=LOG.revision, operations="delete") == []


# ---------------------------------------------------------------------------------------------------------------
# The change feed.


def naive_feed(log: logs.Log) -> list[dict[str, Any]]:
    """Every change with its images, by keeping the whole state."""
    live: dict[bytes, bytes] = {}
    written: list[dict[str, Any]] = []
    for row in logs.naive_rows(log.entries, log.effects):
        changes = row["changes"] or []
        if row["version"] is not None:
            changes = [{**row, "deleted": row["version"] == 0, "mod": row["revision"]}]
        for change in changes:
            key = change["key"]
            before = live.pop(key, None)
            if not change["deleted"]:
                live[key] = change["value"]
            kind = "delete" if change["deleted"] else "insert" if before is None else "update"
            written.append(
                {name: row[name] for name in ("index", "term", "time", "operation")}
                | {name: change[name] for name in ("key", "create", "mod", "version")}
                | {"change": kind, "before": before, "after": live.get(key), "before_known": True}
            )
    return written


def _row_by_row(wanted: Range) -> Iterator[tuple[Frames, int, int]]:
    """Looks up what the first twelfth of the rows needs, and folds for the others."""
    for frames, begin, end in slabs(wanted):
        for place in range(begin, end):
            feed.LOOKUP_RECORDS = 0 if 12 * (place - begin) < end - begin else 10**9  # type: ignore[misc]
            yield frames, place, place + 1


def without_prior(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The naive feed does not know prior_index."""
    return [{name: value for name, value in row.items() if name != "prior_index"} for row in rows]


@pytest.mark.parametrize("log", [LOG, BATCHED], ids=["single", "batched"])
@pytest.mark.parametrize("lookup_records", [1, 10**9, None], ids=["looked up", "folded", "both"])
def test_the_feed_has_images(log: logs.RealLog, lookup_records: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every change of every kind of request with the value before and after, wherever the log is split: images from
    below a range are looked up, or folded; or some are looked up, and later all are folded."""
    monkeypatch.setattr(feed, "LOOKUP_RECORDS", lookup_records)
    if lookup_records is None:
        monkeypatch.setattr(feed, "slabs", _row_by_row)
    expected = naive_feed(log)
    assert {row["change"] for row in expected} == {"insert", "update", "delete"}
    assert {row["operation"] for row in expected} >= {"put", "delete", "txn", "delete_range"}
    last = log.last.index
    for cut in (1, last // 3, last - 20):
        node = Served(log)
        rows = (shown(node, 1, cut, changes="true") if cut > 1 else []) + shown(node, cut, changes="true")
        assert without_prior(rows) == expected
        if cut > 1 and lookup_records is not None:
            looked_up = sum("internal=true" in each for each in node.asked)
            assert bool(looked_up) == (lookup_records == 1)
    kept = shown(Served(log), changes="true", keyPrefix="k", operations="put", schema=typed(key=BYTES, after=BYTES))
    assert kept == [
        {"key": row["key"], "after": row["after"]}
        for row in expected
        if row["key"].startswith(b"k") and row["operation"] == "put"
    ]


def test_images_from_below_the_oldest_index_are_unknown_and_say_so() -> None:
    """`before` is null and `before_known` false; every other image is as it was."""
    oldest = LOG.last.index // 2
    rows = shown(Served(LOG, oldest=oldest), oldest, changes="true")
    expected = [row for row in naive_feed(LOG) if row["index"] >= oldest]
    assert {row["before_known"] for row in rows} == {True, False}
    for row, right in zip(rows, expected, strict=True):
        assert row["before_known"] == (not 0 < row["prior_index"] < oldest)
        assert row["before"] == (right["before"] if row["before_known"] else None)
        assert (row["change"], row["after"]) == (right["change"], right["after"])


def test_schemas_follow_the_options() -> None:
    """The columns without a schema of the user."""
    assert default_schema({"asof": "5"}).names == STATE.names
    assert "before" in default_schema({"changes": "TRUE"}).names
    assert default_schema({"valueFormat": "json"})["value"].dataType.simpleString() == "string"
    assert default_schema({})["value"].dataType.simpleString() == "binary"
