"""Defines the commands that change members and the leader: list, add, promote, remove, replace, address, transfer."""

from __future__ import annotations

import os
import secrets
import shlex
import time
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer
from msgspec.structs import replace

from raftlog.cluster.api.members import ChangeAnswer, ChangeIn, MemberAnswer, Members, TransferAnswer
from raftlog.cluster.api.text import as_row
from raftlog.cluster.cli.frame.common import Cli, CommandFailed, Commands, Exit, say
from raftlog.cluster.cli.frame.output import Column, Format, view
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.errors import ClientError, NotApplied
from raftlog.cluster.config.cluster_file import parse_cluster_file, quoted
from raftlog.cluster.config.joining import TLS_FOLDER, settings_file_of, steps_to_join
from raftlog.cluster.runtime.file_errors import naming
from raftlog.raft.refusals import WhyRefused

commands = Commands()
register = commands.register
_members = commands.group("members")
_leader = commands.group("leader")

POLL_S: Final = 0.1

MEMBER: Final = view("node", "role", "catching_up", "lag", "url", "peer", "disk", "given_up", raw="url")
CHANGE: Final = view("change", "node", "index", "is_changing", raw="index")
TRANSFER: Final = view(
    "old",
    Column("leader", lambda row: row["leader"]["node"]),
    "elapsed_ms",
    "term",
    raw=lambda row: f"{row['leader']['node']}\n".encode(),
)

Node = Annotated[int, typer.Argument(help="The node's number.", min=1)]
Peer = Annotated[str | None, typer.Option("--peer", help="HOST:PORT on which its peers reach it.")]
Url = Annotated[str | None, typer.Option("--url", help="http://HOST:PORT on which clients reach it.")]
JoinFile = Annotated[
    Path | None, typer.Option("--join-file", help="Where to write the join file. [default: join-NODE.toml]")
]
Wait = Annotated[float, typer.Option("--wait", help="Seconds to wait for its end; 0: not at all.", min=0)]


@_members("list")
def list_command(cli: Cli) -> None:
    """List the members with their roles, and the leader's facts about each."""
    with cli.client() as client:
        members = client.members()
    if cli.printer.format is Format.JSON:
        cli.printer.one(as_row(members), MEMBER)
    else:
        cli.printer.all([as_row(member) for member in members.members], MEMBER)


@_members("add", writes=True)
def add_command(
    cli: Cli,
    node: Node,
    peer: Annotated[str, typer.Option("--peer", help="HOST:PORT on which its peers reach it.")],
    url: Annotated[str, typer.Option("--url", help="http://HOST:PORT on which clients reach it.")],
    join_file: JoinFile = None,
    learner: Annotated[bool, typer.Option("--learner", help="It stays a learner until it is promoted.")] = False,
) -> None:
    """Add a new node, and write the join file from which its data folder is made.

    It becomes a voter as soon as it has caught up; started later than 10 seconds after this, by `members promote`.
    """
    change = ChangeIn("add", node, peer=peer, url=url, incarnation=secrets.token_hex(16), promote=not learner)
    _join(cli, change, node, join_file)


@_members("replace", writes=True)
def replace_command(
    cli: Cli,
    node: Node,
    by: Annotated[int | None, typer.Option("--by", help="Another number for the new node.", min=1)] = None,
    peer: Peer = None,
    url: Url = None,
    join_file: JoinFile = None,
) -> None:
    """Give a node's place to a new disk: under the same number at the same addresses, or to another node (--by)."""
    change = ChangeIn("replace", node, peer=peer, url=url, incarnation=secrets.token_hex(16), by=by)
    _join(cli, change, by or node, join_file)


@_members("promote", writes=True)
def promote_command(
    cli: Cli,
    node: Node,
    now: Annotated[bool, typer.Option("--now", help="At once, or not at all.")] = False,
    wait: Wait = 30.0,
) -> None:
    """Make a learner a voter, as soon as it has caught up."""
    _change(cli, ChangeIn("promote", node, promote=not now), wait)


@_members("remove", writes=True)
def remove_command(cli: Cli, node: Node, wait: Wait = 30.0) -> None:
    """Remove a member; a leader hands over first. The removed node may be stopped then."""
    _change(cli, ChangeIn("remove", node), wait)


@_members("address", writes=True)
def address_command(cli: Cli, node: Node, peer: Peer = None, url: Url = None, wait: Wait = 30.0) -> None:
    """Change the addresses of a member; its disk and its data stay."""
    if peer is None and url is None:
        raise CommandFailed("nothing changes: give --peer, --url or both", Exit.USAGE)
    change = ChangeIn("address", node, peer=peer, url=url)
    with cli.client() as client:
        old = next((each for each in client.members().members if each.node == node), None)
    _change(cli, change, wait)
    if old is not None and (advice := certificate_advice(old, change)):
        say(advice)


@_leader("transfer", writes=True)
def transfer_command(
    cli: Cli,
    to: Annotated[
        int | None, typer.Option("--to", help="The node; the voter that has most, if not given.", min=1)
    ] = None,
) -> None:
    """Hand leadership over, and wait until the new leader leads."""
    with cli.client() as client:
        members = client.members()
        if to is not None and members.leader is not None and members.leader.node == to:
            say(f"nothing to do: node {to} leads already")
            answer = TransferAnswer(to, members.leader, 0.0, members.index, members.term)
        else:
            answer = client.transfer_leadership(to)
    cli.printer.one(as_row(answer), TRANSFER)
    if to is not None and answer.leader.node != to:
        raise CommandFailed(f"node {answer.leader.node} leads now, not node {to}: it was faster; try again")


# ---------------------------------------------------------------------------------------------------------------
# Helpers.


_JOIN_BYTES: Final = 64 << 10
"""Room that the join file and the settings must have on the disk before the change: a member takes about 200 bytes."""


def _join(cli: Cli, change: ChangeIn, node: int, join_file: Path | None) -> None:
    """Begins the change and writes the join file. Prints the next steps to standard error.

    The file is made first, with room for its content: the answer alone has it, so a change whose file cannot be kept
    must not be made.
    """
    file = join_file or Path(f"join-{node}.toml")
    settings = settings_file_of(file)
    for each in (settings, file):
        if each.exists():
            raise CommandFailed(f"{each} is there already: name another --join-file, or remove it", Exit.USAGE)
    file.touch(exist_ok=False)
    try:
        with naming(file):
            file.write_bytes(b"\n" * _JOIN_BYTES)
    except OSError:
        file.unlink(missing_ok=True)
        raise
    with cli.client() as client:
        try:
            answer = client.change_members(change)
        except BaseException as error:
            file.unlink(missing_ok=True)  # it has nothing yet
            if not isinstance(error, NotApplied):
                say(
                    "The change may have been made, and there is no join file. If `raftlog members list` has node "
                    f"{node}: raftlog members replace {node} makes one."
                )
            raise
    assert answer.join is not None
    lines = f"cluster_file = {quoted(file.name)}\n{answer.settings or ''}"
    try:
        file.write_text(answer.join, encoding="utf-8")
        settings.write_text(lines, encoding="utf-8")
    except OSError:  # no disk space
        say(
            f"The change has begun. Its join file could not be written to {file}, nor the settings to {settings}; this "
            "is what they contain:"
        )
        say(f"{answer.join}\n{lines}")
        raise
    _print(cli, answer)
    place = parse_cluster_file(answer.join, str(file)).of(node)
    assert place is not None, "a join file has its node"
    certificate = _certificate_step(node, file) if "security.ca = " in lines else ""
    say(f"Next, {steps_to_join(node, file, place.data, certificate=certificate)}")


def _certificate_step(node: int, join: Path) -> str:
    """The command that makes the certificate of a new node; empty if it is beside the join file already."""
    if (join.parent / TLS_FOLDER / f"node-{node}.key").exists():
        return ""
    step = f"raftlog cert node {node} --cluster {shlex.quote(str(join))}"
    beside_ca = Path(os.environ.get("RAFTLOG_CA", "")).parent
    if (Path(TLS_FOLDER) / "ca.key").exists():
        return step
    if (beside_ca / "ca.key").exists():
        return f"{step} --folder {shlex.quote(str(beside_ca))}"
    return f"{step} --folder FOLDER   # with ca.key; from another authority: docs/security.md"


def certificate_advice(old: MemberAnswer, change: ChangeIn) -> str:
    """What the certificate of a moved node must name; empty without TLS, and if its hosts stay."""
    url = change.url or old.url
    hosts = [urlsplit(each).hostname or "" for each in (url, f"//{change.peer or old.peer}")]
    known = [urlsplit(each).hostname for each in (old.url, f"//{old.peer}")]
    if not url.startswith("https:") or not (new := [each for each in dict.fromkeys(hosts) if each not in known]):
        return ""
    return (
        f"Before node {old.node} listens there its certificate must name {' and '.join(new)}. Where ca.key is: raftlog "
        f"cert renew FOLDER/node-{old.node}.pem {' '.join(f'--also {each}' for each in new)}"
    )


def _change(cli: Cli, change: ChangeIn, wait_s: float) -> None:
    """Begins the change and waits for its end. A change that is already made is no error: a script may repeat it."""
    with cli.client() as client:
        try:
            answer = client.change_members(change)
        except ClientError as error:
            if not _is_made(change, error):
                raise
            members = client.members()
            answer = ChangeAnswer(
                change.change, change.node, members.is_changing, members.configuration, members.term, None
            )
            why = error.problem.message if error.problem else str(error)
            say(f"nothing to do: {why.removesuffix('; nothing is to be done')}")
        if wait_s:
            members = _wait(client, change, wait_s)
            answer = replace(answer, is_changing=members.is_changing)
    _print(cli, answer)


def _is_made(change: ChangeIn, error: ClientError) -> bool:
    """Whether the change was refused because the members are already as it would make them."""
    why = None if error.problem is None else error.problem.why
    return why == WhyRefused.NOTHING_CHANGES or (change.change == "remove" and why == WhyRefused.UNKNOWN_NODE)


def _print(cli: Cli, answer: ChangeAnswer) -> None:
    cli.printer.one({name: value for name, value in as_row(answer).items() if name != "join"}, CHANGE)


def _wait(client: SyncClient, change: ChangeIn, wait_s: float) -> Members:
    """The members once the change is done. Raises CommandFailed."""
    end = time.monotonic() + wait_s
    while True:
        try:
            members = client.members()
        except ClientError:
            members = None  # between two leaders
        if members is not None:
            member = next((each for each in members.members if each.node == change.node), None)
            if not members.is_changing and _is_done(change, member):
                return members
            if member is not None and member.given_up:
                mend = f"Say it again: raftlog members {change.change} {change.node}"
                raise CommandFailed(f"node {change.node}: given up: {member.given_up}", hint=mend)
        if time.monotonic() >= end:
            raise CommandFailed(
                f"{change.change} of node {change.node} has begun and was not done within {wait_s:g} s",
                hint="It goes on by itself; how far it is: raftlog members list",
            )
        time.sleep(POLL_S)


def _is_done(change: ChangeIn, member: MemberAnswer | None) -> bool:
    match change.change:
        case "promote":
            return member is not None and member.role == "voter"
        case "remove":
            return member is None
        case _:
            return member is not None
