"""Lines of NDJSON, CSV and access logs to records: the value is the line, only the key can be missing."""

import csv

import pytest
from hypothesis import given, strategies as st

from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.config.settings import LimitSettings
from raftlog.cluster.importer.formats import access_log
from raftlog.cluster.importer.formats.lines import (
    HEADERS_BYTES_MAX,
    LINE_BYTES_MAX,
    LONG_LINE_BYTES_MAX,
    InputError,
    InputFormat,
    InputOptions,
    Line,
    RejectedLine,
    pieces_of,
    read_batch,
    split_lines,
)
from raftlog.cluster.importer.formats.times import TimeRule
from raftlog.raft.codec.block import encode_headers

COMMON = b'10.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /a.gif HTTP/1.0" 200 2326'
COMBINED = COMMON + b' "http://x/start" "Mozilla/5 \\"odd\\" (x)"'
UNCLOSED = COMMON + b' "http://x/start" "Mozilla/5 (x'


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        (COMMON, "host", b"10.0.0.1"),
        (COMMON, "user", b"frank"),
        (COMMON, "method", b"GET"),
        (COMMON, "sent", b"2326"),
        (COMMON, "path", b"/a.gif"),
        (COMMON, "status", b"200"),
        (COMMON, "referer", None),
        (COMMON, "agent", None),
        (COMBINED, "referer", b"http://x/start"),
        (COMBINED, "agent", b'Mozilla/5 \\"odd\\" (x)'),
        (UNCLOSED, "host", b"10.0.0.1"),
        (UNCLOSED, "path", b"/a.gif"),
        (UNCLOSED, "agent", b"Mozilla/5 (x"),
        (b'::1 - - [x] "-" 400 -', "path", None),
        (b"", "host", None),
        (b"no log line", "host", None),
        (COMMON.replace(b"frank", b"-"), "user", None),
    ],
)
def test_a_field_is_found_or_it_is_not(line: bytes, field: str, value: bytes | None) -> None:
    """Positions decide: a missing last quote costs nothing but that field's own end."""
    assert access_log.read_field(line, field) == value


def test_the_time_of_an_access_line_counts_its_zone() -> None:
    """The time zone counts; a text that is no date is no time."""
    for line, time_ms in (
        (COMMON, 971_211_336_000),
        (COMMON.replace(b"10/Oct", b"32/Oct"), None),
        (COMMON.replace(b"Oct", b"Foo"), None),
        (b"x", None),
    ):
        assert told(InputOptions(InputFormat.ACCESS), line) == NewRecord(line, None, (), time_ms)
    assert (access_log.is_access_line(UNCLOSED), access_log.is_access_line(b'{"a": 1}')) == (True, False)


def told(reading: InputOptions, data: bytes) -> NewRecord | RejectedLine:
    """The one line, read."""
    return read_batch([Line(7, data + b"\n")], reading)[0]


NDJSON = InputOptions(InputFormat.NDJSON, key="user.id", time="at")


@pytest.mark.parametrize(
    ("data", "key", "time_ms"),
    [
        (b'{"user": {"id": "x"}, "at": 5}', b"x", 5),
        (b'{"user.id": 7, "at": "2020-01-01T00:00:00Z"}', b"7", 1_577_836_800_000),
        (b'{"user": {"id": true}, "at": "2020-01-01"}', b"true", 1_577_836_800_000),
        (b'{"user": {"id": 1.5}, "at": "yesterday"}', b"1.5", None),
        (b'{"user": {"id": "\\u00e9"}}\r', b"\xc3\xa9", None),
    ],
)
def test_key_and_time_of_json_are_read_by_path(data: bytes, key: bytes, time_ms: int | None) -> None:
    """Text and numbers are keys, a dotted name goes into objects, an odd time is none; the value stays."""
    assert told(NDJSON, data) == NewRecord(data, key, (), time_ms)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "blank"),
        (b"  \r", "blank"),
        (b"{", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"{}", "no user.id"),
        (b'{"user": {"id": null}}', "no user.id"),
        (b'{"user": {"id": []}}', "not text"),
        (b'{"user": {"id": ""}}', "0 bytes"),
        (b'{"user": {"id": "%s"}}' % (b"x" * 4097), "4097 bytes"),
        (b'{"user": {"id": "\\ud800"}}', "not Unicode"),
        (b"\xff", "not JSON"),
        (b'{"a":' * 5000, "not JSON|nested"),
    ],
)
def test_a_line_without_its_key_is_rejected_with_the_reason(data: bytes, reason: str) -> None:
    """Only then, and the line comes along."""
    rejected = told(NDJSON, data)
    assert isinstance(rejected, RejectedLine)
    assert (rejected.number, rejected.data) == (7, data)
    assert any(each in rejected.reason for each in reason.split("|"))


def test_without_a_key_nothing_but_a_blank_line_is_rejected() -> None:
    """No key was asked for: any line is a value."""
    for format in InputFormat:
        assert told(InputOptions(format), b"\xff anything") == NewRecord(b"\xff anything")
        assert isinstance(told(InputOptions(format), b" "), RejectedLine)
    assert told(InputOptions(InputFormat.NDJSON, time="at"), b"no JSON") == NewRecord(b"no JSON")


def test_a_cell_of_csv_is_found_by_its_column() -> None:
    """A quoted cell; a row that ends before the cell is rejected."""
    reading = InputOptions(InputFormat.CSV, "b", None, ("a", "b"))
    assert told(reading, b'1,"x,y"\r') == NewRecord(b'1,"x,y"\r', b"x,y")
    assert isinstance(told(reading, b"1"), RejectedLine)


def test_a_quoted_field_may_hold_line_ends_and_a_stray_quote_stays_alone() -> None:
    """A row over several lines is one record; a quote that never closes does not swallow the rest of the file."""
    reading = InputOptions(InputFormat.CSV, None, None, ("a", "b"))
    lines = list(split_lines([b'1,"x\n', b'y"\n', b"2,z\n", b'3,"w\n', b"4,v"], reading, 2))
    assert [(line.number, line.raw, line.lines) for line in lines] == [
        (2, b'1,"x\ny"\n', 2),
        (4, b"2,z\n", 1),
        (5, b'3,"w\n', 1),
        (6, b"4,v", 1),
    ]
    endless = [b'"\n', *[b"x" * 1000 + b"\n"] * 100]
    assert len(list(split_lines(endless, reading))) == 101


@given(
    st.lists(st.sampled_from([b"a\n", b'b"c\n', b'"d\ne"\n', b"\n", b'""\n']), max_size=12),
    st.sampled_from(InputFormat),
)
def test_lines_put_together_are_the_input(pieces: list[bytes], format: InputFormat) -> None:
    """Nothing is lost, added or counted twice, whatever the quotes."""
    data = b"".join(pieces)
    lines = list(split_lines(data.splitlines(keepends=True), InputOptions(format, None, None, ("a",))))
    assert b"".join(line.raw for line in lines) == data
    numbers = [line.number for line in lines]
    assert numbers == [1 + sum(line.lines for line in lines[:at]) for at in range(len(lines))]


@pytest.mark.parametrize("format", [InputFormat.NDJSON, InputFormat.CSV])
def test_a_line_too_long_is_rejected_whole_with_its_number(format: InputFormat) -> None:
    """However the pieces fall, also with an open quote; the lines around it are not touched. Only a line that memory
    should not hold ends the reading, with its number."""
    for size in (LINE_BYTES_MAX + 1, LONG_LINE_BYTES_MAX - 1):
        long = b'"' + b"x" * (size - 1)
        data = b"1\n" + long + b"\n3\n"
        reading = InputOptions(format, columns=("a",))
        pieces = pieces_of(data[at : at + (300 << 10)] for at in range(0, len(data), 300 << 10))
        lines = [*split_lines(pieces, reading)]
        assert b"".join(line.raw for line in lines) == data
        first, rejected, last = read_batch(lines, reading)
        reason = f"{size:,} bytes: a record of a line has at most 1,048,576"
        assert (first, rejected, last) == (NewRecord(b"1"), RejectedLine(2, reason, long), NewRecord(b"3"))
    with pytest.raises(InputError, match="line 2 has more than 16777216 bytes"):
        [*split_lines(pieces_of([b"1\n", long, b"yy\n3\n"]), reading)]


def test_headers_over_the_limit_of_a_node_reject_their_line_alone() -> None:
    """The node would refuse the whole request. The limit is its default, and counts the headers as they are stored."""
    assert LimitSettings().record_headers_bytes_max == HEADERS_BYTES_MAX
    reading = InputOptions(InputFormat.NDJSON, headers=("h",))
    most = HEADERS_BYTES_MAX - len(encode_headers([("h", b"x" * 60_000)])) + 60_000
    values = [b'{"h": "%b"}' % (b"x" * size) for size in (most, most + 1, 1)]
    found = read_batch([Line(number, value) for number, value in enumerate(values, start=1)], reading)
    assert [type(each) for each in found] == [NewRecord, RejectedLine, NewRecord]
    assert found[1] == RejectedLine(2, "headers of 65,537 bytes: a record has at most 65,536", values[1])


def test_a_large_cell_is_read_without_a_decision_before() -> None:
    """A continued import does not decide anything. The limit of the module csv is of the process, and of 128 Ki."""
    before = csv.field_size_limit(1 << 17)
    try:
        for value in (b"k," + b"x" * 200_000, b'k,"' + b"x" * 200_000 + b'"'):
            record = told(InputOptions(InputFormat.CSV, "key", columns=("key", "text")), value)
            assert record == NewRecord(value, b"k")
    finally:
        csv.field_size_limit(before)


_CELLS = st.sampled_from([b"", b"k", b'"quoted, ""k"""', b"2016/01/01 00:30:04.91", b"no time", b"\xff"])


@given(st.lists(st.lists(_CELLS, min_size=1, max_size=3).map(b",".join), max_size=6))
def test_a_batch_is_read_as_its_lines_are(values: list[bytes]) -> None:
    """Whole columns are read at once where every row has them; a blank line after them is read row by row."""
    reading = InputOptions(InputFormat.CSV, "key", "at", ("at", "key"), times=TimeRule("%Y/%m/%d %H:%M:%S.%f"))
    lines = [Line(number, value + b"\n") for number, value in enumerate(values, start=1)]
    assert read_batch(lines, reading) == read_batch([*lines, Line(0, b"\n")], reading)[:-1]
