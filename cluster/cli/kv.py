"""Defines the commands of the key-value store: put, get, del, range, txn, watch."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Annotated, Any, Final, Literal, cast

import msgspec
import typer

from raftlog.cluster.api.kv import CompareIn, OperationIn, TxnIn
from raftlog.cluster.api.text import as_row
from raftlog.cluster.cli.frame.common import Base64Option, Cli, CommandFailed, Commands, Exit, bytes_of, say
from raftlog.cluster.cli.frame.output import TIME, Column, Row, View, view
from raftlog.cluster.client.answers import Page
from raftlog.cluster.client.decisions import SessionBook
from raftlog.cluster.client.flow import ApiRequest, Ticket
from raftlog.cluster.client.requests import compact, compare, delete, delete_range, prefix_end, put, step, txn

commands = Commands()
register = commands.register

WRITTEN: Final = view("outcome", "result", "index", "revision", raw="index")
DELETED: Final = view("outcome", "result", "index", "revision", "deleted", raw="deleted")
ITEM: Final = view("key", "value", "mod", "version", "create", raw="value")
BARE: Final = View(ITEM.columns, lambda row: row["value"])
KEYS: Final = view("key", "mod", "version", "create", raw="key")
TXN: Final = view(
    "succeeded",
    "result",
    "index",
    "revision",
    "responses",
    raw=lambda row: b"true\n" if row["succeeded"] else b"false\n",
)
CHANGE: Final = view(
    Column("index", width=9),
    TIME,
    Column("revision", width=8),
    Column("change", lambda row: "delete" if row["deleted"] else "put", 6),
    Column("key", width=20),
    "value",
    raw="value",
)

_transaction = msgspec.json.Decoder(TxnIn).decode

Key = Annotated[str, typer.Argument(help="The key.")]
At = Annotated[int | None, typer.Option("--at", help="As of this revision.", min=0)]
Stale = Annotated[bool, typer.Option("--stale", help="What the node has, without asking the others.")]
MinIndex = Annotated[int, typer.Option("--min-index", help="With --stale: at least as new as this index.", min=0)]
IfRevision = Annotated[
    int | None, typer.Option("--if-revision", help="Only if the key is at this revision (0: is not there).", min=0)
]
SessionOption = Annotated[
    int | None, typer.Option("--session", help="Use this session (and --sequence) instead of one of its own.", min=1)
]
Sequence = Annotated[int | None, typer.Option("--sequence", help="The write's sequence in --session.", min=1)]
NoSession = Annotated[
    bool, typer.Option("--no-session", help="Write without a session: if the answer is lost, exit code 6.")
]


def write(cli: Cli, request: ApiRequest[Any], session: int | None, sequence: int | None, no_session: bool) -> Any:
    """Carries out a write, in a session of its own, in a given one, or without a session."""
    if (session is None) != (sequence is None):
        raise CommandFailed("--session and --sequence go together", Exit.USAGE)
    with cli.client(sessions=not no_session) as client:
        if session is None or sequence is None:
            return client.call(request)
        # Settled stays 1: this command does not know the other open sequences of that session.
        ticket = Ticket(SessionBook(session, next=sequence + 1), sequence)
        return client.call(request, ticket=ticket)


def value_of(text: str | None, is_base64: bool) -> bytes:
    """A value from the command line, or all of standard input. Raises CommandFailed if that is empty."""
    if text is not None:
        return bytes_of(text, is_base64, "VALUE")
    if sys.stdin.isatty():
        say("reading the value from the terminal; end it with Ctrl-D")
    value = sys.stdin.buffer.read()
    if not value:  # a script that forgot its input would replace the value by nothing
        raise CommandFailed("standard input has no value. To write an empty value, name it: ''", Exit.USAGE)
    return value


def stale(is_stale: bool) -> Literal["linearizable", "stale"]:
    """The consistency that the flag asks for."""
    return "stale" if is_stale else "linearizable"


@commands("put", writes=True)
def put_command(
    cli: Cli,
    key: Key,
    value: Annotated[str | None, typer.Argument(help="The value; standard input if not given.")] = None,
    if_revision: IfRevision = None,
    session: SessionOption = None,
    sequence: Sequence = None,
    no_session: NoSession = False,
    base64: Base64Option = False,
) -> None:
    """Write one key."""
    request = put(bytes_of(key, base64, "KEY"), value_of(value, base64), if_revision=if_revision)
    cli.printer.one(as_row(write(cli, request, session, sequence, no_session)), WRITTEN)


@commands("get")
def get_command(
    cli: Cli,
    key: Key,
    at: At = None,
    is_stale: Stale = False,
    min_index: MinIndex = 0,
    base64: Base64Option = False,
) -> None:
    """Read one key. Exit code 3 if it is not there. With -o raw: the value's bytes and nothing else."""
    name = bytes_of(key, base64, "KEY")
    with cli.client() as client:
        item = client.get(name, at=at, consistency=stale(is_stale), min_index=min_index)
    if item is None:
        raise CommandFailed(f"no key {key!r}", Exit.NOT_FOUND)
    cli.printer.one(as_row(item), BARE)


@commands("del", writes=True)
def del_command(
    cli: Cli,
    key: Annotated[str, typer.Argument(help="The key, or with END or --prefix the first of several.")],
    end: Annotated[str | None, typer.Argument(help="Delete all keys from KEY up to, not including, END.")] = None,
    prefix: Annotated[bool, typer.Option("--prefix", help="Delete all keys that begin with KEY.")] = False,
    if_revision: IfRevision = None,
    session: SessionOption = None,
    sequence: Sequence = None,
    no_session: NoSession = False,
    base64: Base64Option = False,
) -> None:
    """Delete one key or many; `deleted` says how many there were. Exit code 3 if there was none."""
    first = bytes_of(key, base64, "KEY")
    request: ApiRequest[Any]
    if prefix or end is not None:
        if if_revision is not None or (prefix and end is not None):
            raise CommandFailed("give one of END, --prefix and --if-revision", Exit.USAGE)
        if end == "":  # a script with an unset variable would delete everything behind KEY
            raise CommandFailed("END is empty: name the key to stop before, or give --prefix", Exit.USAGE)
        request = delete_range(first, prefix_end(first) if end is None else bytes_of(end, base64, "END"))
    else:
        request = delete(first, if_revision=if_revision)
    written = write(cli, request, session, sequence, no_session)
    cli.printer.one(as_row(written) | {"deleted": written.deleted}, DELETED)
    if not written.deleted:
        raise typer.Exit(Exit.NOT_FOUND)


@commands("range")
def range_command(
    cli: Cli,
    start: Annotated[str, typer.Argument(help="First key; with --prefix what keys begin with. All if not given.")] = "",
    end: Annotated[str | None, typer.Argument(help="Keys up to, not including, this one.")] = None,
    prefix: Annotated[bool, typer.Option("--prefix", help="Keys that begin with START.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", help="At most so many keys.", min=1)] = None,
    keys_only: Annotated[bool, typer.Option("--keys-only", help="Without the values.")] = False,
    at: At = None,
    is_stale: Stale = False,
    min_index: MinIndex = 0,
    base64: Base64Option = False,
) -> None:
    """List keys and values in order, all as of one moment."""
    first = bytes_of(start, base64, "START")
    last = None if end is None else bytes_of(end, base64, "END")
    if prefix:
        if end is not None:
            raise CommandFailed("give END or --prefix, not both", Exit.USAGE)
        last = prefix_end(first)
    with cli.client() as client:
        read = partial(client.range_page, first, last, at=at, consistency=stale(is_stale), min_index=min_index)
        cli.printer.all(_pages(read, limit, keys_only), KEYS if keys_only else ITEM)


def _pages(read: Callable[..., Page], limit: int | None, keys_only: bool) -> Iterator[Row]:
    """The rows of all pages, at most `limit`."""
    continuation: str | None = None
    while True:
        page = read(limit=limit, continuation=continuation, keys_only=keys_only)
        for item in page.items:
            row = dict(as_row(item))
            if keys_only:
                del row["value"]
            yield row
        continuation = page.continuation
        limit = None if limit is None else limit - len(page.items)
        if continuation is None or limit == 0:
            return


@commands("txn", writes=True)
def txn_command(
    cli: Cli,
    document: Annotated[
        str | None, typer.Argument(help='JSON {"compare": […], "then": […], "else": […]}, or - for standard input.')
    ] = None,
    conditions: Annotated[
        list[str] | None, typer.Option("--if", help="A comparison: KEY value|version|create|mod =|!=|<|> OPERAND.")
    ] = None,
    then: Annotated[list[str] | None, typer.Option("--then", help="put KEY VALUE, get KEY, del KEY [END].")] = None,
    orelse: Annotated[list[str] | None, typer.Option("--else", help="The same, if a comparison does not hold.")] = None,
    session: SessionOption = None,
    sequence: Sequence = None,
    no_session: NoSession = False,
) -> None:
    """Compare, then carry out one of two branches, at once. Both branches exit with 0; `succeeded` says which ran."""
    if (document is None) == (conditions is None and then is None and orelse is None):
        raise CommandFailed("give either a JSON document or --if, --then and --else", Exit.USAGE)
    if document is not None:
        text = sys.stdin.buffer.read() if document == "-" else os.fsencode(document)
        try:
            transaction = _transaction(text)
        except msgspec.MsgspecError as error:
            raise CommandFailed(
                f"the transaction is not what it should be: {error}; give the JSON itself, or - for standard input: "
                "raftlog txn - < FILE",
                Exit.USAGE,
            ) from error
    else:
        transaction = TxnIn(
            compare=[_condition(each) for each in conditions or ()],
            then=[_step(each) for each in then or ()],
            orelse=[_step(each) for each in orelse or ()],
        )
    cli.printer.one(as_row(write(cli, txn(transaction), session, sequence, no_session)), TXN)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise CommandFailed(f"{text!r}: {error}; quote as in a shell", Exit.USAGE) from error


def _condition(text: str) -> CompareIn:
    """`a mod = 3` as a comparison."""
    match _words(text):
        case [key, ("value" | "version" | "create" | "mod") as target, ("=" | "!=" | "<" | ">") as operator, operand]:
            if target == "value":
                return compare(os.fsencode(key), "value", cast(Any, operator), os.fsencode(operand))
            if not (operand.isascii() and operand.isdigit()):
                raise CommandFailed(f"--if {text!r}: {target} is compared with a number", Exit.USAGE)
            return compare(os.fsencode(key), cast(Any, target), cast(Any, operator), int(operand))
        case _:
            raise CommandFailed(f"--if {text!r}: write KEY value|version|create|mod =|!=|<|> OPERAND", Exit.USAGE)


def _step(text: str) -> OperationIn:
    """`put a 1` as a step of a branch."""
    match _words(text):
        case ["put", key, value]:
            return step("put", os.fsencode(key), os.fsencode(value))
        case ["get", key]:
            return step("get", os.fsencode(key))
        case ["del", key]:
            return step("delete", os.fsencode(key))
        case ["del", key, end]:
            return step("delete_range", os.fsencode(key), end=os.fsencode(end))
        case _:
            raise CommandFailed(f"{text!r} is no step: write put KEY VALUE, get KEY, or del KEY [END]", Exit.USAGE)


@commands("watch")
def watch_command(
    cli: Cli,
    key: Annotated[str | None, typer.Argument(help="Only this key. All if not given.")] = None,
    prefix: Annotated[bool, typer.Option("--prefix", help="Keys that begin with KEY.")] = False,
    from_index: Annotated[
        int | None, typer.Option("--from", help="From this index on; from now on if not given.", min=1)
    ] = None,
    from_revision: Annotated[int | None, typer.Option("--from-revision", help="From this revision on.", min=1)] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Stop after so many changes.", min=1)] = None,
    base64: Base64Option = False,
) -> None:
    """Print changes as they happen, until Ctrl-C. Goes on by itself when a node is lost."""
    if from_index is not None and from_revision is not None:
        raise CommandFailed("give --from or --from-revision, not both", Exit.USAGE)
    name = None if key is None else bytes_of(key, base64, "KEY")
    with cli.client() as client:
        events = client.watch(
            prefix=name if prefix else None,
            key=None if prefix else name,
            from_index=from_index,
            from_revision=from_revision,
        )
        rows = (
            {"index": event.index, "term": event.term, "time_ms": event.time_ms, "revision": event.revision}
            | dict(as_row(change))
            for event in events
            for change in event.changes
        )
        cli.printer.each(islice(rows, limit), CHANGE)


@commands("compact", writes=True)
def compact_command(
    cli: Cli, revision: Annotated[int, typer.Argument(help="The oldest revision to keep.", min=1)]
) -> None:
    """Let go of the history of keys below a revision."""
    cli.show(lambda client: client.call(compact(revision)), view("outcome", "oldest_revision", "index", raw="index"))
