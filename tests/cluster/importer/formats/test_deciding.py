"""The first batch decides how an input is read, and every doubt is an error that names file, line and option."""

import re
from typing import Any

import pytest

from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.importer.formats.deciding import ImportOptions, InputDecision, Sample, decide, first_lines
from raftlog.cluster.importer.formats.lines import InputError, InputFormat, read_batch
from raftlog.cluster.importer.formats.times import TimeRule

ACCESS = '10.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /a.gif HTTP/1.0" 200 2326'
QUAKES = [
    "DateTime,Magnitude,Place",
    '2016/01/01 00:30:04.91,1.30,"Geysers, California"',
    "2016/01/01 00:38:24,2,Hawaii",
]


def sample(name: str, lines: list[str], **more: Any) -> Sample:
    """The beginning of a file."""
    return Sample(name, [f"{line}\n".encode() for line in lines], **more)


def told(name: str, lines: list[str], **options: Any) -> InputDecision:
    """The decision."""
    return decide(sample(name, lines, latest_ms=1_700_000_000_000), ImportOptions(**options))


def test_a_file_of_earthquakes_keeps_its_times_and_types() -> None:
    """Slashes and hundredths of a second are recognised, printed, and read."""
    decided = told("quakes.csv", QUAKES, time="DateTime", key="Place", headers=("Magnitude",))
    assert decided.reading.times == TimeRule("%Y/%m/%d %H:%M:%S.%f", "UTC")
    assert [column.type for column in decided.reading.types] == ["string", "number", "string"]
    text = "\n".join(decided.notices)
    assert all(each in text for each in ("format csv", "delimiter ','", "Magnitude number", "UTC", "2 of the first 2"))
    first, second = read_batch(first_lines(sample("quakes.csv", QUAKES), decided.reading), decided.reading)
    assert first == (QUAKES[1].encode(), b"Geysers, California", (("Magnitude", b"1.30"),), 1_451_608_204_910)
    assert second == (QUAKES[2].encode(), b"Hawaii", (("Magnitude", b"2"),), 1_451_608_704_000)


def test_a_column_that_gets_another_name_in_sql_and_spark_is_named() -> None:
    """Upper and lower case are the same there; of a file without such columns nothing is said."""
    renamed = "in SQL and Spark time is value_time, Key is value_Key: the log has columns of these names"
    assert renamed in told("a.csv", ["time,Key,v", "1,2,3"]).notices
    assert renamed in told("a.ndjson", ['{"time":1,"Key":2,"v":3}']).notices
    assert renamed.replace(", Key is value_Key", "") in told("messages", ["Dec 20 03:03:26 web01 sshd[8]: hi"]).notices
    assert not any("in SQL" in each for each in told("quakes.csv", QUAKES).notices)


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (QUAKES, {"time": "Place"}, r"q.csv: line 2: Place 'Geysers, California' is not a time; give --time-format"),
        (QUAKES, {"time": "DateTime", "time_format": "%d.%m.%Y"}, r"line 2: DateTime '2016/.* of the form '%d.%m.%Y'"),
        (QUAKES, {"time": "When"}, r"q.csv: --time When: .* it has DateTime, Magnitude, Place"),
        (QUAKES, {"select": ("x",)}, r"--select x"),
        (QUAKES, {"time_zone": "UTC"}, r"--time FIELD"),
        (QUAKES, {"time": "DateTime", "time_zone": "Nowhere"}, r"--time-zone 'Nowhere': no such zone"),
        (QUAKES, {"time": "DateTime", "time_zone": ""}, r"--time-zone '': no such zone"),
        (["no syslog"], {"format": InputFormat.SYSLOG}, r"q.csv: none of the first lines is syslog; give another --"),
        (["t,v"], {"time": "t"}, r"q.csv has no line to import beyond its first"),
        (["t,v", "05/06/2016,1"], {"time": "t"}, r"'%d/%m/%Y' or --time-format '%m/%d/%Y'"),
        (["t,v", ",1"], {"time": "t"}, r"no row of the first 1 has a value in t"),
        (["1,2", "3,4"], {}, r"line 1 looks like data.*--columns.*--no-header.*--header"),
        (["a,a", "3,4"], {}, r"names the column 'a' twice"),
        (QUAKES, {"delimiter": "ab"}, r"one character, or tab"),
        (["Report", "", "a,b", "1,2"], {}, r"line 1 has 1 cell, but 2 of the next 2 rows have 2.*--header.*tail -n"),
        (["", "a,b", "1,2"], {}, r"line 1 is blank; cut it: tail -n"),
        ([ACCESS], {"format": InputFormat.ACCESS, "key": "ip"}, r"--key ip: of an access log it is one of host, user"),
        (
            [ACCESS],
            {"format": InputFormat.ACCESS, "time": "time"},
            r"--time: an access log has its time in its own place; leave the option out",
        ),
        (["<!DOCTYPE html>", "<p>Not found</p>"], {}, r"q.csv is HTML or XML; convert it"),
        (["t,v", "1955-03-01,1"], {"time": "t"}, r"line 2: t '1955-03-01' is before 1970, .*leave out --time"),
        (["t,v", "46000.5,1"], {"time": "t"}, r"give --time-format s or ms or us or ns"),
        (["sep=;", "a;b", "1;2"], {}, r"line 1 is a note for Excel: 'sep=;'; give --header"),
        (["a,b\r1,2\r"], {}, r"its lines end with a carriage return alone; correct it: tr "),
        (["t", "1577836800", "2020-01-02", "01/25/2020"], {"time": "t"}, r"several forms.*1 of the first 3; give"),
        (["a,b"], {"columns": ("x", "y", "x")}, r"--columns x,y,x: give each name once"),
        (["a,b"], {"delimiter": '"'}, r"one character, or tab"),
    ],
)
def test_a_doubt_is_an_error_with_the_option_that_settles_it(
    lines: list[str], options: dict[str, Any], message: str
) -> None:
    """Nothing is written before all of them are settled."""
    with pytest.raises(ValueError, match=message):
        told("q.csv", lines, **options)


@pytest.mark.parametrize("lines", [["", "a,b"], ["a,b\r1,2"], ["a title", "a,b", "1,2", "3,4"]])
def test_a_command_in_a_message_can_be_pasted(lines: list[str]) -> None:
    """The shell takes the file's name as one word."""
    with pytest.raises(InputError, match=r" 'a b\$c.csv' \| raftlog import - --format csv$"):
        told("a b$c.csv", lines)


def test_a_name_that_promises_json_is_not_enough() -> None:
    """A file of CSV under it is refused; lines of JSON that are no objects are kept."""
    with pytest.raises(InputError, match=r"a.ndjson: no line of the first 2 is JSON: line 1: .*--format ndjson"):
        told("a.ndjson", ["a,b", "1,2"])
    assert told("a.ndjson", ["a,b", "1,2"], format=InputFormat.NDJSON).has_rows
    assert told("a.ndjson", ["no", "[1]"]).has_rows


def test_columns_without_a_line_of_names() -> None:
    """Given names take no line of the file; without names they are numbered."""
    lines = ["1;x", "2;y"]
    named = told("q.csv", lines, columns=("n", "text"), key="text")
    assert [each.key for each in read_batch(first_lines(sample("q.csv", lines), named.reading), named.reading)] == [  # type: ignore[union-attr]
        b"x",
        b"y",
    ]
    assert told("q.csv", lines, header=False).reading.columns == ("c1", "c2")
    assert told("q.csv", ["1;2", "3;4"], header=True).reading.columns == ("1", "2")


@pytest.mark.parametrize(
    ("name", "lines", "format"),
    [
        ("a", ["a;b", "1;2", "3;4"], "csv"),
        ("a.log", ["something happened"], "lines"),
        ("messages", ["Oct 11 22:14:15 host kernel: usb"], "syslog"),
        ("a.json", ['{"a": 1}'], "ndjson"),
        ("a", ['{"a": 1}', "x"], "ndjson"),
        ("x.tsv.gz", ["a\tb"], "tsv"),
        ("access.csv", [ACCESS, ACCESS], "access"),
        ("a", ['[{"a": 1}]'], "json"),
        ("a.jsonl", ["x", "[1]"], "ndjson"),
        ("a.log", [f'{ACCESS} "http://x/start" "Mozilla/5 (x"'], "access"),
        ("-", [ACCESS], "access"),
    ],
)
def test_the_format_is_guessed_from_name_and_content(name: str, lines: list[str], format: str) -> None:
    """Also without a name that helps."""
    assert told(name, lines).reading.format == format


def test_text_in_no_known_format_asks() -> None:
    """A name that means nothing, and free text: the log cannot forget a wrong guess."""
    with pytest.raises(InputError, match="--format"):
        told("notes", ["free text", "of a person"])


def test_without_a_time_field_it_is_said_and_one_is_proposed() -> None:
    """The records have only the log's time then."""
    notice = told("q.csv", QUAKES).notices[-1]
    assert "no time field" in notice
    assert "--time DateTime" in notice


def test_fields_of_json_are_looked_up_in_all_rows() -> None:
    """Changing and nested fields; a field that no row has is refused."""
    lines = ['{"a": {"t": 1700000000}, "b": 1}', '{"b": 2.5, "c": [1]}', "no JSON"]
    decided = told("x.ndjson", lines, time="a.t", select=("b", "c"))
    assert decided.reading.times == TimeRule("s", "UTC")
    types = [(column.name, column.type) for column in decided.reading.types]
    assert types == [("a", "object"), ("b", "number"), ("c", "array")]
    found = read_batch(first_lines(sample("x.ndjson", lines), decided.reading), decided.reading)
    assert [getattr(each, "value", None) for each in found] == [b'{"b":1}', b'{"b":2.5,"c":[1]}', None]
    with pytest.raises(InputError, match=r"--key z: no row of the first 2 has this field; they have a, b, c"):
        told("x.ndjson", lines, key="z")


def test_a_key_that_is_an_object_in_all_rows_stops_the_import_before_it_writes() -> None:
    """Every line would be rejected, and an empty import would be the newest. Where some rows have text it goes on."""
    lines = ['{"actor": {"login": "x"}, "tags": [1]}', '{"actor": null, "tags": []}']
    with pytest.raises(InputError, match=r"--key actor: a key is text or a number.*as --key actor\.login"):
        told("x.ndjson", lines, key="actor")
    with pytest.raises(InputError, match=r"an array in each row of the first 2 that have it; name a field inside it$"):
        told("x.ndjson", lines, key="tags")
    notices = "\n".join(told("x.ndjson", [*lines, '{"actor": "y"}'], key="actor").notices)
    assert "2 lines of the first 3 will be rejected: line 1: actor is not text or a number" in notices


def test_selected_cells_have_the_type_of_their_column() -> None:
    """Digits stay as they are; a cell that does not fit stays text; an empty one is null."""
    lines = ["id,n,ok,zip", "1,1.10,true,01234", "2,,false,99", "x,3,maybe,5"]
    decided = told("q.csv", lines[:3], select=("id", "n", "ok", "zip"))
    rows = read_batch(first_lines(sample("q.csv", lines), decided.reading), decided.reading)
    assert [getattr(each, "value", None) for each in rows] == [
        b'{"id":1,"n":1.10,"ok":true,"zip":"01234"}',
        b'{"id":2,"n":null,"ok":false,"zip":"99"}',
        b'{"id":"x","n":3,"ok":"maybe","zip":"5"}',
    ]


def test_syslog_and_access_logs_have_their_time_in_its_place() -> None:
    """An old line gets the year of the file's age."""
    line = "Oct 11 22:14:15 host kernel: usb"
    decided = decide(sample("m", [line], latest_ms=1_700_000_000_000), ImportOptions(key="app"))
    (found,) = read_batch(first_lines(sample("m", [line]), decided.reading), decided.reading)
    assert (found.key, found.time_ms) == (b"kernel", 1_697_062_455_000)  # type: ignore[union-attr]
    with pytest.raises(InputError, match="of a syslog line it is one of"):
        told("m", [line], key="nothing")
    access = told("a.log", ['::1 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 5'], select=("path", "status"))
    assert access.reading.format is InputFormat.ACCESS


def test_lines_that_are_not_like_the_others_are_told_before_anything_is_written() -> None:
    """They have records, as they are, or will be rejected; the first one is named."""
    keyed = told("a.csv", ["a,b", "1,2", ",3", "4", "5,6,7"], key="a", header=True).notices
    assert "1 line of the first 4 will be rejected: line 3: a has 0 bytes: a key must have 1 to 4096" in "\n".join(
        keyed
    )
    assert "2 lines of the first 4 will be stored unchanged, unlike the others: line 4: 1 cell" in "\n".join(keyed)
    for name, lines, fault in (
        ("a.csv", ["a,b", "1,2", "3", "4,5"], "1 line of the first 3 will be stored unchanged, .* line 3: 1 cell,"),
        ("a.ndjson", ['{"a": 1}', "no", "[2]"], "2 lines of the first 3 .* line 2: not JSON.*; --strict stops there"),
    ):
        assert re.search(fault, "\n".join(told(name, lines).notices))
    assert told("a.csv", [" ,a , b", "0,1,2"]).reading.columns == ("c1", "a", "b")


def test_numbers_with_a_decimal_comma() -> None:
    """Where commas do not separate cells; a thousand is not taken for one, and a selection has the number."""
    lines = ["a;b;c;d", "3,14;1,234;1,5;1.234,56", "-2;5,678;x;7,5", ";;;"]
    decided = told("de.csv", lines, select=("a", "b", "c"))
    assert [column.type for column in decided.reading.types] == ["comma_number", "string", "string", "string"]
    found = read_batch(first_lines(sample("de.csv", lines), decided.reading), decided.reading)
    assert found[0] == NewRecord(b'{"a":3.14,"b":"1,234","c":"1,5"}')
    assert found[1] == NewRecord(b'{"a":-2,"b":"5,678","c":"x"}')
    assert told("a.csv", ["a,b", '"3,14",1']).reading.types[0].type == "string"


def test_the_names_in_the_first_line_are_kept_beside_the_given_ones() -> None:
    """Also a name over two lines, which is compared with the same line of a further file."""
    lines = ['id,"when', 'it was"', "1,2"]
    assert told("q.csv", lines).reading.names == ("id", "when\nit was")
    given = told("q.csv", lines, columns=("a", "b"), header=True).reading
    assert (given.columns, given.names) == (("a", "b"), ("id", "when\nit was"))
    assert told("q.csv", QUAKES, header=False).reading.names == ()


def test_doubtful_times_are_counted_and_the_rule_is_told() -> None:
    """Local times that occur twice or never, and leap seconds, each with the number of rows and the first line."""
    text = "when\n2024-10-27 02:30\n2024-10-27 02:31\n2024-03-31 02:30\n2016-12-31 23:59:60\n2024-01-01 00:00\n"
    pieces = text.encode().splitlines(keepends=True)
    options = ImportOptions(time="when", time_zone="Europe/Berlin", time_twice="later")
    told = "\n".join(decide(Sample("t.csv", pieces), options).notices)
    assert "2 rows of the first 5 with a time that occurs twice in zone Europe/Berlin, as line 2: the later one" in told
    assert "1 row of the first 5 with a time that never occurs in zone Europe/Berlin, as line 4" in told
    assert "1 row of the first 5 with a time that is a leap second" in told
    assert "rows with one: 4 of the first 5" in told


def test_a_time_that_never_occurs_has_its_form_all_the_same() -> None:
    """A file of such times alone is imported, with a form or without; and they do not decide between day and month."""
    for given in (None, "%d.%m.%Y %H:%M"):
        sample = Sample("t.csv", [b"when\n", b"31.03.2024 02:30\n"])
        decided = decide(sample, ImportOptions(time="when", time_zone="Europe/Berlin", time_format=given))
        assert "rows with one: 0 of the first 1" in decided.notices[-2]
        assert "never occurs in zone Europe/Berlin, as line 2" in decided.notices[-1]
    with pytest.raises(InputError, match="can be read in 2 ways"):
        decide(Sample("t.csv", [b"when\n", b"10/03/2024 02:30\n"]), ImportOptions(time="when", time_zone="US/Eastern"))


def test_leap_seconds_of_an_access_log_are_counted() -> None:
    """Its times have no rule of the user."""
    line = b'h - - [31/Dec/2016:23:59:60 +0000] "GET / HTTP/1.1" 200 1\n'
    assert (
        "1 row of the first 2 with a time that is a leap second"
        in decide(Sample("a.log", [line, line.replace(b":60", b":59")]), ImportOptions()).notices[-1]
    )


@pytest.mark.parametrize(
    "text",
    [
        'a,b\n0, "x, y"\n1,  "z, w"\n',
        'a;b\n0; "x; y"\n1; "z\nw"\n',
        '"a", "b"\n"0", "x, ""y"""\n"1", "z, w"\n',
        "a|b\n0| 'x| y'\n1| 'z| w'\n",
        '"a" ,"b"\n"0" ,"x, y" \n"1","z, w"\n',
        ' "b","a"\n "x, y", 0\n "z ""w""" , 1\r\n',
        'a,\t"b"\n0,\t"x, y"\n1 ,\t"z\n, w"\t\n',
        "a; 'b'\n0 ; 'x\\'; y' \n1; 'z'  \n",
        'a\t "b"\n0\t "x\ty" \n1\t"z"\n',
    ],
)
def test_a_space_beside_a_quote_has_no_meaning(text: str) -> None:
    """The cell is quoted all the same, with each delimiter and quote, also over several lines, before and behind."""
    sample = Sample("t.csv", text.encode().splitlines(keepends=True))
    decided = decide(sample, ImportOptions(key="b"))
    assert sorted(decided.reading.columns) == ["a", "b"]
    keys = [found.key for found in read_batch(first_lines(sample, decided.reading), decided.reading)]  # type: ignore[union-attr]
    assert len(keys) == 2
    assert not any(key is None or key != key.strip(b" \t") or key.startswith((b'"', b"'")) for key in keys)
