"""Answers as plots, pages, tables and JSON: the numbers are in them, and nothing of the data is taken for markup."""

import json
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from xml.etree import ElementTree

import pytest

from raftlog.cluster.cli.frame.output import Format
from raftlog.cluster.drawing import plots
from raftlog.cluster.drawing.plots import BarPlot, LinePlot
from raftlog.spark_export.tables import report
from raftlog.spark_export.tables.report import Result

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
HOURS = [BEGIN + timedelta(hours=hour) for hour in (0, 1, 2, 10, 20, 21)]


def drawn(plot: plots.Plot) -> ElementTree.Element:
    """The plot, parsed: it is well-formed."""
    return ElementTree.fromstring(plots.svg(plot))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0, 0.73, [0, 0.2, 0.4, 0.6, 0.8]),
        (0, 0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-3, 12, [-5, 0, 5, 10, 15]),
        (0, 1234567, [0, 500000, 1000000, 1500000]),
    ],
)
def test_ticks_are_round_and_enclose(low: float, high: float, expected: list[float]) -> None:
    """An axis begins at or below the lowest value, ends at or above the highest, in round steps."""
    found = plots.ticks(low, high)
    assert found[0] <= low
    assert found[-1] >= high
    assert found == pytest.approx(expected[: len(found)])


def test_lines_have_a_tip_for_each_point_and_gaps() -> None:
    """Each value is shown over its point; a missing value and a long silence lift the pen; a lone point is visible."""
    values = [1.0, 2.0, None, 4.0, 5.0, 6.0]
    figure = drawn(LinePlot("rate", HOURS, {"a <b>": values}, "/s", timedelta(hours=2)))
    (path,) = [each for each in figure.iter("path") if "line" in each.attrib["class"]]
    assert [each for each in path.attrib["d"] if each.isalpha()] == ["M", "L", "M", "M", "L"]
    tips = [title.text for title in figure.iter("title")]
    assert len(tips) == 5
    assert tips[0] == "a <b>: 1 /s at 2026-01-01 00:00:00"
    kinds = [circle.attrib["class"] for circle in figure.iter("circle")]
    assert kinds == ["s0 dot", "s0 dot", "s0 lone", "s0 dot", "s0 dot"]
    heights = [float(circle.attrib["cy"]) for circle in figure.iter("circle")]
    assert heights == sorted(heights, reverse=True)


def test_lines_of_one_moment_and_of_none() -> None:
    """One point has one time on its axis; no point is said in words, not drawn as nothing."""
    one = drawn(LinePlot("rate", [BEGIN], {"a": [1.0]}))
    assert len([text for text in one.iter("text") if text.text == "2026-01-01 00:00:00"]) == 1
    for nothing in (LinePlot("rate", [], {"a": []}), LinePlot("rate", [BEGIN], {"a": [None]}), BarPlot("keys", [], [])):
        assert "nothing to show" in plots.svg(nothing)
        assert ElementTree.fromstring(nothing._repr_svg_()).tag == "{http://www.w3.org/2000/svg}svg"


def test_bars_are_as_long_as_their_values() -> None:
    """Lengths are in proportion; long labels are cut, and whole in the tip; a bar of zero can still be pointed at."""
    figure = drawn(BarPlot("keys", ["a" * 60, "<script>", "c"], [100, 50, 0], "records"))
    widths = [float(bar.attrib["width"]) for bar in figure.iter("rect")]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.2)
    assert widths[2] == 1
    assert [title.text for title in figure.iter("title")][:2] == ["a" * 60 + ": 100 records", "<script>: 50 records"]
    assert any((text.text or "").endswith("…") for text in figure.iter("text"))


def test_bars_below_zero_go_to_the_left() -> None:
    """From the same zero as the others, in the same proportion, with the number behind their end."""
    figure = drawn(BarPlot("delay", ["a", "b", "c"], [-400, 100, -11]))
    bars = [(float(bar.attrib["x"]), float(bar.attrib["width"])) for bar in figure.iter("rect")]
    (low, width), (zero, right), (near, short) = bars
    assert low + width == pytest.approx(zero, abs=0.2)
    assert near + short == pytest.approx(zero, abs=0.2)
    assert (width / right, width / short) == pytest.approx((4, 400 / 11), rel=0.02)
    numbers = {text.text: float(text.attrib["x"]) for text in figure.iter("text")}
    assert numbers["-400"] < low
    assert numbers["100"] > zero + right
    only = drawn(BarPlot("delay", ["a", "b"], [-5, -10]))
    assert [float(bar.attrib["width"]) for bar in only.iter("rect")] == pytest.approx([240, 480], rel=0.2)


RESULT = Result(
    "top-keys",
    "Which keys?",
    ["key", "count", "share", "is_wrong"],
    [["<img src=x>", 1234567, 0.00012, True], [None, 1, 2.5, None]],
    True,
    [BarPlot("keys", ["<b>"], [1])],
    ["a <note>"],
)


def test_the_page_is_one_file_and_escapes_its_data() -> None:
    """Nothing is loaded from elsewhere, nothing of the data is markup, every answer can be jumped to."""
    page = report.page("a <log>", [("cluster", "http://127.0.0.1:1 & more")], [RESULT])
    assert not re.search(r"<script|<img|<link|src=[\"']|@import|url\(", page)
    assert "{{" not in page
    for text in ("a &lt;log&gt;", "&amp; more", "&lt;img src=x&gt;", "a &lt;note&gt;", 'id="top-keys"', "1.2e-04"):
        assert text in page
    assert "the first 2 rows; --limit 0 shows all" in page


def test_rows_are_printed_as_by_every_command(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """TSV in a pipe, without a line that is no row; question and remarks are on standard error. JSON has null values,
    and every digit."""
    report.show_result(RESULT, None)
    told = capsysbinary.readouterr()
    assert told.out.decode().splitlines() == [
        "key\tcount\tshare\tis_wrong",
        "<img src=x>\t1234567\t0.00012\ttrue",
        "\t1\t2.5\t",
    ]
    assert told.err.decode().splitlines() == ["Which keys?", "a <note>", "the first 2 rows; --limit 0 shows all"]
    report.show(["a", "b"], [(1 / 3, None), ({"in": [Decimal("1.10"), b"x"]}, math.inf)], Format.JSONL)
    rows = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert rows == [{"a": 1 / 3, "b": None}, {"a": {"in": [1.1, "x"]}, "b": "inf"}]
    report.show(["a"], [(1 / 3,), (b"x" * 500,)], Format.TABLE)
    assert [len(line) for line in capsysbinary.readouterr().out.decode().splitlines()] == [121, 121, 121]


@pytest.mark.parametrize(
    ("columns", "width", "shown"),
    [(21, 100, [0, 1, 2, 3, 4, 17, 18, 19, 20]), (21, 400, range(21)), (4, 60, range(4)), (1, 9, [0])],
)
def test_columns_that_a_terminal_has_no_place_for_are_left_out_of_the_middle(
    columns: int, width: int, shown: Sequence[int], monkeypatch: pytest.MonkeyPatch, capsysbinary: Any
) -> None:
    """As many as are readable, from both ends; a line says how many. No row is folded for it."""
    monkeypatch.setattr("raftlog.cluster.cli.frame.output.UNBOUNDED", width)
    names = [f"column_{number:02d}" for number in range(columns)]
    rows = [[f"v{number:02d} of {row:02d}" for number in range(columns)] for row in range(2)]
    report.show(names, rows, Format.TABLE)
    lines = capsysbinary.readouterr().out.decode().splitlines()
    assert [int(each) for each in re.findall(r"column_(\d+)", lines[0])] == [*shown]
    assert [int(each) for each in re.findall(r"v(\d+) of 01", lines[2])] == [*shown]
    is_cut = len(shown) < columns
    assert lines[3:] == ([f"{len(shown)} of {columns} columns are shown; -o json has all"] if is_cut else [])
    assert ("…" in lines[1]) is is_cut


def test_plain_values_are_shown_as_text() -> None:
    """Bytes become text, whatever they are; times are ISO 8601 in UTC."""
    assert report.plain(bytearray(b"a\xff")) == "a\\xff"
    assert report.plain(BEGIN) == "2026-01-01T00:00:00.000Z"
    assert report.plain([1, "a"]) == '[1, "a"]'
    assert report.plain(BEGIN.replace(tzinfo=None, microsecond=1)) == "2026-01-01T00:00:00.000001"
    assert report.plain(Decimal("12345678901234567.89")) == "12345678901234567.89"
    assert (report.plain(True), report.plain(None), report.plain(1.5)) == (True, None, 1.5)
