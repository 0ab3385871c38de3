"""Guesses how a CSV file is written from its first bytes: charset, delimiter, quotes, line of names; pure.

`raftlog.cluster.importer.formats.deciding` calls it, and prints each guess.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Final

import msgspec

DELIMITERS: Final = (",", ";", "\t", "|")
UTF8: Final = "utf-8"
WINDOWS: Final = "windows-1252"
_MARKS: Final = (
    (codecs.BOM_UTF8, UTF8),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16: its mark begins with that of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""Byte order marks."""

_CELL_MAX: Final = 1 << 30
"""Most characters of a cell: more than any row has, which a line or a request limits. The module csv allows 128 Ki."""

ROWS_LOOKED_AT: Final = 200
_NAME: Final = re.compile(r"\S(?:.{0,62}\S)?")
_NUMBER: Final = re.compile(r"[+-]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][+-]?\d+)?")


class Dialect(msgspec.Struct, frozen=True):
    """How the rows of a CSV file are written. `header`: the first line names the columns."""

    delimiter: str = ","
    quote: str = '"'
    escape: str | None = None  # None: a quote in a quoted field is doubled
    header: bool = True
    space: bool = False  # spaces before a cell, and blanks beside a quote, do not belong to it


_CONTROL: Final = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f]")
"""Control characters that text does not have: not those that move the cursor, ring the bell, or begin a colour."""


def charset_of(sample: bytes, is_whole: bool) -> tuple[str, int]:
    """The charset of the first bytes of a file, and the length of its byte order mark.

    `is_whole`: the sample is the file. Otherwise its last character may be cut. UTF-8 if the bytes are UTF-8, else
    Windows-1252, which can read any byte.
    """
    for mark, charset in _MARKS:
        if sample.startswith(mark):
            return charset, len(mark)
    for at, charset in ((1, "utf-16-le"), (0, "utf-16-be")):
        odd = sample[at : min(len(sample), 4096) : 2]
        if len(odd) > 3 and odd.count(0) > 0.7 * len(odd):
            return charset, 0
    if b"\0" in sample:
        for charset in ("utf-16-le", "utf-16-be"):
            if _is_text(sample[: min(len(sample), 4096) & ~1], charset):
                return charset, 0
    try:
        codecs.getincrementaldecoder(UTF8)().decode(sample, final=is_whole)
    except UnicodeDecodeError:
        return WINDOWS, 0
    return UTF8, 0


def is_binary(sample: bytes, charset: str) -> bool:
    """Whether first bytes, already in UTF-8 or as they are, are no text.

    Text has no NUL, and in a charset that was only guessed no other control character.
    """
    is_guessed = WINDOWS in (charset, charset_of(sample, is_whole=False)[0])
    return b"\0" in sample or (is_guessed and _CONTROL.search(sample) is not None)


def _is_text(sample: bytes, charset: str) -> bool:
    """Whether the bytes are lines in this charset. Read in a wrong one they are no lines, or no characters."""
    try:
        text = codecs.getincrementaldecoder(charset)().decode(sample)
    except UnicodeDecodeError:
        return False
    return "\n" in text and all(map(str.isprintable, text.split()))


def _undefined(error: UnicodeError) -> tuple[str, int]:
    """Reads a byte that Windows-1252 leaves undefined as the character of the same number, as browsers do."""
    assert isinstance(error, UnicodeDecodeError)
    return "".join(map(chr, error.object[error.start : error.end])), error.end


codecs.register_error("raftlog-undefined", _undefined)


def dialect_of(lines: Sequence[str], delimiter: str | None = None) -> Dialect:
    """The dialect of the first lines. A given delimiter is not guessed."""
    text = "\n".join(lines)
    quote = "'" if '"' not in text and re.search(r"(?:^|[,;\t|]) *'[^'\n]*'(?:[,;\t|]|$)", text, re.M) else '"'
    escape = "\\" if f"\\{quote}" in text and quote * 2 not in text.replace(f"\\{quote}", "") else None
    tried = (delimiter,) if delimiter is not None else DELIMITERS
    dialects = [Dialect(each, quote, escape, space=_has_blanks(text, each, quote)) for each in tried]
    best = max(dialects, key=lambda each: _evenness(lines, each))
    return best if _evenness(lines, best) > (0.0, 0) or delimiter is not None else Dialect(",", quote, escape)


def _has_blanks(text: str, delimiter: str, quote: str) -> bool:
    """Whether there are blanks between a delimiter, or an end of the line, and the quote of a cell."""
    blank, mark = _blank(delimiter), re.escape(delimiter)
    before, behind = rf"{blank}+{quote}(?!{quote})", rf"{blank}*{quote}[^{quote}\n]*{quote}{blank}+(?:{mark}|$)"
    return re.search(rf"(?:^|{mark})(?:{before}|{behind})", text, re.M) is not None


def _blank(delimiter: str) -> str:
    """The pattern of a blank that is no delimiter."""
    return "[ ]" if delimiter == "\t" else "[\t]" if delimiter == " " else "[ \t]"


def _evenness(lines: Sequence[str], dialect: Dialect) -> tuple[float, int]:
    """How many of the rows have the most frequent number of fields, and that number; (0, 0) if it is one, or if the
    lines are no rows (bytes that are no text)."""
    try:
        counts = Counter(len(row) for row in rows_of(lines[:ROWS_LOOKED_AT], dialect) if row)
    except ValueError:
        return 0.0, 0
    if not counts:
        return 0.0, 0
    width, rows = max(counts.items(), key=lambda item: (item[1], item[0]))
    return (rows / counts.total(), width) if width > 1 else (0.0, 0)


def is_table(lines: Sequence[str]) -> bool:
    """Whether lines look like a CSV file without its name: two rows or more, nearly all of the same width.

    Sentences can have as many commas each. But a comma in a sentence is followed by a space, and a name of a column
    does not begin with one.
    """
    dialect = dialect_of(lines)
    share, width = _evenness(lines, dialect)
    if len(lines) < 2 or width < 2 or share < 0.95:
        return False
    names = rows_of(lines[:1], msgspec.structs.replace(dialect, space=False))[0]
    return all(_NAME.fullmatch(cell) for cell in names)


def rows_of(lines: Sequence[str], dialect: Dialect) -> list[list[str]]:
    """The rows of the lines."""
    try:
        return [*cells_of((line.replace("\r", " ") for line in lines), dialect)]  # a lone one raises
    except csv.Error as error:
        why, _, _ = str(error).partition(" - do you need")  # the rest is for programmers
        raise ValueError(f"not a CSV row: {why}") from error


def cells_of(lines: Iterable[str], dialect: Dialect) -> Iterator[list[str]]:
    """The cells of each row, by the module csv, which may raise its Error at each row."""
    csv.field_size_limit(_CELL_MAX)  # it is of the whole process, so other code may have set another one
    return csv.reader(
        map(partial(_blanks_beside(dialect).sub, r"\1\2"), lines) if dialect.space else lines,
        delimiter=dialect.delimiter,
        quotechar=dialect.quote,
        escapechar=dialect.escape,
        doublequote=dialect.escape is None,
        strict=False,
        skipinitialspace=dialect.space,
    )


def names_of(cells: Sequence[str]) -> tuple[str, ...]:
    """The names of columns in the first row, without blanks around them. A column without a name is called c2, ….

    Tables often have a column of row numbers without a name.
    """
    return tuple(cell.strip() or f"c{number}" for number, cell in enumerate(cells, start=1))


def looks_like_data(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether the first row is a row of data rather than names: a number in a column of numbers, or no text at all."""
    both = any(_NUMBER.fullmatch(a) and _NUMBER.fullmatch(b) for a, b in zip(first, second, strict=False))
    return both or not any(each.strip() for each in first)


@lru_cache(maxsize=64)
def _blanks_beside(dialect: Dialect) -> re.Pattern[str]:
    """The pattern of a delimiter (group 1), a quoted cell (group 2), and the blanks on both sides of the cell."""
    quote, mark, blank = re.escape(dialect.quote), re.escape(dialect.delimiter), _blank(dialect.delimiter)
    inner = rf"(?:[^{quote}]++|{quote}{quote})*+"
    if dialect.escape is not None:
        inner = rf"(?:[^{quote}{re.escape(dialect.escape)}]++|{re.escape(dialect.escape)}.)*+"
    return re.compile(rf"(^|{mark}){blank}*+(?:({quote}{inner}{quote}){blank}*+(?={mark}|\Z)|(?={quote}))", re.DOTALL)


@lru_cache(maxsize=64)
def closed_row(dialect: Dialect) -> re.Pattern[bytes]:
    """The pattern of the bytes of a row, with or without its line end, in which each quoted field ends.

    A quote inside an unquoted field is text, and so is what follows a quoted field.
    """
    quote, delimiter = (re.escape(each).encode() for each in (dialect.quote, dialect.delimiter))
    inner = rb"(?:[^%b]++|%b%b)*+" % (quote, quote, quote)
    if dialect.escape is not None:
        escape = re.escape(dialect.escape).encode()
        inner = rb"(?:[^%b%b]++|%b.)*+" % (quote, escape, escape)
    blanks = _blank(dialect.delimiter).encode() + b"*+" if dialect.space else b""
    rest = (rb"[^%b]*+" if dialect.delimiter.isascii() else rb"(?:(?!%b).)*") % delimiter
    field = rb"%b(?:%b%b%b|(?!%b))%b" % (blanks, quote, inner, quote, quote, rest)
    return re.compile(rb"%b(?:%b%b)*" % (field, delimiter, field), re.DOTALL)


def is_row_open(line: bytes, dialect: Dialect) -> bool:
    """Whether a quoted field begins in the bytes of a row and does not end in them."""
    return closed_row(dialect).fullmatch(line) is None
