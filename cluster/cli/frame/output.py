"""Prints the rows of a command as table, JSON, JSON lines, TSV or raw bytes.

Bytes are text if they are valid UTF-8. In JSON other bytes go into a twin field ending in `_b64`, as in the HTTP API.
In tables and TSV every byte that is not printable text is an escape (`\\t`, `\\n`, `\\\\`, `\\xff`), so a line is a
row.
"""

from __future__ import annotations

import json
import math
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, BinaryIO, Final

from raftlog.cluster.api.encoding import Encoding, as_text, to_b64
from raftlog.cluster.api.text import as_time
from raftlog.cluster.runtime.file_errors import naming

Row = Mapping[str, Any]

UNBOUNDED: Final = 100_000
"""Width of a table in a file or a pipe: large enough that nothing is folded or cut."""


_READABLE: Final = 26
"""Characters: a column that needs more may be folded to so many; a time, an address or a number needs less."""
_BETWEEN: Final = 2  # characters between two columns
_CELL_LENGTH: Final = 120
"""Characters of a cell of a table whose columns a user chose; other formats have all."""


class Format(StrEnum):
    """The format of results."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    TSV = "tsv"
    RAW = "raw"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of tables and TSV; `width` is its width in a table that is printed row by row."""

    name: str
    of: Callable[[Row], object] | None = None
    width: int = 10

    def value(self, row: Row) -> object:
        """The content of the column in that row."""
        return row.get(self.name) if self.of is None else self.of(row)


@dataclass(frozen=True, slots=True)
class View:
    """The layout of rows of one kind: their columns, and the field for raw output (None: no raw output).

    `is_open`: a user chose the columns. A value that is None is in JSON too, numbers have all of their digits, and
    columns that a terminal has no place for are left out of the middle.
    """

    columns: tuple[Column, ...]
    raw: Callable[[Row], bytes | None]
    is_open: bool = False


TIME: Final = Column("time", lambda row: as_time(row["time_ms"]), 24)


def view(*columns: str | Column, raw: str | Callable[[Row], bytes | None]) -> View:
    """Columns, a name for each that is a field of the row as it is. `raw`: the field that is the raw output, one a
    line, or a function that makes it."""
    shown = tuple(Column(each) if isinstance(each, str) else each for each in columns)
    return View(shown, lines_of(raw) if isinstance(raw, str) else raw)


_Drawn = tuple[str, str, list[str]]
"""A column of a table: its name, its side, its cells."""

_ESCAPES: Final = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


def cell(value: object, encoding: Encoding = "auto") -> str:
    """One value as text without tabs and line ends. The value can be recovered from the text."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case bytes():
            text = to_b64(value) if encoding == "base64" else value.decode("utf-8", "surrogateescape")
            return "".join(_ESCAPES.get(each) or (each if each.isprintable() else _escaped(each)) for each in text)
        case str():
            return "".join(_ESCAPES.get(each) or (each if each.isprintable() else _escaped(each)) for each in value)
        case float():
            return f"{value:.3f}".rstrip("0").rstrip(".")
        case list() | tuple() | Mapping():
            return json.dumps(jsonable(value, encoding), ensure_ascii=False, separators=(",", ":"))
        case _:
            return str(value)


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8, as surrogateescape decodes it
        return f"\\x{code - 0xDC00:02x}"
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))


def jsonable(value: Any, encoding: Encoding = "auto", *, with_none: bool = False) -> Any:
    """The value with its bytes as JSON carries them; fields that are None are left out, unless `with_none`."""
    match value:
        case Mapping():
            shown: dict[str, Any] = {}
            for name, each in value.items():
                if isinstance(each, bytes):
                    text = as_text(each, encoding)
                    shown |= {f"{name}_b64": to_b64(each)} if text is None else {name: text}
                elif name == "headers" and each is not None and not with_none:
                    shown |= _headers(each, encoding)
                elif each is not None or with_none:
                    shown[name] = jsonable(each, encoding, with_none=with_none)
            return shown
        case list() | tuple():
            return [jsonable(each, encoding, with_none=with_none) for each in value]
        case bytes():  # within a list
            text = as_text(value, encoding)
            return {"b64": to_b64(value)} if text is None else text
        case _:
            return value


def _headers(pairs: Iterable[tuple[str, bytes]], encoding: Encoding) -> dict[str, Any]:
    """Record headers as in the HTTP API: text if all of them are UTF-8."""
    pairs = [(name, bytes(value)) for name, value in pairs]
    texts = [(name, as_text(value, encoding)) for name, value in pairs]
    if all(text is not None for _, text in texts):
        return {"headers": texts}
    return {"headers_b64": [(name, to_b64(value)) for name, value in pairs]}


class Printer:
    """Prints the results of one command."""

    def __init__(self, format: Format | None, encoding: Encoding = "auto", stdout: BinaryIO | None = None) -> None:
        self.format = format or (Format.TABLE if sys.stdout.isatty() else Format.TSV)
        self.encoding: Encoding = encoding
        self._stdout = stdout or sys.stdout.buffer

    @property
    def is_json(self) -> bool:
        """Whether a program reads the results as JSON."""
        return self.format in (Format.JSON, Format.JSONL)

    def one(self, row: Row, view: View) -> None:
        """A single result: JSON is an object, not a list of one."""
        if self.format is Format.JSON:
            self._line(json.dumps(jsonable(row, self.encoding), ensure_ascii=False, indent=2))
        else:
            self.all([row], view)

    def all(self, rows: Iterable[Row], view: View) -> None:
        """Prints rows that are complete."""
        if self.format is Format.TABLE:
            self._table(rows, view)
        elif self.format is Format.JSON:
            shown = [self._json(row, view) for row in rows]
            self._line(json.dumps(shown, ensure_ascii=False, indent=2))
        else:
            self.each(rows, view)

    def each(self, rows: Iterable[Row], view: View) -> None:
        """Prints rows as they come, for results without an end. JSON is an array with one row a line.

        The end of the array is printed also if the rows break off. JSON lines have no array around them.
        """
        if self.format is Format.JSON:
            self._array(rows, view)
            return
        if self.format is Format.TABLE:
            self._line("  ".join(f"{column.name:<{column.width}}" for column in view.columns).rstrip())
        elif self.format is Format.TSV:
            self._line("\t".join(column.name for column in view.columns))
        for row in rows:
            match self.format:
                case Format.TABLE:
                    cells = (f"{cell(column.value(row), self.encoding):<{column.width}}" for column in view.columns)
                    self._line("  ".join(cells).rstrip())
                case Format.TSV:
                    values = (column.value(row) for column in view.columns)
                    if view.is_open:
                        values = (repr(each) if isinstance(each, float) else each for each in values)
                    self._line("\t".join(cell(each, self.encoding) for each in values))
                case Format.JSONL:
                    self._line(json.dumps(self._json(row, view), ensure_ascii=False))
                case Format.RAW:
                    if (raw := view.raw(row)) is not None:
                        self._write(raw)

    def _json(self, row: Row, view: View) -> Any:
        return jsonable(row, self.encoding, with_none=view.is_open)

    def _array(self, rows: Iterable[Row], view: View) -> None:
        before = b"["
        try:
            for row in rows:
                shown = json.dumps(self._json(row, view), ensure_ascii=False)
                with _interrupts_wait():  # a row is written whole, or not at all: the array can be closed
                    self._write(before + b"\n" + shown.encode("utf-8", "surrogatepass"))
                    before = b","
        finally:
            self._line("[]" if before == b"[" else "\n]")

    def _table(self, rows: Iterable[Row], view: View) -> None:
        from rich.console import Console  # here: most commands print no table, and rich takes long to import
        from rich.table import Table

        console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else UNBOUNDED)
        rows = list(rows)
        columns = [self._drawn(column, rows, view) for column in view.columns]
        shown = _fitting(columns, console.width) if view.is_open else columns
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name, justify, cells in shown:
            need = _need(name, cells) if view.is_open else 0
            table.add_column(_markless(name), justify=justify, overflow="fold", min_width=need)  # type: ignore[arg-type]
        for row in zip(*(cells for _, _, cells in shown), strict=True):
            table.add_row(*map(_markless, row))
        with console.capture() as captured:
            console.print(table)
            if len(shown) <= len(columns) and shown != columns:
                console.print(
                    f"{len(shown) - 1} of {len(columns)} columns are shown; -o json has all", style="dim italic"
                )
        self._write(captured.get().encode("utf-8", "replace"))

    def _drawn(self, column: Column, rows: Sequence[Row], view: View) -> _Drawn:
        """The column as text."""
        values = [column.value(row) for row in rows]
        is_number = bool(rows) and all(isinstance(value, int | float | None) for value in values)
        cells = [cell(_short(value) if view.is_open else value, self.encoding) for value in values]
        return column.name, "right" if is_number else "left", cells

    def _line(self, text: str) -> None:
        self._write(text.encode("utf-8", "surrogatepass") + b"\n")

    def _write(self, data: bytes) -> None:
        with naming("standard output"):
            self._stdout.write(data)
            self._stdout.flush()


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Holds Ctrl-C back."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _need(name: str, cells: Sequence[str]) -> int:
    """The width from which on a column is readable."""
    return min(_READABLE, max(map(len, [name, *cells])))


def _fitting(columns: list[_Drawn], width: int) -> list[_Drawn]:
    """The columns that fit in so many characters, from the left and from the right, with … for those between."""
    needs = [_need(name, cells) + _BETWEEN for name, _, cells in columns]
    if sum(needs) - _BETWEEN <= width:
        return columns
    left, right, room = 0, len(columns), width - 1
    while left < right:
        place = left if left <= len(columns) - right else right - 1
        room -= needs[place]
        if room < 0 and left:  # the first column always stays
            break
        left, right = (left + 1, right) if place == left else (left, right - 1)
    return [*columns[:left], ("…", "left", ["…"] * len(columns[0][2])), *columns[right:]]


def _short(value: object) -> object:
    """A value for a table: six digits of a number, and the beginning of a long text."""
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 or value != value or math.isinf(value) else f"{value:.15g}"
    if isinstance(value, bytes) and len(value) > _CELL_LENGTH:
        return value[:_CELL_LENGTH] + "…".encode()
    return f"{value[:_CELL_LENGTH]}…" if isinstance(value, str) and len(value) > _CELL_LENGTH else value


def _markless(text: str) -> str:
    """The text, escaped so that rich finds no markup in it."""
    return text.replace("[", "\\[")


def lines_of(name: str) -> Callable[[Row], bytes | None]:
    """Prints that field's bytes and a line end."""

    def raw(row: Row) -> bytes | None:
        value = row.get(name)
        if value is None:
            return None
        return (value if isinstance(value, bytes) else str(value).encode()) + b"\n"

    return raw


@contextmanager
def bar(what: str) -> Iterator[Callable[..., None]]:
    """A bar on standard error, if that is a terminal. Called with done, total if known, and maybe a word more."""
    from rich.console import Console  # here: rich takes long to import
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True, force_terminal=sys.stderr.isatty())
    if not console.is_terminal:
        yield lambda done, total, more="": None
        return
    shown = TextColumn("{task.percentage:>3.0f}% {task.fields[more]}")
    columns = (TextColumn(what), BarColumn(), shown, TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None, more="")
        yield lambda done, total, more="": progress.update(
            task, completed=done, total=total and max(done, total), more=more
        )
