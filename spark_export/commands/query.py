"""Defines the command `raftlog query`: SQL about an export or a running cluster, answered by DuckDB in this process."""

import sys
from itertools import islice
from typing import Annotated, Final

import typer

from raftlog.cluster.api.text import counted, how_to_install
from raftlog.cluster.cli.frame.common import OutputOption
from raftlog.spark_export.commands.frame import Endpoints, RecordsChoice, Timeout, reported, say_stale, where
from raftlog.spark_export.errors import ExtraMissingError, UsageError

ROWS_SHOWN: Final = 1_000
"""Rows that are shown unless --limit says otherwise: a terminal holds no more."""


def register(app: typer.Typer) -> None:
    """Adds the command to the command line."""
    app.command("query")(query_command)


def query_command(
    context: typer.Context,
    sql: Annotated[str, typer.Argument(help="SQL about the views log and events; - reads it from standard input.")],
    folder: Annotated[
        str | None,
        typer.Argument(
            help="The folder of a finished export, or s3://BUCKET/PREFIX; without it a running cluster.",
            metavar="[DIR]",
        ),
    ] = None,
    endpoints: Endpoints = None,
    records: Annotated[
        RecordsChoice,
        typer.Option("--records", help="all: with repetitions, sessions and other internal records."),
    ] = RecordsChoice.USER,
    first: Annotated[int | None, typer.Option("--from", min=1, help="First index. (default: the oldest)")] = None,
    last: Annotated[int | None, typer.Option("--to-index", min=1, help="Last index. (default: the newest)")] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Show at most so many rows; 0: all.")] = ROWS_SHOWN,
    output: OutputOption = None,
    timeout: Timeout = 30.0,
) -> None:
    """Answer SQL about an export, or a running cluster, with DuckDB.

    The view log has a row per record, with the columns of docs/spark.md. The view events has the records of imported
    CSV or JSON, with the columns of the file too. text(key) is a key or value as text.

    Without a leader the answer is that of one node, and standard error says so.
    """
    with reported(output):
        # The extra that is asked for brings what the others need too.
        try:
            from raftlog.spark_export.tables import arrow, duck, report
        except ImportError as error:
            raise ExtraMissingError(
                f"this command needs the package {error.name or 'pyarrow'}, which is not installed: "
                f"{how_to_install('query')}"
            ) from error
        if sql == "-":
            sql = sys.stdin.read()
        if not sql.strip():
            raise UsageError("the SQL is empty; for example: raftlog query 'SELECT count(*) FROM log'")
        if folder is not None:
            rows = arrow.export(folder, first, last, records=records.value)
        else:
            urls = where(context, endpoints)
            rows = arrow.log(urls, first, last, records=records.value, timeout_s=timeout, may_be_stale=True)
        if rows.is_stale:
            say_stale(rows.last)
        with duck.opened(rows) as tables:
            names, answered = tables.ask(sql)
            report.show(names, islice(answered, limit or None), output)
            if limit and next(answered, None) is not None:
                print(f"the first {counted(limit, 'row')}; --limit 0 shows all", file=sys.stderr)
