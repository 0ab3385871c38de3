"""Defines the commands `raftlog analyze NAME`: questions about an export or a running cluster, answered with Spark."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from raftlog.cluster.cli.frame.common import OutputOption
from raftlog.cluster.cli.frame.output import Format
from raftlog.spark_export.commands.frame import Endpoints, Master, Timeout, reported, say, say_stale, start_spark, where
from raftlog.spark_export.errors import ExportError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from raftlog.spark_export.tables.report import Result

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


Folder = Annotated[
    Path | None, typer.Argument(help="The folder of a finished export; without it a running cluster.", metavar="[DIR]")
]
Limit = Annotated[int, typer.Option("--limit", min=0, help="At most so many rows; 0: all.")]
Operations = Annotated[
    str | None,
    typer.Option(
        "--operations",
        parser=_operations,
        metavar="NAMES",
        help="Only these, with commas: append, put, delete, delete_range, txn.",
    ),
]
Html = Annotated[
    Path | None,
    typer.Option("--html", callback=_page, dir_okay=False, help="Write a page with plots to this file instead."),
]
Window = Annotated[
    str, typer.Option("--window", parser=_interval, metavar="TIME", help="Length of a window: 10s, 5m, 1h, 1d.")
]
Gap = Annotated[
    str, typer.Option("--gap", parser=_interval, metavar="TIME", help="A session ends after so long without a record.")
]
Slide = Annotated[
    str | None, typer.Option("--slide", parser=_interval, metavar="TIME", help="A window begins every so often.")
]
WindowGap = Annotated[
    str | None,
    typer.Option("--gap", parser=_interval, metavar="TIME", help="Windows that end after so long without a record."),
]
By = Annotated[
    str | None,
    typer.Option(
        "--by", help="Split by this column: key; one of your own (a.b goes inside JSON); of an access log host, path, …"
    ),
]
Measure = Annotated[
    str, typer.Option("--measure", help="The number that is summed up: bytes; one of your own; of an access log sent.")
]


class ValueForm(StrEnum):
    """How values are written."""

    RAW = "raw"
    JSON = "json"
    CSV = "csv"


Value = Annotated[
    ValueForm | None,
    typer.Option(
        "--value",
        help="How values are written, to take columns out of them. (default: as an import stored it, where a column of "
        "values is asked for)",
    ),
]
Schema = Annotated[
    str | None,
    typer.Option("--schema", metavar="COLUMNS", help="With --value: the columns, as 'Station STRING, Level DOUBLE'."),
]
Time = Annotated[
    str | None, typer.Option("--time", metavar="COLUMN", help="The column of the events' time. (default: event_time)")
]
TimeFormat = Annotated[
    str | None, typer.Option("--time-format", help="iso, s, ms, us, ns, or as '%d.%m.%Y %H:%M:%S.%f'. (default: iso)")
]
Key = Annotated[
    str | None, typer.Option("--key", metavar="COLUMN", help="The column that is the events' key. (default: key)")
]
Source = Annotated[
    str | None,
    typer.Option("--source", metavar="NAME", help="The import that has the columns: its file. (default: the newest)"),
]
Within = Annotated[str, typer.Option("--within", parser=_interval, metavar="TIME", help="How soon: 30s, 5m.")]


def register(app: typer.Typer) -> None:
    """Adds the commands to the command line."""
    analyze = typer.Typer(
        no_args_is_help=True, help="Answers questions about an export, or a running cluster, with Spark."
    )
    for name, command in (
        ("rates", rates_command), ("sliding", sliding_command), ("latest", latest_command),
        ("top-keys", top_keys_command), ("sessions", sessions_command),
        ("join", join_command), ("enrich", enrich_command), ("view", view_command), ("state", state_command),
        ("changes", changes_command), ("terms", terms_command), ("audit", audit_command), ("report", report_command),
    ):  # fmt: skip
        analyze.command(name)(command)
    app.add_typer(analyze, name="analyze")


@dataclass(frozen=True, slots=True)
class _Asked:
    """What all commands have in common."""

    context: typer.Context
    folder: Path | None
    endpoints: str | None
    master: str | None
    timeout: float
    output: Format | None = None
    html: Path | None = None


def rates_command(
    context: typer.Context, folder: Folder = None, endpoints: Endpoints = None, master: Master = None,
    timeout: Timeout = 30.0, limit: Limit = 50, output: OutputOption = None, html: Html = None,
    window: Window = "1h", slide: Slide = None, gap: WindowGap = None, by: By = None, measure: Measure = "bytes",
    operations: Operations = None,
    value: Value = None, schema: Schema = None, time: Time = None, time_format: TimeFormat = None, key: Key = None,
    source: Source = None,
) -> None:  # fmt: skip
    """Records per second and percentiles, per window of the records' own time."""
    _run(
        _Asked(context, folder, endpoints, master, timeout, output, html),
        lambda named, log: named.rates(
            log,
            limit,
            named.Own(value, schema, time, time_format, key, source, operations),
            None if gap else window,
            slide,
            gap,
            by,
            measure,
        ),
    )


def sliding_command(
    context: typer.Context, folder: Folder = None, endpoints: Endpoints = None, master: Master = None,
    timeout: Timeout = 30.0, limit: Limit = 50, output: OutputOption = None, html: Html = None,
    window: Window = "1h", by: By = None, measure: Measure = "bytes", operations: Operations = None,
    value: Value = None, schema: Schema = None, time: Time = None, time_format: TimeFormat = None, key: Key = None,
    source: Source = None,
) -> None:  # fmt: skip
    """Sums of the time before each record: a window that slides from record to record."""
    _run(
        _Asked(context, folder, endpoints, master, timeout, output, html),
        lambda named, log: named.sliding(
            log, limit, named.Own(value, schema, time, time_format, key, source, operations), window, by, measure
        ),
    )


def latest_command(
    context: typer.Context, folder: Folder = None, endpoints: Endpoints = None, master: Master = None,
    timeout: Timeout = 30.0, limit: Limit = 50, output: OutputOption = None, html: Html = None,
    by: Annotated[str, typer.Option("--by", help="One row for each value of this column.")] = "key",
    at: Annotated[int | None, typer.Option("--at", min=1, help="As of this index. [default: the last one]")] = None,
    measure: Annotated[str | None, typer.Option("--measure", help="The number that is drawn.")] = None,
    operations: Operations = None,
    value: Value = None, schema: Schema = None, time: Time = None, time_format: TimeFormat = None, key: Key = None,
    source: Source = None,
) -> None:  # fmt: skip
    """The newest record of each key, or of each value of a column, as of any index."""
    _run(
        _Asked(context, folder, endpoints, master, timeout, output, html),
        lambda named, log: named.latest(
            log, limit, named.Own(value, schema, time, time_format, key, source, operations), by, at, measure
        ),
    )


def top_keys_command(
    context: typer.Context, folder: Folder = None, endpoints: Endpoints = None, master: Master = None,
    timeout: Timeout = 30.0, limit: Limit = 10, output: OutputOption = None, html: Html = None,
    operations: Operations = None,
) -> None:  # fmt: skip
    """The keys with the most user records."""
    _run(
        _Asked(context, folder, endpoints, master, timeout, output, html),
        lambda named, log: named.top_keys(log, limit, named.Own(operations=operations)),
    )


def sessions_command(
    context: typer.Context, folder: Folder = None, endpoints: Endpoints = None, master: Master = None,
    timeout: Timeout = 30.0, limit: Limit = 50, output: OutputOption = None, html: Html = None, gap: Gap = "30m",
    operations: Operations = None,
    value: Value = None, schema: Schema = None, time: Time = None, time_format: TimeFormat = None, key: Key = None,
    source: Source = None,
) -> None:  # fmt: skip
    """Sessions: records of one key that follow each other closely, the largest first."""
    _run(
        _Asked(context, folder, endpoints, master, timeout, output, html),
        lambda named, log: named.sessions(
            log, limit, named.Own(value, schema, time, time_format, key, source, operations), gap
        ),
    )


def join_command(
    context: typer.Context,
    left: Annotated[str, typer.Option("--left", help="Values that match this regular expression come first.")],
    right: Annotated[str, typer.Option("--right", help="Values that match this one follow.")],
    folder: Folder = None, endpoints: Endpoints = None, master: Master = None, timeout: Timeout = 30.0,
    limit: Limit = 50, output: OutputOption = None, html: Html = None,
    within: Within = "1m", operations: Operations = None,
    of: Annotated[str, typer.Option("--of", metavar="COLUMN", help="The column that is matched.")] = "value",
    value: Value = None, schema: Schema = None, time: Time = None, time_format: TimeFormat = None, key: Key = None,
    source: Source = None,
) -> None:  # fmt: skip
    """Pairs of records of one key, one soon after the other."""
    _run(
        _Asked(context, folder, endpoints, master, timeout, output, html),
        lambda named, log: named.join(
            log,
            limit,
            named.Own(value, schema, time, time_format, key, source, operations),
            left,
            right,
            within,
            of,
        ),
    )


def enrich_command(
    context: typer.Context, folder: Folder = None, endpoints: Endpoints = None, master: Master = None,
    timeout: Timeout = 30.0, limit: Limit = 50, output: OutputOption = None, html: Html = None,
    prefix: Annotated[str, typer.Option("--prefix", help="The table's keys are this and a record's key.")] = "",
) -> None:  # fmt: skip
    """Appended records, each with the key-value store's row of its key."""
    _run(
        _Asked(context, folder, endpoints, master, timeout, output, html),
        lambda named, log: named.enrich(log, limit, prefix),
    )


def view_command(
    context: typer.Context,
    left: Annotated[str, typer.Option("--left", help="Prefix of the keys of one table.")],
    right: Annotated[str, typer.Option("--right", help="Prefix of the other's.")],
    folder: Folder = None, endpoints: Endpoints = None, master: Master = None, timeout: Timeout = 30.0,
    limit: Limit = 50, output: OutputOption = None, html: Html = None,
    how: Annotated[str, typer.Option("--how", help="inner, left or full.")] = "inner",
) -> None:  # fmt: skip
    """Two tables of the key-value store, joined by what follows their prefixes."""
    _run(
        _Asked(context, folder, endpoints, master, timeout, output, html),
        lambda named, log: named.view(log, limit, left, right, how),
    )


def state_command(
    context: typer.Context, folder: Folder = None, endpoints: Endpoints = None, master: Master = None,
    timeout: Timeout = 30.0, limit: Limit = 50, output: OutputOption = None, html: Html = None,
    at: Annotated[int | None, typer.Option("--at", min=1, help="After this index. [default: the last one]")] = None,
    value: Value = None, schema: Schema = None,
) -> None:  # fmt: skip
    """The key-value store as of any index, folded from the log."""
    _run(
        _Asked(context, folder, endpoints, master, timeout, output, html),
        lambda named, log: named.state(log, limit, named.Own(value, schema), at),
        is_state=True,
    )


def changes_command(
    context: typer.Context, folder: Folder = None, endpoints: Endpoints = None, master: Master = None,
    timeout: Timeout = 30.0, limit: Limit = 50, output: OutputOption = None, html: Html = None,
) -> None:  # fmt: skip
    """Every change of a key, with the value before and after it."""
    _run(
        _Asked(context, folder, endpoints, master, timeout, output, html), lambda named, log: named.changes(log, limit)
    )


def terms_command(
    context: typer.Context, folder: Folder = None, endpoints: Endpoints = None, master: Master = None,
    timeout: Timeout = 30.0, limit: Limit = 50, output: OutputOption = None, html: Html = None,
) -> None:  # fmt: skip
    """The history by term: how long each lasted, its throughput, its pauses and the gaps between."""
    asked = _Asked(context, folder, endpoints, master, timeout, output, html)
    _run(asked, lambda named, log: named.terms(log, limit, _leaders(asked)))


def audit_command(
    context: typer.Context, folder: Folder = None, endpoints: Endpoints = None, master: Master = None,
    timeout: Timeout = 30.0, output: OutputOption = None, html: Html = None,
) -> None:  # fmt: skip
    """Missing, doubled and repeated records, and times that fall. (`raftlog verify` proves; this looks.)"""
    _run(_Asked(context, folder, endpoints, master, timeout, output, html), lambda named, log: named.audit(log))


def report_command(
    context: typer.Context,
    html: Annotated[Path, typer.Option("--html", callback=_page, dir_okay=False, help="The file to write.")],
    folder: Folder = None, endpoints: Endpoints = None, master: Master = None, timeout: Timeout = 30.0,
    window: Window = "1h", gap: Gap = "30m", by: By = None, measure: Measure = "bytes", operations: Operations = None,
    value: Value = None, schema: Schema = None, time: Time = None, time_format: TimeFormat = None, key: Key = None,
    source: Source = None,
) -> None:  # fmt: skip
    """One page with the rates, top keys, sessions, changes, terms and the audit of a log.

    With --by, --measure, --time, --key or --value also the sliding windows and the newest records of your own columns.
    Where these are of an import, or with --source, every section is of that import alone.
    """
    asked = _Asked(context, folder, endpoints, master, timeout, html=html)

    def answer(named: Any, log: "DataFrame") -> "list[Result]":
        from raftlog.spark_export.analytics.own import resolved

        own, notes = resolved(log, named.Own(value, schema, time, time_format, key, source, operations), by, measure)
        sections = [
            named.rates(log, 50, own, window, None, None, by, measure),
            *([named.sliding(log, 50, own, window, by, measure)] if own.is_given or by or measure != "bytes" else []),
            *([named.latest(log, 50, own, by or "key", None, measure)] if own.is_given or by else []),
            named.top_keys(log, 20, own),
            named.sessions(log, 20, own, gap),
        ]
        sections[0] = replace(sections[0], notes=[*notes, *sections[0].notes])
        if own.found is None:  # else the page is of an import, and these are of the whole log
            sections += [named.changes(log, 20), named.terms(log, 50, _leaders(asked)), named.audit(log)]
        return sections

    _run(asked, answer)


# ---------------------------------------------------------------------------------------------------------------


def _run(asked: _Asked, answer: "Callable[[Any, DataFrame], Result | list[Result]]", *, is_state: bool = False) -> None:
    """Reads the log, asks, and shows the answer as it is wanted. `answer` is given the module `analyses`, which imports
    Spark."""
    with reported(asked.output):
        from raftlog.spark_export.analytics import analyses
        from raftlog.spark_export.tables import report

        log, facts, first = _log(asked)
        if is_state and first != 1:
            raise UsageError(f"the rows begin at index {first}: the state can only be folded from index 1 on")
        say("asking")
        try:
            answered = answer(analyses, log)
        except ValueError as error:
            raise UsageError(str(error)) from error
        results = answered if isinstance(answered, list) else [answered]
        if asked.html is not None:
            try:
                asked.html.write_text(report.page("raftlog: what the log says", facts, results), encoding="utf-8")
            except OSError as error:
                raise UsageError(f"{asked.html} cannot be written: {error.strerror}") from error
            print(f"wrote {asked.html}")
            return
        for result in results:
            report.show_result(result, asked.output)


def _log(asked: _Asked) -> "tuple[DataFrame, list[tuple[str, str]], int]":
    """The rows, internal ones included, what to say of them, and the first index. Spark starts once they are found,
    because that takes ten seconds."""
    if asked.folder is not None:
        from raftlog.spark_export.export.manifest import read_manifest
        from raftlog.spark_export.export.spark_engine import open_log

        manifest = read_manifest(asked.folder)
        facts = [
            ("export", str(asked.folder)),
            ("log", manifest.log),
            ("indexes", f"{manifest.first} to {manifest.last}"),
        ]
        return open_log(start_spark(asked.master), asked.folder), facts, manifest.first
    from raftlog.spark_export.fetch.door import bounds_now, parse_endpoints

    urls = parse_endpoints(where(asked.context, asked.endpoints))
    page, is_stale = bounds_now(urls, patience_s=asked.timeout)
    if is_stale:
        say_stale(page.index)
    options = {
        "endpoints": ",".join(urls), "startingOffsets": "earliest",
        "endingOffsets": "latest" if is_stale else str(page.index + 1),
        "includeInternal": "true", "log": page.log, "timeoutSeconds": str(max(1, round(asked.timeout))),
    }  # fmt: skip
    known = ", of one node: there was no leader" if is_stale else ""
    facts = [("cluster", ", ".join(urls)), ("log", page.log), ("indexes", f"{page.oldest} to {page.index}{known}")]
    spark = start_spark(asked.master)
    # Kept, because an answer looks at the rows more than once; what memory does not hold goes to Spark's own disk.
    return spark.read.format("raftlog").options(**options).load().persist(), facts, page.oldest


def _leaders(asked: _Asked) -> dict[int, str]:
    """The current leader by term, from a running cluster; an export does not name leaders."""
    if asked.folder is not None:
        return {}
    from raftlog.spark_export.fetch.door import ask, parse_endpoints, status

    urls = parse_endpoints(where(asked.context, asked.endpoints))
    try:
        told = ask(urls, "/v1/status", {}, status, patience_s=asked.timeout)
    except ExportError:
        return {}
    return {} if told.leader is None else {told.term: f"node {told.leader.node}"}
