"""Defines the commands `raftlog analyze NAME`: windows and joins of an export or a running cluster, with Spark."""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from raftlog.cluster.cli.frame.common import OutputOption
from raftlog.cluster.cli.frame.option_groups import spread
from raftlog.spark_export.commands.frame import Endpoints, Master, Timeout, reported, say, say_stale, start_spark, where
from raftlog.spark_export.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from raftlog.spark_export.tables.report import Result

SESSION_GAP: Final = "30 minutes"
_UNITS: Final = {"s": "second", "m": "minute", "h": "hour", "d": "day"}


def _interval(text: str) -> str:
    """`90s`, `5m`, `1h`, `1d` as Spark writes them."""
    found = re.fullmatch(r"(\d+) ?([smhd])", text.strip())
    if found is None or int(found[1]) == 0:
        raise typer.BadParameter(f"{text!r} is no length of time: write 90s, 5m, 1h or 1d")
    number = int(found[1])
    return f"{number} {_UNITS[found[2]]}" + ("" if number == 1 else "s")


def _operations(text: str) -> str:
    """Names of operations, without spaces."""
    from raftlog.spark_export.columns.schema import USER_OPERATIONS

    named = [name.strip() for name in text.split(",")]
    if unknown := [name for name in named if name not in USER_OPERATIONS]:
        raise typer.BadParameter(f"there is no {unknown[0]!r}; there are {', '.join(USER_OPERATIONS)}")
    return ",".join(named)


def _page(file: Path | None) -> Path | None:
    """A file that can be written, as is known before the work begins."""
    if file is not None and not os.access(file if file.exists() else file.parent, os.W_OK):
        missing = "" if file.parent.is_dir() else f": there is no folder {file.parent}"
        raise typer.BadParameter(f"{file} cannot be written{missing}")
    return file


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Which log is asked, and how the answer is shown."""

    folder: Annotated[
        str | None,
        typer.Argument(
            help="The folder of a finished export, or s3://BUCKET/PREFIX; without it a running cluster.",
            metavar="[DIR]",
        ),
    ] = None
    endpoints: Endpoints = None
    master: Master = None
    timeout: Timeout = 30.0
    limit: Annotated[int, typer.Option("--limit", min=0, help="At most so many rows; 0: all.")] = 50
    output: OutputOption = None
    html: Annotated[
        Path | None,
        typer.Option("--html", callback=_page, dir_okay=False, help="Write a page with plots to this file instead."),
    ] = None


class ValueForm(StrEnum):
    """How values are written."""

    RAW = "raw"
    JSON = "json"
    CSV = "csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnOptions:
    """Which records, and where the columns of a question are."""

    value: Annotated[
        ValueForm | None,
        typer.Option(
            "--value",
            help="How values are written, to take columns out of them. (default: as an import stored it, where a "
            "column of values is asked for)",
        ),
    ] = None
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema", metavar="COLUMNS", help="With --value: the columns, as 'Station STRING, Level DOUBLE'."
        ),
    ] = None
    time: Annotated[
        str | None,
        typer.Option("--time", metavar="COLUMN", help="The column of the events' time. (default: event_time)"),
    ] = None
    time_format: Annotated[
        str | None,
        typer.Option("--time-format", help="iso, s, ms, us, ns, or as '%d.%m.%Y %H:%M:%S.%f'. (default: iso)"),
    ] = None
    key: Annotated[
        str | None, typer.Option("--key", metavar="COLUMN", help="The column that is the events' key. (default: key)")
    ] = None
    source: Annotated[
        str | None,
        typer.Option(
            "--source", metavar="NAME", help="The import that has the columns: its file. (default: the newest)"
        ),
    ] = None
    operations: Annotated[
        str | None,
        typer.Option(
            "--operations",
            parser=_operations,
            metavar="NAMES",
            help="Only these, with commas: append, put, delete, delete_range, txn.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """Which windows, and the number that is summed up in each."""

    window: Annotated[
        str, typer.Option("--window", parser=_interval, metavar="TIME", help="Length of a window: 10s, 5m, 1h, 1d.")
    ] = "1h"
    slide: Annotated[
        str | None, typer.Option("--slide", parser=_interval, metavar="TIME", help="A window begins every so often.")
    ] = None
    gap: Annotated[
        str | None,
        typer.Option(
            "--gap", parser=_interval, metavar="TIME", help="Windows that end after so long without a record."
        ),
    ] = None
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            help="Split by this column: key; one of your own (a.b goes inside JSON); of an access log host, path, …",
        ),
    ] = None
    measure: Annotated[
        str,
        typer.Option("--measure", help="The number that is summed up: bytes; one of your own; of an access log sent."),
    ] = "bytes"


Within = Annotated[str, typer.Option("--within", parser=_interval, metavar="TIME", help="How soon: 30s, 5m.")]


def register(app: typer.Typer) -> None:
    """Adds the commands to the command line."""
    analyze = typer.Typer(
        no_args_is_help=True, help="Windows and joins of an export, or a running cluster, with Spark."
    )
    for name, command in (("windows", windows_command), ("joins", joins_command), ("report", report_command)):
        analyze.command(name)(spread(command))
    app.add_typer(analyze, name="analyze")


def windows_command(context: typer.Context, asked: LogOptions, columns: ColumnOptions, windows: WindowOptions) -> None:
    """Records, sums and percentiles, per window of the records' own time."""
    _run(context, asked, columns, lambda named, log, own: [_windows(named, log, asked.limit, own, windows)])


def joins_command(
    context: typer.Context,
    left: Annotated[str, typer.Option("--left", help="Values that match this regular expression come first.")],
    right: Annotated[str, typer.Option("--right", help="Values that match this one follow.")],
    asked: LogOptions,
    columns: ColumnOptions,
    within: Within = "1m",
    of: Annotated[str, typer.Option("--of", metavar="COLUMN", help="The column that is matched.")] = "value",
) -> None:
    """Records that match one pattern, each with those of the same key soon after it that match another."""
    _run(
        context,
        asked,
        columns,
        lambda named, log, own: [named.joins(log, asked.limit, own, left, right, within, of)],
    )


def report_command(context: typer.Context, asked: LogOptions, columns: ColumnOptions, windows: WindowOptions) -> None:
    """Windows, the most frequent keys, and sessions, on one page with --html.

    Where the columns are of an import, or with --source, every section is of that import alone.
    """

    def answer(named: Any, log: "DataFrame", own: Any) -> "list[Result]":
        from raftlog.spark_export.analytics.own import resolved

        own, notes = resolved(log, own, windows.by, windows.measure)
        sections = [
            _windows(named, log, asked.limit, own, replace(windows, gap=None)),
            named.top_keys(log, 20, own),
            named.sessions(log, 20, own, windows.gap or SESSION_GAP),
        ]
        sections[0] = replace(sections[0], notes=[*notes, *sections[0].notes])
        return sections

    _run(context, asked, columns, answer)


def _windows(named: Any, log: "DataFrame", limit: int, own: Any, windows: WindowOptions) -> "Result":
    size = None if windows.gap else windows.window
    found: Result = named.windows(log, limit, own, size, windows.slide, windows.gap, windows.by, windows.measure)
    return found


def _run(
    context: typer.Context,
    asked: LogOptions,
    columns: ColumnOptions,
    answer: "Callable[[Any, DataFrame, Any], list[Result]]",
) -> None:
    """Reads the log, asks, and shows the answer as it is wanted. `answer` is given the module `analyses`, which imports
    Spark, the rows, and where their columns are."""
    with reported(asked.output):
        from raftlog.spark_export.analytics import analyses
        from raftlog.spark_export.analytics.own import OwnColumns
        from raftlog.spark_export.tables import report

        log, facts = _log(context, asked, columns.source)
        say("asking")
        try:
            results = answer(analyses, log, OwnColumns(*astuple(columns)))
        except ValueError as error:
            raise UsageError(str(error)) from error
        if asked.html is not None:
            try:
                asked.html.write_text(report.page("raftlog: what the log says", facts, results), encoding="utf-8")
            except OSError as error:
                raise UsageError(f"{asked.html} cannot be written: {error.strerror}") from error
            print(f"wrote {asked.html}")
            return
        for result in results:
            report.show_result(result, asked.output)


def _log(context: typer.Context, asked: LogOptions, source: str | None) -> "tuple[DataFrame, list[tuple[str, str]]]":
    """The users' rows, and the facts about them. Spark starts once they and the import `source` are found,
    because that takes ten seconds."""
    if asked.folder is not None:
        from raftlog.spark_export.export.manifest import read_manifest
        from raftlog.spark_export.export.place import place_of
        from raftlog.spark_export.export.spark_engine import open_log

        export = place_of(asked.folder)
        manifest = read_manifest(export)
        facts = [
            ("export", asked.folder),
            ("log", manifest.log),
            ("indexes", f"{manifest.first} to {manifest.last}"),
        ]
        return open_log(start_spark(asked.master), export), facts
    from raftlog.spark_export.fetch import imports
    from raftlog.spark_export.fetch.door import RefusedError, bounds_now, parse_endpoints
    from raftlog.spark_export.tables.value_schema import of_stored

    urls = parse_endpoints(where(context, asked.endpoints))
    page, is_stale = bounds_now(urls, patience_s=asked.timeout)
    if is_stale:
        say_stale(page.index)
    if source is not None:
        with suppress(RefusedError):  # a user may read the records of an import, and not its key
            of_stored(imports.records(urls, asked.timeout, is_linearizable=not is_stale)).named(source)
    options = {
        "endpoints": ",".join(urls),
        "startingOffsets": "earliest",
        "endingOffsets": "latest" if is_stale else str(page.index + 1),
        "log": page.log,
        "timeoutSeconds": str(max(1, round(asked.timeout))),
    }
    known = ", of one node: there was no leader" if is_stale else ""
    facts = [("cluster", ", ".join(urls)), ("log", page.log), ("indexes", f"{page.oldest} to {page.index}{known}")]
    spark = start_spark(asked.master)
    # Kept, because an answer looks at the rows more than once; what memory does not hold goes to Spark's own disk.
    return spark.read.format("raftlog").options(**options).load().persist(), facts
