"""Defines the commands of the log: append, log, log trim, audit."""

from __future__ import annotations

import os
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any, Final

import typer

from raftlog.cluster.api.text import as_row
from raftlog.cluster.cli.consumers import owner_here
from raftlog.cluster.cli.frame.common import Base64Option, Cli, CommandFailed, Commands, Exit, bytes_of, say
from raftlog.cluster.cli.frame.output import TIME, Column, view
from raftlog.cluster.cli.kv import NoSession, Sequence, SessionOption, value_of, write
from raftlog.cluster.client.access_requests import can
from raftlog.cluster.client.answers import Record
from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.client.requests import append, trim
from raftlog.statemachine.access.commands import AccessAction, decode_access
from raftlog.statemachine.commands import Operation, TxnOperation
from raftlog.statemachine.txn import decode_txn

commands = Commands()
register = commands.register

APPENDED: Final = view("outcome", "result", "first", "last", "count", raw="last")
RECORD: Final = view(
    Column("index", width=9),
    TIME,
    Column("operation", lambda row: row["operation"] or row["kind"], 13),
    Column("result", width=8),
    Column("key", width=20),
    "value",
    raw="value",
)
TRIMMED: Final = view("outcome", "oldest", "index", raw="oldest")

AUDIT: Final = view(
    Column("index", width=9),
    TIME,
    Column("user", width=16),
    Column("operation", width=13),
    Column("result", width=8),
    "what",
    raw="index",
)
_AUDITED: Final = ("access", "trim", "compact", "delete_range")


@commands("append", writes=True)
def append_command(
    cli: Cli,
    values: Annotated[list[str] | None, typer.Argument(help="One record each; standard input as one if none.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="The key of every record.")] = None,
    headers: Annotated[list[str] | None, typer.Option("--header", help="NAME=VALUE; may be given again.")] = None,
    time_ms: Annotated[int | None, typer.Option("--time", help="The event's time in Unix ms.", min=0)] = None,
    session: SessionOption = None,
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
        raise CommandFailed(f"--header {text!r}: write NAME=VALUE", Exit.USAGE)
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
            raise CommandFailed(
                "--group goes on where the group stands: move it with raftlog consumers reset", Exit.USAGE
            )
        with cli.client() as client:
            consumer = client.consumer(group)
            consumer.claim(owner=owner_here(), start=client.status().oldest)
            found = consumer.records(follow=follow, limit=limit, internal=internal)
            with closing(found):
                cli.printer.each((as_row(record) for record in found), RECORD)
        return
    if from_index is not None and from_time is not None:
        raise CommandFailed("give --from or --from-time, not both", Exit.USAGE)
    time_ms = None if from_time is None else unix_ms(from_time, "--from-time")
    with cli.client() as client:
        status = client.status()
        if from_index is not None and from_index > status.committed + 1:
            waits = "; it waits until the log gets there" if follow else ""
            say(f"the log ends at index {status.committed}: --from {from_index} is behind its end{waits}")
        start = from_index or status.oldest
        records = client.log(start, to=to, from_time_ms=time_ms, follow=follow, internal=internal)
        cli.printer.each((as_row(record) for record in islice(records, limit)), RECORD)


@commands.group("log", log_command)("trim", writes=True)
def trim_command(
    cli: Cli,
    before: Annotated[int, typer.Option("--before", help="The oldest index to keep.", metavar="INDEX", min=1)],
) -> None:
    """Let go of the records below an index, on every node and for good."""
    with cli.client() as client:
        done = client.call(trim(before))
    cli.printer.one(as_row(done), TRIMMED)
    if done.note and not cli.printer.is_json:
        say(done.note)


@commands("audit")
def audit_command(
    cli: Cli,
    since: Annotated[
        str | None, typer.Option("--since", help="From this time on: Unix ms or ISO 8601. [default: the oldest record]")
    ] = None,
) -> None:
    """List what changed the cluster, from its own log: permissions, members, trims, compactions, deletes by range."""
    with cli.client(sessions=False) as client:
        for grant, what in (("access", "changes of permissions"), ("operate", "changes of members, and users")):
            if not client.call(can(f"{grant} on cluster")).allowed:
                say(f"{what} are left out: they are shown with `{grant} on cluster` alone")
        found = client.log(
            1 if since else client.status().oldest,
            from_time_ms=unix_ms(since, "--since") if since else None,
            internal=True,
        )
        cli.printer.each(
            (
                _audited(record)
                for record in found
                if record.operation in _AUDITED or record.kind == "configuration" or _ranges(record)
            ),
            AUDIT,
        )


def _ranges(record: Record) -> list[TxnOperation]:
    """The ranges of keys that a transaction deleted."""
    if record.operation != "txn":
        return []
    try:
        txn = decode_txn(record.value or b"")
    except ValueError:
        return []
    steps = txn.then if record.succeeded else txn.orelse
    return [step for step in steps if step.operation == Operation.DELETE_RANGE]


def _audited(record: Record) -> dict[str, Any]:
    what = {"operation": record.operation or "members", "result": record.result, "what": ""}
    if record.operation == "access":
        try:
            asked = decode_access(record.value or b"")
        except ValueError:
            what |= {"what": "malformed"}
        else:
            named = (
                AccessAction(asked.action).name.lower(),
                asked.name,
                asked.token,
                *asked.roles,
                *map(str, asked.grants),
            )
            what |= {"what": " ".join(filter(None, named))}
    elif record.operation == "delete_range":
        what |= {"what": f"{_as_key(record.key)} to {_as_key(record.value)}"}
    elif record.operation == "txn":
        ranges = [f"{_as_key(step.key)} to {_as_key(step.end)}" for step in _ranges(record)]
        what |= {"what": f"deletes {', '.join(ranges)}"}
    elif record.argument is not None:
        what |= {"what": str(record.argument)}
    return {"index": record.index, "time_ms": record.time_ms, "user": record.principal or "", **what}


def _as_key(key: bytes | None) -> str:
    """A bound of a range, for people."""
    return key.decode("utf-8", "backslashreplace") if key else "(the end)"


def unix_ms(text: str, option: str) -> int:
    """The time that an option names, in Unix ms."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise CommandFailed(
            f"{option} {text!r}: write Unix ms or ISO 8601, as in 2026-01-31T12:00", Exit.USAGE
        ) from error
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)
