"""Defines the commands of consumer groups: consumers list, show, claim, commit, reset, delete."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from raftlog.cluster.api.consumers import PositionIn
from raftlog.cluster.api.text import as_row, as_time
from raftlog.cluster.api.values import SHARD
from raftlog.cluster.cli.frame.common import Cli, CommandFailed, Commands, Exit
from raftlog.cluster.cli.frame.output import Column, Format, view
from raftlog.cluster.client import consumers as requests
from raftlog.cluster.client.blocking.client import SyncClient

commands = Commands()
register = commands.register
_consumers = commands.group("consumers")


def _next(row: Mapping[str, Any]) -> Any:
    return row["position"]["next"][SHARD]


_NEXT: Final = Column("next", _next)
CONSUMER: Final = view(
    "name",
    _NEXT,
    "lag",
    "lag_seconds",
    "generation",
    "owner",
    Column("updated", lambda row: as_time(row["updated_ms"])),
    raw=lambda row: f"{_next(row)}\n".encode(),
)
MOVED: Final = view(
    "name",
    _NEXT,
    "generation",
    "owner",
    "index",
    "result",
    raw="generation",
)
DELETED: Final = view("name", "deleted", "index", raw="deleted")

Name = Annotated[str, typer.Argument(help="The group's name.")]
To = Annotated[int, typer.Option("--to", help="The next index that it is to read.", min=1)]
Owner = Annotated[
    str | None, typer.Option("--owner", help="The owner's name, for people. [default: this program on this host]")
]


def owner_here() -> str:
    """The name of this process as an owner."""
    return f"raftlog on {socket.gethostname()}, process {os.getpid()}"


@_consumers("list")
def list_command(cli: Cli) -> None:
    """List the consumer groups with position, lag and owner."""
    with cli.client() as client:
        found = client.call(requests.consumers())
    if cli.printer.format is Format.JSON:
        cli.printer.one(as_row(found), CONSUMER)
    else:
        cli.printer.all([as_row(each) for each in found.consumers], CONSUMER)


@_consumers("show")
def show_command(cli: Cli, name: Name) -> None:
    """Show one consumer group. With -o raw: the next index that it reads."""
    cli.show(lambda client: client.consumer(name).status(), CONSUMER)


@_consumers("claim", writes=True)
def claim_command(
    cli: Cli,
    name: Name,
    start: Annotated[
        int | None, typer.Option("--start", help="Where a new group begins; the oldest index if not given.", min=1)
    ] = None,
    owner: Owner = None,
) -> None:
    """Become the owner of a group, which is made if it is not there; the owner before is fenced.

    With -o raw: the generation, which `consumers commit` wants.
    """
    cli.show(lambda client: client.consumer(name).claim(owner=_owner(owner), start=start), MOVED)


@_consumers("commit", writes=True)
def commit_command(
    cli: Cli,
    name: Name,
    to: To,
    generation: Annotated[int, typer.Option("--generation", help="What the claim answered.", min=1)],
) -> None:
    """Move a group forward, as its owner: everything before --to is done with."""
    cli.show(lambda client: client.call(requests.commit(name, _position(client, to), generation)), MOVED)


@_consumers("reset", writes=True)
def reset_command(cli: Cli, name: Name, to: To, owner: Owner = None) -> None:
    """Move a group to any position, whatever its owner: that owner is fenced. Makes a missing group."""
    with cli.client() as client:
        request = requests.commit(name, _position(client, to), None, reset=True, owner=_owner(owner))
        cli.printer.one(as_row(client.call(request)), MOVED)


@_consumers("delete", writes=True)
def delete_command(
    cli: Cli,
    name: Name,
    generation: Annotated[
        int | None, typer.Option("--generation", help="Only if this is still the owner's.", min=1)
    ] = None,
) -> None:
    """Delete a group: nothing is kept for it any more."""
    with cli.client(sessions=False) as client:  # a full disk takes the deletion, and no session
        done = client.call(requests.delete(name, generation))
    if not done.deleted:
        raise CommandFailed(f"there is no consumer group {name!r}: raftlog consumers list", Exit.NOT_FOUND)
    cli.printer.one(as_row(done), DELETED)


def _position(client: SyncClient, index: int) -> PositionIn:
    return requests.position_of(client.status().log, index)


def _owner(given: str | None) -> str:
    return owner_here() if given is None else given
