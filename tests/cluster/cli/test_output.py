"""What the command line prints, format by format; a value is never ambiguous."""

import io
import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st

from raftlog.cluster.api.text import as_time
from raftlog.cluster.cli.frame.output import Column, Format, Printer, View, cell, jsonable, lines_of

VIEW = View((Column("key"), Column("n"), Column("odd", lambda row: row["n"] % 2 == 1)), lines_of("key"))
ROWS = [{"key": b"a\tb", "n": 1, "gone": None}, {"key": b"\xff", "n": 2, "inner": {"value": b"\x00\xfe"}}]


def printed(format: Format, encoding: str = "auto", *, single: bool = False) -> str:
    """ROWS, or the first of them, in that format."""
    out = io.BytesIO()
    printer = Printer(format, encoding, out)  # type: ignore[arg-type]
    if single:
        printer.one(ROWS[0], VIEW)
    else:
        printer.all(ROWS, VIEW)
    return out.getvalue().decode("utf-8", "surrogateescape")


def test_json_has_everything_tables_have_columns() -> None:
    """JSON is as rich as the rows, bytes that are no text have their twin; TSV is a line a row."""
    expected = [{"key": "a\tb", "n": 1}, {"key_b64": "/w==", "n": 2, "inner": {"value_b64": "AP4="}}]
    assert json.loads(printed(Format.JSON)) == expected
    assert [json.loads(line) for line in printed(Format.JSONL).splitlines()] == expected
    assert json.loads(printed(Format.JSON, single=True)) == expected[0]
    assert printed(Format.TSV) == "key\tn\todd\na\\tb\t1\ttrue\n\\xff\t2\tfalse\n"
    assert printed(Format.TSV, "base64").splitlines()[2] == "/w==\t2\tfalse"
    assert printed(Format.RAW) == "a\tb\n\udcff\n"
    assert printed(Format.TABLE).split() == ["key", "n", "odd", "a\\tb", "1", "true", "\\xff", "2", "false"]


@given(st.binary(max_size=40))
def test_a_cell_can_be_undone(data: bytes) -> None:
    """No tabs, no line ends, and the very bytes come back."""
    text = cell(data)
    assert "\t" not in text
    assert len(text.splitlines()) <= 1
    undone = b""
    rest = text
    while rest:
        if rest.startswith("\\x"):
            undone, rest = undone + bytes.fromhex(rest[2:4]), rest[4:]
        elif rest.startswith("\\"):
            undone, rest = undone + {"t": b"\t", "n": b"\n", "r": b"\r", "\\": b"\\"}[rest[1]], rest[2:]
        else:
            undone, rest = undone + rest[0].encode(), rest[1:]
    assert undone == data


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "true"),
        (1.5, "1.5"),
        (2.0, "2"),
        ([1, {"a": b"x"}], '[1,{"a":"x"}]'),
        (7, "7"),
        ("a\nb", "a\\nb"),
    ],
)
def test_numbers_and_nested_values_are_printed_plain(value: object, text: str) -> None:
    """Numbers, truth and nested values read as they do elsewhere."""
    assert cell(value) == text


def test_headers_are_text_only_if_all_of_them_are() -> None:
    """As in the HTTP API: one that is not makes all of them base64, so that a reader needs no case by case."""
    assert jsonable({"headers": [("a", b"b")]}) == {"headers": [("a", "b")]}
    assert jsonable({"headers": [("a", b"b"), ("c", b"\xff")]}) == {"headers_b64": [("a", "Yg=="), ("c", "/w==")]}
    assert as_time(0) == "1970-01-01T00:00:00.000Z"
    assert as_time(None) == ""


def test_an_array_ends_where_its_rows_are_broken_off() -> None:
    """JSON is one document, whatever ends the rows: one row a line as they come, and the end in any case."""

    def rows(count: int) -> Iterator[dict[str, int]]:
        for number in range(count):
            yield {"n": number}
        raise KeyboardInterrupt

    for count, told in ((0, b"[]\n"), (1, b'[\n{"n": 0}\n]\n'), (2, b'[\n{"n": 0},\n{"n": 1}\n]\n')):
        out = io.BytesIO()
        with pytest.raises(KeyboardInterrupt):
            Printer(Format.JSON, stdout=out).each(rows(count), View((Column("n"),), lines_of("n")))
        assert out.getvalue() == told
        assert json.loads(told) == [{"n": number} for number in range(count)]


def test_ctrl_c_in_the_middle_of_a_row_leaves_one_json_document() -> None:
    """The row is written whole before the command ends, and then the array is closed."""

    class Slow(io.BytesIO):
        def write(self, data: Any) -> int:
            for byte in bytes(data):
                if super().write(bytes([byte])) and self.tell() == 4:
                    signal.raise_signal(signal.SIGINT)
            return len(data)

    out = Slow()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # another test may have left its own
    try:
        with pytest.raises(KeyboardInterrupt):
            Printer(Format.JSON, "auto", out).each(ROWS, VIEW)
    finally:
        signal.signal(signal.SIGINT, before)
    assert json.loads(out.getvalue()) == [{"key": "a\tb", "n": 1}]
