"""Decides from the first batch of an input how to read it: format, dialect, types, time; pure, and says each decision.

`raftlog.cluster.importer.importer` calls it before anything is written: the log is immutable, so a doubt stops the
import here, with the option that settles it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from msgspec.structs import replace

from raftlog.cluster.api.text import counted
from raftlog.cluster.importer.formats import access_log, rows, syslog, times
from raftlog.cluster.importer.formats.dialect import (
    Dialect,
    dialect_of,
    is_binary,
    is_table,
    looks_like_data,
    names_of,
    rows_of,
)
from raftlog.cluster.importer.formats.lines import (
    OBJECTS,
    TABLES,
    InputColumn,
    InputError,
    InputFormat,
    InputOptions,
    Line,
    RejectedLine,
    check_fields,
    detect,
    look_of,
    odd,
    parse,
    read_batch,
    split_lines,
    suffix_of,
)
from raftlog.cluster.importer.formats.schema import beside
from raftlog.cluster.importer.formats.times import TimeRule

ROWS_LOOKED_AT: Final = 1_000
COLUMNS_SHOWN: Final = 12
_EXCEL: Final = re.compile(r"sep=.")
_MARKUP: Final = re.compile(rb"\s*<(?:[!?]|html\b)", re.IGNORECASE)
_TEXT_SUFFIXES: Final = ("txt", "log", "out", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """What the user gave. None or empty: to be decided."""

    format: InputFormat | None = None
    key: str | None = None
    time: str | None = None
    time_format: str | None = None
    time_zone: str | None = None
    time_twice: times.Twice | None = None
    headers: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    delimiter: str | None = None
    header: bool | None = None
    charset: str | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """The beginning of an input: whole lines as bytes, its own columns if it has some, and its age in Unix ms."""

    name: str
    pieces: Sequence[bytes]
    format: InputFormat | None = None
    charset: str = "utf-8"
    compression: str | None = None
    columns: tuple[InputColumn, ...] = ()
    latest_ms: int = 0
    is_found: bool = False  # in a folder or by a pattern: the user has not named it
    has_others: bool = False  # it is one of several files


@dataclass(slots=True)
class InputDecision:
    """How to read the input, and sentences for the user. A type in `types` is empty if its column has no value."""

    reading: InputOptions
    notices: list[str] = field(default_factory=list)
    types: tuple[InputColumn, ...] = ()
    has_rows: bool = True


def decide(sample: Sample, options: ImportOptions) -> InputDecision:
    """Decides everything, or raises InputError with the option that settles the doubt."""
    _check_text(sample, options)
    format, why = _format(sample, options)
    columns: tuple[str, ...] = ()
    dialect = Dialect()
    notes = [f"format {format.value} ({why})"]
    if sample.compression:
        notes.append(f"compression {sample.compression}")
    _check_line_ends(sample, format)
    if format in TABLES:
        try:
            dialect, columns = _table(sample, options, format)
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{sample.name}: {error}; any text can be read with --format lines") from error
        shown = {"\t": "tab"}.get(dialect.delimiter, repr(dialect.delimiter))
        named = "named by the first line" if dialect.header else "named by --columns"
        notes.append(f"delimiter {shown}, {counted(len(columns), 'column')} {named}")
    elif options.columns or options.delimiter or options.header is not None:
        raise InputError(f"--columns, --delimiter and --header are of CSV; {sample.name} is read as {format.value}")
    if format not in (InputFormat.PARQUET, InputFormat.ARROW):
        notes.append(f"charset {sample.charset}")
    reading = InputOptions(
        format, options.key, options.time, columns, dialect, options.headers, options.select, charset=sample.charset
    )
    try:
        check_fields(reading)
    except InputError as error:
        raise InputError(f"{sample.name}: {error}") from error
    reading = replace(reading, names=_names(sample, reading))
    lines = first_lines(sample, reading)
    parsed = [*zip(lines, parse([line.data for line in lines], reading), strict=True)]
    good = [(line, row) for line, row in parsed if line.data.strip() and not isinstance(row, ValueError)]
    found = sample.columns or _types(reading, [row for _, row in good])
    types = tuple(InputColumn(column.name, column.type or "string") for column in found)
    if format is InputFormat.NDJSON and options.format is None and parsed:
        faults = [str(row) for _, row in parsed if isinstance(row, ValueError)]
        if len(faults) == len(parsed) and "not a JSON object" not in faults:
            raise InputError(
                f"{sample.name}: no line of the first {len(parsed)} is JSON: line 1: {faults[0]}; "
                f"give another --format, or --format ndjson to keep the lines as they are"
            )
    if format in OBJECTS:
        _check_names(sample, reading, [row for _, row in good], types)
    decided = InputDecision(replace(reading, types=types), types=found, has_rows=bool(parsed))
    decided.notices.append(f"{sample.name}: {', '.join(notes)}")
    if types:
        shown = ", ".join(f"{column.name} {column.type}" for column in types[:COLUMNS_SHOWN])
        more = f", and {len(types) - COLUMNS_SHOWN} more" if len(types) > COLUMNS_SHOWN else ""
        decided.notices.append(f"columns: {shown}{more}")
    own = [column.name for column in types] or (syslog.FIELDS if format is InputFormat.SYSLOG else ())
    decided.notices += _renamed(options.select or own)
    decided.notices += _odd_rows(reading, parsed)
    if parsed or not sample.has_others:
        _decide_time(sample, options, good, decided)
    return decided


def _renamed(names: Sequence[str]) -> list[str]:
    """A sentence about the columns that have another name where they are asked for."""
    changed = [f"{name} is {new}" for name, new in zip(names, beside(names), strict=True) if name != new]
    more = f", and {len(changed) - COLUMNS_SHOWN} more" if len(changed) > COLUMNS_SHOWN else ""
    sentence = f"in SQL and Spark {', '.join(changed[:COLUMNS_SHOWN])}{more}: the log has columns of these names"
    return [sentence] if changed else []


def _check_text(sample: Sample, options: ImportOptions) -> None:
    """Raises InputError for bytes that are no text, if the user did not name this file and its format."""
    is_asked_for = options.format is not None and not sample.is_found
    if is_asked_for or sample.format in (InputFormat.PARQUET, InputFormat.ARROW):
        return
    if is_binary(b"".join(sample.pieces), sample.charset):
        raise InputError(
            f"{sample.name} is not text; give --format arrow if it is a stream of Arrow; --format lines keeps any "
            f"bytes, a record a line{', of a file that you name by itself' if sample.is_found else ''}"
        )


def _check_line_ends(sample: Sample, format: InputFormat) -> None:
    """Raises InputError for a file of one line with carriage returns in it."""
    if format is not InputFormat.LINES and len(sample.pieces) == 1 and b"\r" in sample.pieces[0].rstrip(b"\r\n"):
        raise InputError(
            f"{sample.name}: its lines end with a carriage return alone; correct it: "
            f"tr '\\r' '\\n' < {shlex.quote(sample.name)} | raftlog import - --format {format.value}"
        )


def _odd_rows(reading: InputOptions, parsed: Sequence[tuple[Line, Any]]) -> list[str]:
    """Sentences about lines that will be rejected, and about those that have a record without being like the others.
    `--strict` stops at both."""
    stored: list[tuple[int, str]] = []
    rejected: list[tuple[int, str]] = []
    for (line, row), found in zip(parsed, read_batch([line for line, _ in parsed], reading), strict=True):
        if not line.data.strip():
            continue
        if isinstance(found, RejectedLine):
            rejected.append((line.number, found.reason))
        elif (fault := odd(row, reading)) is not None:
            stored.append((line.number, fault))
    return [
        f"{counted(len(each), 'line')} of the first {len(parsed):,} {what}: line {each[0][0]}: {each[0][1]}; "
        f"--strict stops there"
        for each, what in (
            (rejected, "will be rejected"),
            (stored, "will be stored unchanged, unlike the others"),
        )
        if each
    ]


def first_lines(sample: Sample, reading: InputOptions) -> list[Line]:
    """The first lines of data, without the line that names the columns."""
    lines = split_lines(sample.pieces, reading)
    if reading.format in TABLES and reading.dialect.header:
        next(lines, None)
    return [line for line in islice(lines, ROWS_LOOKED_AT) if line.raw]


def _names(sample: Sample, reading: InputOptions) -> tuple[str, ...]:
    """The names in the first line, parsed as those of further files are; none if it is no line of names."""
    if reading.format not in TABLES or not reading.dialect.header:
        return ()
    first = [line.data for line in islice(split_lines(sample.pieces, reading), 1)]
    found = next(parse(first, reading), ValueError())
    return () if isinstance(found, ValueError) else names_of(found)


def _format(sample: Sample, options: ImportOptions) -> tuple[InputFormat, str]:
    """The format, and the reason for it."""
    if options.format is not None:
        return options.format, "as given"
    if sample.format is not None:
        return sample.format, "by its first bytes"
    first = next((piece for piece in sample.pieces if piece.strip()), b"")
    if _MARKUP.match(first):
        raise InputError(f"{sample.name} is HTML or XML; convert it, or give --format lines to keep each line")
    try:
        return detect(sample.name, first), "by its name and first line"
    except InputError:
        if options.columns or options.delimiter:
            return InputFormat.CSV, "because its columns are given"
        texts = [piece.decode("utf-8", "replace").rstrip("\r\n") for piece in sample.pieces[:200] if piece.strip()]
        if is_table(texts):
            return InputFormat.CSV, "every line has as many fields"
        if suffix_of(sample.name) in _TEXT_SUFFIXES:
            return InputFormat.LINES, "text in no known format"
        raise


def _table(sample: Sample, options: ImportOptions, format: InputFormat) -> tuple[Dialect, tuple[str, ...]]:
    """The dialect and the names of the columns. Raises InputError where the first line may be data."""
    texts = [piece.decode("utf-8", "replace").rstrip("\r\n") for piece in sample.pieces[:200]]
    if texts:
        texts[0] = texts[0].removeprefix("\ufeff")
    given = {"tab": "\t", "\\t": "\t"}.get(options.delimiter or "", options.delimiter)
    if given is not None and (len(given) != 1 or given in '"\r\n'):
        raise InputError(f"--delimiter {given!r}: give one character, or tab")
    if texts and not texts[0].strip() and options.header is None and not options.columns:
        raise InputError(
            f"{sample.name}: line 1 is blank; cut it: tail -n +2 {shlex.quote(sample.name)} | raftlog import - "
            f"--format {format.value}"
        )
    dialect = dialect_of(texts, given or ("\t" if format is InputFormat.TSV else None))
    table = rows_of(texts, dialect)
    first = table[0] if table else []
    if options.columns:
        if len({*options.columns}) < len(options.columns):
            raise InputError(f"--columns {','.join(options.columns)}: give each name once")
        return replace(dialect, header=bool(options.header)), options.columns
    second = next((row for row in table[1:] if row), [])
    if options.header is False:
        names = tuple(f"c{number}" for number in range(1, len(first) + 1))
        return replace(dialect, header=False), names
    if options.header is None and looks_like_data(first, second):
        raise InputError(
            f"{sample.name}: line 1 looks like data, not like names of columns: {texts[0][:80]!r}; give --columns "
            f"NAME,…, or --no-header to name them c1, c2, …, or --header if these are the names"
        )
    names = names_of(first)
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(
            f"{sample.name}: line 1 names the column {doubled[0]!r} twice; give --columns NAME,… --header to "
            f"name the columns otherwise"
        )
    if options.header is None:
        _check_first_line(sample, texts[0], len(names), [len(row) for row in table[1:] if row])
    return dialect, names


def _check_first_line(sample: Sample, text: str, width: int, widths: Sequence[int]) -> None:
    """Raises InputError for a first line that is no row of names: a title, a comment, or Excel's `sep=;`."""
    usual = max({*widths}, key=widths.count, default=width)
    most = f"{widths.count(usual)} of the next {counted(len(widths), 'row')}"
    why = f"has {counted(width, 'cell')}, but {most} have {usual}"
    if _EXCEL.fullmatch(text):
        why = "is a note for Excel"
    elif usual == width or 2 * widths.count(usual) <= len(widths):
        return
    raise InputError(
        f"{sample.name}: line 1 {why}: {text[:80]!r}; give --header if it has the names of the columns, or cut the "
        f"lines above the names: tail -n +2 {shlex.quote(sample.name)} | raftlog import - --format csv"
    )


def _types(reading: InputOptions, found: Sequence[Any]) -> tuple[InputColumn, ...]:
    """The fields of the rows with the type that holds every value; empty where there is no value."""
    if reading.format in TABLES:
        columns: dict[str, list[str]] = {name: [] for name in reading.columns}
        for row in found:
            for name, cell in zip(reading.columns, row, strict=False):
                columns[name].append(cell)
        delimiter = reading.dialect.delimiter
        return tuple(
            InputColumn(name, rows.type_of_cells(cells, delimiter) if any(cells) else "")
            for name, cells in columns.items()
        )
    if reading.format not in OBJECTS:
        return ()
    columns = {}
    for row in found:
        for name, value in row.items():
            kinds = columns.setdefault(name, [])
            if (kind := rows.type_of(value)) is not None:
                kinds.append(kind)
    return tuple(InputColumn(name, rows.common_type(kinds) if kinds else "") for name, kinds in columns.items())


def _check_names(sample: Sample, reading: InputOptions, found: Sequence[Any], types: Sequence[InputColumn]) -> None:
    """Raises InputError for a field that no row of the first batch has, and for a key that is an object in all."""
    named = [("--key", reading.key), ("--time", reading.time)]
    named += [("--headers", name) for name in reading.headers] + [("--select", name) for name in reading.select]
    for what, name in named if found else ():
        values = [value for row in found if (value := rows.look_in_object(row, name or "")) is not None]
        fault = rows.key_fault(name, values) if what == "--key" and name and values else ""
        if name and not values:
            has = ", ".join(column.name for column in types) or "no field"
            fault = f"no row of the first {len(found)} has this field; they have {has}"
        if fault:
            raise InputError(f"{sample.name}: {what} {name}: {fault}")


def _decide_time(
    sample: Sample, options: ImportOptions, good: Sequence[tuple[Line, Any]], decided: InputDecision
) -> None:
    """Decides how times are read. Raises InputError if no time of the first batch can be read."""
    reading, zone = decided.reading, "UTC" if options.time_zone is None else options.time_zone
    times.zone_of(zone)
    name = "time" if reading.format is InputFormat.SYSLOG else reading.time
    if reading.format is InputFormat.ACCESS:
        decided.notices.append("time: that of each access, with its own zone")
        decided.notices += _doubts(TimeRule(access_log.TIME), [(line, access_log.time_of(row)) for line, row in good])
        return
    if name is None:
        if (options.time_format, options.time_zone, options.time_twice) != (None, None, None):
            raise InputError(
                "--time-format, --time-zone and --time-twice are of a time field: name it with --time FIELD"
            )
        decided.notices.append(f"no time field: the records have only the log's time{_hint(reading, good)}")
        return
    look = look_of(reading)
    found = [(line, look(row, name)) for line, row in good]
    values = [value for _, value in found if value is not None and value != ""]
    form = options.time_format
    decision = times.recognise(values if form is None else (), sample.latest_ms or None)
    if form is None and not decision.forms and reading.format is InputFormat.SYSLOG:
        form = times.SYSLOG_3164
    if form is not None:
        read = times.reader(_rule(form, "UTC", sample, options))  # in UTC every time occurs
        count = sum(read(value) is not None for value in values)
        decision = times.Decision((form,) if count else (), count, len(values))
    if not found and not decided.has_rows:
        raise InputError(f"{sample.name} has no line to import beyond its first")
    if not found:
        raise InputError(f"{sample.name}: none of the first lines is {reading.format.value}; give another --format")
    if not decision.forms:
        raise InputError(_unreadable(sample, name, found, options))
    if len(decision.forms) > 1:
        line, value = next((line, value) for line, value in found if value not in (None, ""))
        choices = " or ".join(f"--time-format '{form}'" for form in decision.forms)
        if decision.read < decision.of:
            raise InputError(
                f"{sample.name}: the times in {name} have several forms, as line {line.number}: {_shown(value)}; no "
                f"form reads more than {decision.read} of the first {decision.of}; give {choices}; others have no time "
                f"then"
            )
        raise InputError(
            f"{sample.name}: line {line.number}: {name} {_shown(value)} can be read in {len(decision.forms)} ways; "
            f"give {choices}"
        )
    rule = _rule(decision.forms[0], zone, sample, options)
    decided.reading = replace(reading, times=rule)
    if rule.form in times.UNITS:
        meaning = {"s": "Unix seconds", "ms": "Unix milliseconds", "us": "Unix microseconds", "ns": "Unix nanoseconds"}
        form = meaning[rule.form]
    else:
        form = ("ISO 8601" if rule.form == times.ISO else f"'{rule.form}'") + f", values without a zone: {zone}"
    if rule.form == times.SYSLOG_3164:
        form += ", without a year: the newest in which it is not after the file's last write"
    having = [value for value in values if times.reader(rule)(value) is not None]
    example = f", as {_shown(having[0])}" if having else ""
    decided.notices.append(f"time: {name}, {form}; rows with one: {len(having):,} of the first {len(found):,}{example}")
    decided.notices += _doubts(rule, found)


def _doubts(rule: TimeRule, found: Sequence[tuple[Line, Any]]) -> list[str]:
    """Sentences about leap seconds, and about local times that occur twice or never."""
    lines: dict[str, list[Line]] = {}
    for line, value in found:
        if value not in (None, "") and (why := times.doubt(rule, value)) is not None:
            lines.setdefault(why, []).append(line)
    meanings = {
        times.TWICE: f"{'the import stops there' if rule.twice == 'stop' else f'the {rule.twice} one counts'} "
        f"(--time-twice earlier, later or stop); --strict stops there",
        times.NEVER: "clocks were put forward over it, so the record has no time; --strict stops there",
        times.LEAP: "the next second counts",
    }
    return [
        f"{counted(len(lines[why]), 'row')} of the first {len(found):,} with a time that {why} in zone {rule.zone}, "
        f"as line {lines[why][0].number}: {what}"
        for why, what in meanings.items()
        if why in lines
    ]


def _rule(form: str, zone: str, sample: Sample, options: ImportOptions) -> TimeRule:
    has_year = form == times.ISO or form in times.UNITS or "%Y" in form or "%y" in form
    return TimeRule(form, zone, None if has_year else sample.latest_ms, options.time_twice or "earlier")


def _unreadable(sample: Sample, name: str, found: Sequence[tuple[Line, Any]], options: ImportOptions) -> str:
    for line, value in found:
        if value is not None and value != "":
            if times.is_before_1970(value):
                return (
                    f"{sample.name}: line {line.number}: {name} {_shown(value)} is before 1970, and the log keeps no "
                    f"such times; leave out --time: the value has it all the same"
                )
            others = [other for _, other in found if other not in (None, "")]
            forms = times.suggest(value, others, sample.latest_ms or None)
            mend = "give --time-format with its form, as '%d.%m.%Y %H:%M', or leave out --time"
            if forms:
                mend = f"give --time-format {' or '.join(map(shlex.quote, forms))}"
            given = f" of the form {options.time_format!r}" if options.time_format is not None else ""
            return f"{sample.name}: line {line.number}: {name} {_shown(value)} is not a time{given}; {mend}"
    return f"{sample.name}: no row of the first {len(found)} has a value in {name}; name another field with --time"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…'"


def _hint(reading: InputOptions, good: Sequence[tuple[Line, Any]]) -> str:
    """The fields whose values look like times, as a hint for --time."""
    look = look_of(reading)
    likely = []
    for column in reading.types:
        if column.type not in ("string", "integer", "number") and not column.type.startswith(("timestamp", "date")):
            continue
        values = [value for _, row in good[:20] if (value := look(row, column.name)) not in (None, "")]
        if values and times.recognise(values).read == len(values):
            likely.append(column.name)
    return f"; {' and '.join(likely[:3])} may be one (--time {likely[0]})" if likely else ""
