"""Answers as plots, pages, tables and JSON: the numbers are in them, and nothing of the data is taken for markup."""

import io
import json
import re
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest
from rich.console import Console

from raftlog.spark_export.tables import plots, report
from raftlog.spark_export.tables.plots import Bars, Lines
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
    figure = drawn(Lines("rate", HOURS, {"a <b>": values}, "/s", timedelta(hours=2)))
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
    one = drawn(Lines("rate", [BEGIN], {"a": [1.0]}))
    assert len([text for text in one.iter("text") if text.text == "00:00:00"]) == 1
    for nothing in (Lines("rate", [], {"a": []}), Lines("rate", [BEGIN], {"a": [None]}), Bars("keys", [], [])):
        assert "nothing to show" in plots.svg(nothing)
        assert ElementTree.fromstring(nothing._repr_svg_()).tag == "{http://www.w3.org/2000/svg}svg"


def test_bars_are_as_long_as_their_values() -> None:
    """Lengths are in proportion; long labels are cut, and whole in the tip; a bar of zero can still be pointed at."""
    figure = drawn(Bars("keys", ["a" * 60, "<script>", "c"], [100, 50, 0], "records"))
    widths = [float(bar.attrib["width"]) for bar in figure.iter("rect")]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.2)
    assert widths[2] == 1
    assert [title.text for title in figure.iter("title")][:2] == ["a" * 60 + ": 100 records", "<script>: 50 records"]
    assert any((text.text or "").endswith("…") for text in figure.iter("text"))


RESULT = Result(
    "top-keys", "Which keys?", ["key", "count", "share", "is_wrong"],
    [["<img src=x>", 1234567, 0.00012, True], [None, 1, 2.5, None]], True, [Bars("keys", ["<b>"], [1])], ["a <note>"],
)  # fmt: skip


def test_the_page_is_one_file_and_escapes_its_data() -> None:
    """Nothing is loaded from elsewhere, nothing of the data is markup, every answer can be jumped to."""
    page = report.page("a <log>", [("cluster", "http://127.0.0.1:1 & more")], [RESULT])
    assert not re.search(r"<script|<img|<link|src=[\"']|@import|url\(", page)
    assert "{{" not in page
    for text in ("a &lt;log&gt;", "&amp; more", "&lt;img src=x&gt;", "a &lt;note&gt;", 'id="top-keys"', "1.2e-04"):
        assert text in page
    assert "the first 2 rows; --limit 0 shows all" in page


def test_table_and_json_lines() -> None:
    """A terminal gets numbers to the right and a dash for nothing; JSON has the values themselves."""
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(report.table(RESULT))
    shown = console.export_text()
    for text in ("Which keys?", "<img src=x>", "1234567", "yes", "-", "a <note>"):
        assert text in shown
    rows = [json.loads(line) for line in report.json_lines(RESULT).splitlines()]
    assert rows[0] == {"key": "<img src=x>", "count": 1234567, "share": 0.00012, "is_wrong": True}
    assert rows[1]["key"] is None


@pytest.mark.parametrize(
    ("columns", "width", "is_below"), [(21, 100, True), (21, 400, False), (4, 100, False), (9, 80, True)]
)
def test_rows_too_wide_for_the_terminal_have_a_line_for_each_column(columns: int, width: int, is_below: bool) -> None:
    """No column gets two characters wide; where all fit, they stand side by side."""
    names = [f"column_{number:02d}" for number in range(columns)]
    rows = [tuple(f"value {number} of {row}" for number in range(columns)) for row in range(2)]
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(report.table(report.Result("query", "", names, rows), width))
    shown = console.export_text()
    assert all(name in shown for name in names)
    assert ("row 2" in shown) is is_below
    assert not is_below or re.search(r"column_03 +value 3 of 1", shown)


def test_plain_values_are_shown_as_text() -> None:
    """Bytes become text, whatever they are; times are ISO 8601 in UTC."""
    assert report.plain(bytearray(b"a\xff")) == "a\\xff"
    assert report.plain(BEGIN) == "2026-01-01T00:00:00.000Z"
    assert report.plain([1]) == "[1]"
    assert (report.plain(True), report.plain(None), report.plain(1.5)) == (True, None, 1.5)
