"""Defines the command `raftlog import-postgres`: rows of tables, and every change of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from raftlog.cluster.api.text import counted
from raftlog.cluster.cli.frame.common import Cli, CommandFailed, Commands, Exit, say
from raftlog.cluster.cli.frame.option_groups import spread
from raftlog.cluster.cli.frame.output import Row, view
from raftlog.cluster.cli.importing import (
    IMPORT_DEADLINE_S,
    CopyOptions,
    continuing,
    lines_of_progress,
    names,
    printed,
)
from raftlog.cluster.importer.sources import CopyProgress, copy

commands = Commands()
register = commands.register

COPIED: Final = view("records", "before", "first", "last", "seconds", "rate", raw="last")


@commands("import-postgres", writes=True)
@spread
def import_postgres_command(
    cli: Cli,
    conninfo: Annotated[
        str,
        typer.Argument(
            metavar="CONNINFO",
            help="The database: 'host=… dbname=… user=…', or @FILE with that. A password only in PGPASSWORD, a pgpass "
            "file, or @FILE.",
        ),
    ],
    tables: Annotated[
        str | None, typer.Option("--tables", metavar="TABLE,…", help="Those of the publication if not given.")
    ] = None,
    slot: Annotated[
        str, typer.Option("--slot", help="The replication slot that this import makes and holds.")
    ] = "raftlog",
    publication: Annotated[
        str | None, typer.Option("--publication", help="Made if it is missing. That of --slot's name.")
    ] = None,
    *,
    options: CopyOptions,
) -> None:
    """Append the rows of PostgreSQL tables and every change of them, exactly once: start it again after a kill.

    docs/postgres.md has examples. Needs the extra postgres.
    """
    from raftlog.cluster.importer.postgres.source import Postgres

    state = options.state or Path(f"{slot}.raftlog-import")
    started = time.monotonic()
    newest: CopyProgress | None = None
    here = 0  # records of this run

    def rows() -> Iterator[Row]:
        nonlocal newest, here
        source = Postgres(
            _conninfo(conninfo),
            names(tables),
            snapshot=state.with_name(f"{state.name}.snapshot"),
            slot=slot,
            publication=publication,
            follow=options.follow,
            again=options.again,
            tell=say,
        )
        show = lines_of_progress()
        with cli.client(deadline_s=max(cli.deadline_s, IMPORT_DEADLINE_S)) as client:
            for newest in copy(source, client, state, batch_records=options.batch, again=options.again):
                here += newest.batch if newest.result == "applied" else 0
                row = _copied_row(newest, here, time.monotonic() - started)
                show(newest.records, row["rate"], None)
                yield row

    try:
        printed(cli, rows(), COPIED)
    except KeyboardInterrupt:
        done = "nothing new" if newest is None else f"{counted(newest.records, 'record')} (up to index {newest.last})"
        how = continuing(again=options.again)
        raise CommandFailed(f"interrupted: {done} of {slot} in the log; {how}", Exit.INTERRUPTED) from None
    if newest is None:
        say(f"nothing new in the tables of the slot {slot}")
    else:
        cli.printer.one(_copied_row(newest, here, time.monotonic() - started) | {"done": True}, COPIED)


def _conninfo(given: str) -> str:
    """The connection string. Of one on the command line, other users of the machine see a password."""
    from raftlog.cluster.importer.postgres.connection import parse_conninfo  # here: it needs an extra

    if given.startswith("@"):
        try:
            return Path(given[1:]).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CommandFailed(f"{given[1:]} cannot be read: {error}") from error
    if {"password", "sslpassword"} & {*parse_conninfo(given)}:
        raise CommandFailed(
            "CONNINFO has a password, which every user of this machine can see: put it into PGPASSWORD, into a pgpass "
            "file, or the whole string into a file that only you can read, and give @FILE",
            Exit.USAGE,
        )
    return given


def _copied_row(copied: CopyProgress, here: int, seconds: float) -> dict[str, Any]:
    return {
        "records": copied.records,
        "before": copied.records - here,
        "first": copied.first,
        "last": copied.last,
        "position": copied.position,
        "seconds": round(seconds, 3),
        "rate": round(here / max(seconds, 0.001)),
        "done": False,
    }
