"""Shows the result of an analysis: as rows of the command line, or as a page with plots."""

import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from html import escape
from typing import TYPE_CHECKING, Any, Final

from raftlog.cluster.api.text import counted
from raftlog.cluster.cli.frame.output import Column, Format, Printer, View, jsonable, lines_of
from raftlog.cluster.drawing.page import simple
from raftlog.cluster.drawing.plots import Plot, number, svg

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CELL_LENGTH: Final = 120

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
    """A cell as text, a number or a truth value: bytes as text, times as ISO 8601, those with a zone in UTC."""
    value = printable(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return json.dumps(jsonable(value), ensure_ascii=False) if isinstance(value, list | dict) else value


def printable(value: Any) -> Any:
    """A value as the command line prints it: times as text, numbers that JSON has."""
    match value:
        case None | bool() | int() | str() | bytes():
            return value
        case bytearray() | memoryview():
            return bytes(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case Decimal():
            short = float(value)
            return short if Decimal(repr(short)) == value else str(value)
        case datetime():
            digits = "microseconds" if value.microsecond % 1_000 else "milliseconds"
            utc = value if value.tzinfo is None else value.astimezone(UTC)
            return utc.isoformat(timespec=digits).replace("+00:00", "Z")
        case list() | tuple():
            return [printable(each) for each in value]
        case dict():
            return {str(name): printable(each) for name, each in value.items()}
        case _:
            return str(value)


def show(names: Sequence[str], rows: Iterable[Sequence[Any]], format: Format | None) -> None:
    """Prints rows as every command does."""
    printer = Printer(format)
    view = View(tuple(map(Column, names)), lines_of(names[0]) if names else lambda _: None, is_open=True)
    named = ({name: printable(value) for name, value in zip(names, row, strict=True)} for row in rows)
    (printer.all if printer.format is Format.TABLE else printer.each)(named, view)


def show_result(result: Result, format: Format | None) -> None:
    """Prints the rows; question and remarks go to standard error, where they are in the way of no program."""
    print(result.question, file=sys.stderr)
    show(result.columns, result.rows, format)
    for remark in _remarks(result):
        print(remark, file=sys.stderr)


def _remarks(result: Result) -> list[str]:
    cut = f"the first {counted(len(result.rows), 'row')}; --limit 0 shows all"
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
    return simple(escape(heading), body)


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
