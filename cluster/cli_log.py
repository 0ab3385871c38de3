"""Commands of the log: append, log, log trim, import."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cluster import importer
from cluster.cli_consumers import owner_here
from cluster.cli_frame import Base64Option, Cli, Exit, Failed, bytes_of, command, command_group
from cluster.cli_kv import NoSession, Sequence, Session, value_of, write
from cluster.client_requests import NewRecord, append, trim
from cluster.client_sync import SyncClient
from cluster.import_lines import InputError, InputFormat
from cluster.import_note import NoteError, read_note
from cluster.output import Column, Format, Row, View, as_row, as_time, lines_of

APPENDED: Final = View(
    (Column("outcome"), Column("result"), Column("first"), Column("last"), Column("count")), lines_of("last")
)
RECORD: Final = View(
    (
        Column("index", width=9), Column("time", lambda row: as_time(row["time_ms"]), 24),
        Column("operation", lambda row: row["operation"] or row["kind"], 13), Column("result", width=8),
        Column("key", width=20), Column("value"),
    ),
    lines_of("value"),
)  # fmt: skip
IMPORTED: Final = View(
    (
        Column("records"), Column("rejected"), Column("lines"), Column("first"), Column("last"), Column("seconds"),
        Column("rate"),
    ),
    lines_of("last"),
)  # fmt: skip
TRIMMED: Final = View((Column("outcome"), Column("oldest"), Column("index")), lines_of("oldest"))
IMPORT_DEADLINE_S: Final = 60.0


def append_command(
    cli: Cli,
    values: Annotated[list[str] | None, typer.Argument(help="One record each; standard input as one if none.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="The key of every record.")] = None,
    headers: Annotated[list[str] | None, typer.Option("--header", help="NAME=VALUE; may be given again.")] = None,
    time_ms: Annotated[int | None, typer.Option("--time", help="The event's time in Unix ms.", min=0)] = None,
    session: Session = None,
    sequence: Sequence = None,
    no_session: NoSession = False,
    base64: Base64Option = False,
) -> None:
    """Append records: all of them, one after the other, or none."""
    name = None if key is None else bytes_of(key, base64, "--key")
    pairs = tuple(_header(each) for each in headers or ())
    bodies = [bytes_of(each, base64, "VALUE") for each in values] if values else [value_of(None, base64)]
    request = append([NewRecord(body, name, pairs, time_ms) for body in bodies])
    cli.printer.one(as_row(write(cli, request, session, sequence, no_session)), APPENDED)


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Failed(f"--header {text!r}: write NAME=VALUE", Exit.USAGE)
    return name, os.fsencode(value)


def log_command(
    cli: Cli,
    from_index: Annotated[
        int | None, typer.Option("--from", help="First index. The oldest if not given.", min=1)
    ] = None,
    to: Annotated[int | None, typer.Option("--to", help="Up to, not including, this index.", min=1)] = None,
    from_time: Annotated[
        str | None, typer.Option("--from-time", help="From this time on: Unix ms or ISO 8601 (UTC if it has no zone).")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Stop after so many records.", min=1)] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Wait for more, until Ctrl-C.")] = False,
    internal: Annotated[bool, typer.Option("--internal", help="Internal records, too.")] = False,
    group: Annotated[
        str | None, typer.Option("--group", help="Claim this consumer group, go on where it stands, and commit.")
    ] = None,
) -> None:
    """Print the log in order. With -o raw: the values, one a line."""
    if group is not None:
        if (from_index, to, from_time) != (None, None, None):
            raise Failed("--group goes on where the group stands: move it with raftlog consumers reset", Exit.USAGE)
        with cli.client() as client:
            consumer = client.consumer(group)
            consumer.claim(owner=owner_here(), start=client.status().oldest)
            found = consumer.records(follow=follow, limit=limit, internal=internal)
            with closing(found):
                cli.printer.each((as_row(record) for record in found), RECORD)
        return
    if from_index is not None and from_time is not None:
        raise Failed("give --from or --from-time, not both", Exit.USAGE)
    time_ms = None if from_time is None else _unix_ms(from_time)
    with cli.client() as client:
        start = from_index or client.status().oldest
        records = client.log(start, to=to, from_time_ms=time_ms, follow=follow, internal=internal)
        cli.printer.each((as_row(record) for record in islice(records, limit)), RECORD)


def trim_command(
    cli: Cli,
    before: Annotated[int, typer.Option("--before", help="The oldest index to keep.", metavar="INDEX", min=1)],
) -> None:
    """Let go of the records below an index, on every node and for good."""
    with cli.client() as client:
        done = client.call(trim(before))
    cli.printer.one(as_row(done), TRIMMED)
    if done.note and cli.printer.format not in (Format.JSON, Format.JSONL):
        print(done.note, file=sys.stderr)


def _unix_ms(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise Failed(f"--from-time {text!r}: write Unix ms or ISO 8601, as in 2026-01-31T12:00", Exit.USAGE) from error
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def import_command(
    cli: Cli,
    source: Annotated[str, typer.Argument(help="A file, or - for standard input.", metavar="FILE")],
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            help="The field that becomes the key: JSON field (a.b goes inside), CSV column, or of an "
            "access log host, user, method, path, status, referer, agent.",
        ),
    ] = None,
    time_field: Annotated[
        str | None, typer.Option("--time", help="JSON field or CSV column with the event's time (Unix ms or ISO 8601).")
    ] = None,
    format: Annotated[
        InputFormat | None, typer.Option("--format", help="By the file's name and first line if not given.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", help="Records in one request.", min=1)] = importer.BATCH_LINES,
    state: Annotated[
        Path | None, typer.Option("--state", help="The session file. FILE.raftlog-import if not given.")
    ] = None,
    rejects: Annotated[
        Path | None, typer.Option("--rejects", help="Where rejected lines go. FILE.rejected if not given.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Begin anew, whatever the session file says.")] = False,
    from_line: Annotated[int, typer.Option("--from-line", help="Begin at this line of the file.", min=1)] = 1,
) -> None:
    """Append the lines of a file, exactly once and in order: when it is killed, start it again in the same way.

    A record's value is the line's bytes unchanged. NDJSON, CSV, and access logs (common and combined format).
    """
    name = "raftlog-stdin" if source == importer.STDIN else source
    plan = importer.Plan(
        source, state or Path(f"{name}.raftlog-import"), rejects or Path(f"{name}.rejected"), format, key, time_field,
        batch, again=again, from_line=from_line,
    )  # fmt: skip
    with cli.client(deadline_s=max(cli.deadline_s, IMPORT_DEADLINE_S)) as client:
        try:
            _run_import(cli, plan, client)
        except (NoteError, InputError) as error:
            raise Failed(str(error)) from error


def _run_import(cli: Cli, plan: importer.Plan, client: SyncClient) -> None:
    started = time.monotonic()
    note = None if plan.again else read_note(plan.state)
    before = note.acknowledged.records if note is not None else 0
    newest: importer.Progress | None = None

    def rows() -> Iterator[Row]:
        nonlocal newest
        with _bar(plan) as tell:
            for progress in importer.run(plan, client, sys.stdin.buffer):
                newest = progress
                row = _progress_row(progress, before, time.monotonic() - started)
                tell(progress, row["rate"])
                yield row

    if cli.printer.format is Format.JSONL:
        cli.printer.each(rows(), IMPORTED)
    else:
        deque(rows(), maxlen=0)
    if newest is None:
        raise Failed(f"{plan.source} has no line to import beyond its first")
    cli.printer.one(_progress_row(newest, before, time.monotonic() - started) | {"done": True}, IMPORTED)
    if newest.rejected:
        print(f"{newest.rejected} rejected lines are in {plan.rejects}", file=sys.stderr)


def _progress_row(progress: importer.Progress, before: int, seconds: float) -> dict[str, Any]:
    rate = round((progress.records - before) / max(seconds, 0.001))
    return {**as_row(progress), "seconds": round(seconds, 3), "rate": rate, "done": False}


@contextmanager
def _bar(plan: importer.Plan) -> Iterator[Callable[[importer.Progress, int], None]]:
    """A progress bar on standard error, if that is a terminal."""
    from rich.console import Console  # here: rich takes long to import
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    size = None if plan.source == importer.STDIN else Path(plan.source).stat().st_size
    with Progress(
        TextColumn("{task.fields[records]:,} records"), BarColumn(), DownloadColumn(),
        TextColumn("{task.fields[rate]:,}/s"), TimeRemainingColumn(), console=console,
        disable=not console.is_terminal, transient=True,
    ) as bar:  # fmt: skip
        task = bar.add_task("import", total=size, records=0, rate=0)

        def tell(progress: importer.Progress, rate: int) -> None:
            bar.update(task, completed=progress.bytes, records=progress.records, rate=rate)

        yield tell


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    command(app, "append")(append_command)
    command(command_group(app, "log", log_command), "trim")(trim_command)
    command(app, "import")(import_command)
