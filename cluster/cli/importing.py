"""Defines the command `raftlog import`: options, decisions, progress, and the preview."""

from __future__ import annotations

import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from raftlog.cluster.api.text import as_row, as_time, counted
from raftlog.cluster.cli.frame.common import Cli, CommandFailed, Commands, Exit, say
from raftlog.cluster.cli.frame.option_groups import spread
from raftlog.cluster.cli.frame.output import Column, Format, Row, View, bar, view
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.errors import ClientError, Forbidden
from raftlog.cluster.importer import importer
from raftlog.cluster.importer.formats.lines import InputError, InputFormat, RejectedLine
from raftlog.cluster.importer.formats.times import Twice
from raftlog.cluster.importer.session_file import read_state

commands = Commands()
register = commands.register

IMPORTED: Final = view("records", "rejected", "without_time", "lines", "first", "last", "seconds", "rate", raw="last")


def _time_of(row: Row) -> str | None:
    return as_time(row.get("time_ms")) or None


def _headers_of(row: Row) -> str:
    return " ".join(f"{name}={value.decode('utf-8', 'replace')}" for name, value in row.get("headers") or ())


PREVIEW: Final = view(
    "line", Column("time", _time_of), "key", Column("headers", _headers_of), "value", "reason", raw="value"
)
INPUTS: Final = view("file", "format", "bytes", raw="file")
IMPORT_DEADLINE_S: Final = 60.0
PREVIEW_RECORDS: Final = 10
TELL_EVERY_S: Final = 10.0
"""Seconds between two lines of progress where standard error is no terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """How the lines of files are read: an option that is missing is guessed."""

    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            help="The field that becomes the key: JSON field (a.b goes inside), column, or of an access log host, "
            "user, method, path, status, sent, referer, agent; of syslog host, app, severity, ….",
        ),
    ] = None
    time: Annotated[
        str | None, typer.Option("--time", help="JSON field or column with the event's time.", metavar="FIELD")
    ] = None
    time_format: Annotated[
        str | None,
        typer.Option(
            "--time-format", help="Form of the times: iso, s, ms, us, ns, or as '%d.%m.%Y %H:%M'. Guessed if not given."
        ),
    ] = None
    time_zone: Annotated[
        str | None, typer.Option("--time-zone", help="Zone of times without one: Europe/Berlin, +02:00. UTC.")
    ] = None
    time_twice: Annotated[
        Twice | None,
        typer.Option("--time-twice", help="Which one a local time is that occurs twice; stop: the import ends there."),
    ] = None
    headers: Annotated[
        str | None, typer.Option("--headers", help="Fields that become headers of the record.", metavar="FIELD,…")
    ] = None
    select: Annotated[
        str | None, typer.Option("--select", help="The value is JSON of only these fields.", metavar="FIELD,…")
    ] = None
    format: Annotated[
        InputFormat | None, typer.Option("--format", help="By the file's name and first lines if not given.")
    ] = None
    columns: Annotated[
        str | None, typer.Option("--columns", help="Names of the columns of CSV without them.", metavar="NAME,…")
    ] = None
    delimiter: Annotated[
        str | None, typer.Option("--delimiter", help="One character, or tab. Guessed if not given.")
    ] = None
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Whether the first line of CSV names the columns.")
    ] = None
    charset: Annotated[
        str | None, typer.Option("--charset", help="Of the input: utf-8, windows-1252, …. Guessed if not given.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """How an import runs, whatever its source."""

    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Wait for more until Ctrl-C, also after a file was rotated.")
    ] = False
    batch: Annotated[int, typer.Option("--batch", help="Lines, or changes of tables, in one request.", min=1)] = (
        importer.BATCH_LINES
    )
    state: Annotated[
        Path | None, typer.Option("--state", help="The session file. (default: FILE or SLOT, and .raftlog-import)")
    ] = None
    again: Annotated[bool, typer.Option("--again", help="Begin again, regardless of the session file.")] = False


@commands("import", writes=True)
@spread
def import_command(
    cli: Cli,
    files: Annotated[
        list[str] | None, typer.Argument(help="Files, folders or patterns; or - for standard input.", metavar="FILE…")
    ] = None,
    *,
    reading: ReadingOptions,
    options: CopyOptions,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first line that is rejected or has no time.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the first records as stored, or list several files; write nothing.",
        ),
    ] = False,
    rejected: Annotated[
        bool, typer.Option("--rejected", help="Import the lines that an import of FILE rejected, once corrected.")
    ] = False,
    rejects: Annotated[
        Path | None, typer.Option("--rejects", help="Where rejected lines go. FILE.rejected if not given.")
    ] = None,
    from_line: Annotated[int, typer.Option("--from-line", help="Begin at this line of the file.", min=1)] = 1,
) -> None:
    """Append the lines of files, exactly once and in order: when it is killed, start it again in the same way.

    NDJSON, JSON, CSV, access logs, syslog, plain lines, Parquet, Arrow; gzip and zstd. docs/import.md has examples.
    Rows and changes of tables of PostgreSQL: `raftlog import-postgres`.
    """
    if not files or "" in files:
        raise CommandFailed("name the files to import, or - for standard input", Exit.USAGE)
    source = files[0]
    # The import keeps its files beside this name: of a pattern without its signs, of a folder beside it.
    name = "".join("_" if each in "*?[]" else each for each in source.rstrip("/"))
    name = "raftlog-stdin" if source == importer.STDIN else name
    state, rejects = options.state or Path(f"{name}.raftlog-import"), rejects or Path(f"{name}.rejected")
    shared: dict[str, Any] = {
        "batch_lines": options.batch,
        "again": options.again,
        "from_line": from_line,
        "strict": strict,
        "tell": say,
    }
    if rejected:
        if reading != ReadingOptions() or options.follow or len(files) > 1:
            raise CommandFailed("--rejected reads the lines as the import of FILE did: give no such option", Exit.USAGE)
        plan = importer.ImportPlan(
            str(rejects), Path(f"{rejects}.raftlog-import"), Path(f"{rejects}.rejected"), rejected_of=state, **shared
        )
    else:
        given = {each.name: getattr(reading, each.name) for each in fields(reading)}
        if empty := [name for name, value in given.items() if value == ""]:
            raise CommandFailed(f"--{empty[0].replace('_', '-')} is empty: give a value, or leave it out", Exit.USAGE)
        given |= {name: names(given[name]) for name in ("headers", "select", "columns")}
        plan = importer.ImportPlan(
            source, state, rejects, more=tuple(files[1:]), follow=options.follow, **given, **shared
        )
    if from_line > 1 and (plan.more or Path(source).is_dir()):
        raise CommandFailed("--from-line is of one file: import the others by themselves", Exit.USAGE)
    if dry_run:
        _dry_run(cli, plan)
        return
    with cli.client(deadline_s=max(cli.deadline_s, IMPORT_DEADLINE_S)) as client:
        _run_import(cli, plan, client)


def names(given: str | None) -> tuple[str, ...]:
    return () if given is None else tuple(each.strip() for each in given.split(",") if each.strip())


def _dry_run(cli: Cli, plan: importer.ImportPlan) -> None:
    """Prints the first records of a file, or the list of several files."""
    notices: dict[str, None] = {}  # each notice once, although a single file is opened twice
    plan = replace(plan, tell=lambda notice: notices.setdefault(notice))
    try:
        files = importer.listed(plan, sys.stdin.buffer)
        rows = [*_preview(plan)] if len(files) == 1 else [each._asdict() for each in files]
    finally:
        for notice in notices:
            say(notice)
    cli.printer.all(rows, PREVIEW if len(files) == 1 else INPUTS)


def _preview(plan: importer.ImportPlan) -> Iterator[Row]:
    for line, found in importer.preview(plan, sys.stdin.buffer, PREVIEW_RECORDS):
        if isinstance(found, RejectedLine):
            yield {"line": line, "value": found.data, "reason": found.reason}
        else:
            yield {"line": line, **found._asdict(), "headers": [*found.headers] or None}


def _run_import(cli: Cli, plan: importer.ImportPlan, client: SyncClient) -> None:
    started = time.monotonic()
    state = None if plan.again else read_state(plan.state)
    before = state.records if state is not None else 0
    newest: importer.ImportProgress | None = None

    def rows() -> Iterator[Row]:
        nonlocal newest, before
        with _shown() as show:
            for progress in importer.run(plan, client, sys.stdin.buffer):
                newest = progress
                if progress.result == "repeated":  # sent by the earlier run, which had no time to note the answer
                    before = progress.records
                row = _progress_row(progress, before, time.monotonic() - started)
                show(progress, row["rate"])
                yield row

    try:
        printed(cli, rows(), IMPORTED)
    except KeyboardInterrupt:
        raise CommandFailed(f"interrupted: {_standing(plan, newest)}", Exit.INTERRUPTED) from None
    except (ClientError, InputError, OSError) as error:
        if isinstance(error, Forbidden):
            say("an import needs `append on log` and `write on keys:raftlog/import/*`")
        if newest is not None or (isinstance(error, ClientError) and read_state(plan.state) is not None):
            say(_standing(plan, newest))
        raise
    if newest is None:
        raise CommandFailed(f"{plan.source} has no line to import beyond its first")
    cli.printer.one(_progress_row(newest, before, time.monotonic() - started) | {"done": True}, IMPORTED)
    if before and before == newest.records:
        say("an earlier run has imported all of it; --again imports it once more")
    elif before:
        say(f"an earlier run has imported {before:,} of these records")
    if newest.without_time:
        say(f"records without a time, because theirs could not be read: {newest.without_time:,}")
    if newest.rejected:
        say(f"rejected lines: {newest.rejected:,}, in {plan.rejects}")


def printed(cli: Cli, rows: Iterator[Row], view: View) -> None:
    """Takes all rows, and prints each with -o jsonl; else the caller prints the last. SIGTERM ends it as Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if cli.printer.format is Format.JSONL:
        cli.printer.each(rows, view)
    else:
        deque(rows, maxlen=0)


def _standing(plan: importer.ImportPlan, newest: importer.ImportProgress | None) -> str:
    """How much is in the log, and how to continue."""
    if newest is None:
        state = read_state(plan.state)
        done = "" if state is None or not state.records else counted(state.records, "record")
    else:
        done = f"{counted(newest.records, 'record')} (index {newest.first} to {newest.last}), up to line {newest.lines}"
    if plan.source == importer.STDIN:
        return f"the log has {done or 'at most one batch'} of standard input; a pipe cannot be continued"
    how = continuing(again=plan.again, from_line=plan.from_line)
    return f"the log has {done or 'at most one batch'} of {plan.source}; {how}"


def continuing(*, again: bool, from_line: int = 1) -> str:
    """Which command continues an import. With --again it would begin again; the session file has the line."""
    dropped = [option for option, is_given in (("--again", again), ("--from-line", from_line > 1)) if is_given]
    return f"the same command{' without ' if dropped else ''}{' and '.join(dropped)} continues"


def _progress_row(progress: importer.ImportProgress, before: int, seconds: float) -> dict[str, Any]:
    rate = round((progress.records - before) / max(seconds, 0.001))
    row = {name: value for name, value in as_row(progress).items() if name != "share"}
    return {**row, "before": before, "seconds": round(seconds, 3), "rate": rate, "done": False}


@contextmanager
def _shown() -> Iterator[Callable[[importer.ImportProgress, int], None]]:
    """Shows progress on standard error: a bar on a terminal, else a line every `TELL_EVERY_S`."""
    if not sys.stderr.isatty():
        lines = lines_of_progress()
        yield lambda progress, rate: lines(progress.records, rate, progress.share)
        return
    with bar("import") as show:
        yield lambda progress, rate: show(
            progress.share or 0,
            None if progress.share is None else 1.0,
            f"{counted(progress.records, 'record')}, {rate:,}/s",
        )


def lines_of_progress() -> Callable[[int, int, float | None], None]:
    started = shown_at = time.monotonic()
    share: float | None = None

    def show(records: int, rate: int, now_share: float | None) -> None:
        nonlocal shown_at, share
        now = time.monotonic()
        share = now_share if share is None else share  # that of the first batch: an earlier run may have begun
        if now - shown_at < TELL_EVERY_S:
            return
        shown_at = now
        left = ""
        if now_share is not None and share is not None and now_share > share:
            seconds = (now - started) * (1 - now_share) / (now_share - share)
            left = f", {100 * now_share:.0f} %, about {seconds:,.0f} s left"
        say(f"{counted(records, 'record')}, {rate:,}/s{left}")

    return show
