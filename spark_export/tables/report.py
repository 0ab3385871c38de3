"""Shows the result of an analysis: as a table for a terminal, as JSON lines, or as a page with plots."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from raftlog.spark_export.tables.plots import Plot, number, svg

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PAGE: Final = Path(__file__).with_name("report.html")
_CELL_LENGTH: Final = 120
_UNBROKEN_LENGTH: Final = 26  # a time, an address, a number: cells of at most so many characters are not folded

_NARROWEST: Final = 12  # characters: a column that needs more may be folded to so many, and not to fewer

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Result:
    """The rows of an answer, in order. `is_cut`: there are more rows than these. `question`: what they answer."""

    name: str
    question: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    is_cut: bool = False
    plots: Sequence[Plot] = field(default_factory=tuple)
    notes: Sequence[str] = field(default_factory=tuple)


def collect(frame: "DataFrame", limit: int) -> tuple[list[dict[str, Any]], bool]:
    """At most `limit` rows (0: all), and whether there are more. Times have their zone."""
    found = (frame.limit(limit + 1) if limit else frame).collect()
    rows = [{name: _with_zone(value) for name, value in row.asDict().items()} for row in found]
    return (rows[:limit], len(rows) > limit) if limit else (rows, False)


def _with_zone(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


def plain(value: Any) -> Value:
    """A cell as JSON has it: bytes as text, times as ISO 8601 in UTC."""
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


def json_lines(result: Result) -> str:
    """One object per row, with the columns' names."""
    return "".join(json.dumps(dict(zip(result.columns, row, strict=True))) + "\n" for row in result.rows)


def table(result: Result, width: int = 1 << 16) -> Group:
    """The answer for a terminal of that width; question and remarks as wide as the terminal is, not as the table. Where
    the columns would not be readable side by side, each row has a line for each of its columns."""
    question = [Text(result.question, "bold")] if result.question else []
    remarks = [Text(each, "dim italic") for each in _remarks(result)]
    cells = [[name, *(_cell(row[place]) for row in result.rows)] for place, name in enumerate(result.columns)]
    if sum(min(max(map(len, column)), _NARROWEST) + 3 for column in cells) + 1 > width and result.rows:
        return Group(*question, *_below(result), *remarks)
    shown = Table()
    for place, name in enumerate(result.columns):
        is_number = any(_is_number(row[place]) for row in result.rows)
        widest = max((len(_cell(row[place])) for row in result.rows), default=0)
        shown.add_column(
            name, justify="right" if is_number else "left", overflow="fold", no_wrap=widest <= _UNBROKEN_LENGTH
        )
    for row in result.rows:
        shown.add_row(*(Text(_cell(value)) for value in row))
    return Group(*question, shown, *remarks)


def _below(result: Result) -> list[RenderableType]:
    """The rows, each with its columns one below the other."""
    shown: list[RenderableType] = []
    for place, row in enumerate(result.rows, start=1):
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in zip(result.columns, row, strict=True):
            grid.add_row(Text(name, "bold"), Text(_cell(value)))
        shown += [Text(f"row {place}", "dim"), grid]
    return shown


def _remarks(result: Result) -> list[str]:
    cut = f"the first {len(result.rows)} rows; --limit 0 shows all"
    return [*result.notes, *([cut] if result.is_cut else [])]


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    text = str(value)
    return text if len(text) <= _CELL_LENGTH else text[: _CELL_LENGTH - 1] + "…"


def page(heading: str, facts: Sequence[tuple[str, str]], results: Sequence[Result]) -> str:
    """One HTML file that needs nothing else: the facts first, then each answer with its plots and its table."""
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    links = "".join(f'<a href="#{escape(result.name)}">{escape(result.name)}</a>' for result in results)
    body = f"<h1>{escape(heading)}</h1><dl>{listed}</dl><nav>{links}</nav>" + "".join(map(_section, results))
    template = _PAGE.read_text(encoding="utf-8")
    return template.replace("{{TITLE}}", escape(heading)).replace("{{BODY}}", body)


def _section(result: Result) -> str:
    numbers = [any(_is_number(row[place]) for row in result.rows) for place in range(len(result.columns))]

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if is_number else ''}>{escape(value)}</{tag}>"
            for value, is_number in zip(values, numbers, strict=True)
        )

    rows = "".join(f"<tr>{cells('td', [_cell(value) for value in row])}</tr>" for row in result.rows)
    remarks = "".join(f'<p class="faint">{escape(remark)}</p>' for remark in _remarks(result))
    plots = "".join(map(svg, result.plots))
    return (
        f'<section id="{escape(result.name)}"><h2>{escape(result.question)}</h2>{plots}{remarks}'
        f"<div class=scroll><table><thead><tr>{cells('th', list(result.columns))}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div></section>"
    )
