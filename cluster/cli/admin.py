"""Defines the commands about the cluster itself: status, digest, sessions and receipts, settings, the version."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from raftlog.cluster.api.diagnosis import diagnose, trouble_of
from raftlog.cluster.api.explain import Leaderless
from raftlog.cluster.api.members import Members
from raftlog.cluster.api.status import Status
from raftlog.cluster.api.text import as_row
from raftlog.cluster.cli.frame.common import Cli, CommandFailed, Commands, Exit, say
from raftlog.cluster.cli.frame.output import Column, Format, view
from raftlog.cluster.cli.frame.status_table import COLUMNS, print_status, status_table
from raftlog.cluster.client import requests
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.decisions import Policy, normal_url
from raftlog.cluster.client.errors import ClientError
from raftlog.cluster.config.cluster_file import SettingsError
from raftlog.cluster.config.settings import load_settings
from raftlog.cluster.protocol import cut_off
from raftlog.cluster.runtime import build

commands = Commands()
register = commands.register
_session = commands.group("session")
_settings = commands.group("settings")

T = TypeVar("T")

ASK_S: Final = 1.0
"""Longest wait for the status of one node, in seconds: a paused node must not hold up the others."""

NODE: Final = view(*COLUMNS, raw="url")
VERSION: Final = view("version", "modules", "python", raw="version")
DIGEST: Final = view(
    "index",
    "revision",
    Column("keys", lambda row: row["state"]["count"]),
    Column("state", lambda row: row["state"]["xor"]),
    Column("log", lambda row: (row.get("log_digest") or {}).get("xor")),
    raw=lambda row: (row["state"]["xor"] + "\n").encode(),
)
SNAPSHOT: Final = view("node", "snapshot", raw="snapshot")
SESSION: Final = view("session", "ttl_ms", "index", raw="session")
RECEIPT: Final = view("session", "sequence", "state", "result", "first", "last", "revision", raw="state")
SETTING: Final = view("key", "value", raw="value")
SETTING_WITH_ORIGIN: Final = view("key", "value", "origin", raw="value")


def ask_all(
    urls: Iterable[str], question: Callable[[SyncClient], T], timeout_s: float = ASK_S
) -> dict[str, T | ClientError]:
    """The answer of each node, or the reason why it has none. One attempt: a node that is down now is shown as down."""

    def ask(url: str) -> T | ClientError:
        try:
            with SyncClient(url, bound=True, deadline_s=timeout_s, policy=Policy(unreachable_ms=1)) as client:
                return question(client)
        except ClientError as error:
            return error

    urls = list(urls)
    with ThreadPoolExecutor(max(1, len(urls))) as threads:
        return dict(zip(urls, threads.map(ask, urls), strict=True))


def member_urls(client: SyncClient, endpoints: Sequence[str]) -> dict[int, str]:
    """The nodes' URLs as the cluster reports them. Raises ClientError if no node answers."""
    members: Members = client.members()
    return {member.node: member.url for member in members.members}


def look(urls: dict[int, str], timeout_s: float = ASK_S) -> dict[str, Any]:
    """The overview of the nodes as they are now."""
    return overview_of(urls, ask_all(urls.values(), status_and_view, timeout_s))


def overview_of(
    urls: dict[int, str], answers: Mapping[str, tuple[Status, Leaderless | None] | ClientError]
) -> dict[str, Any]:
    """The overview of the nodes, with what `raftlog explain` would say first as `trouble`."""
    shown = overview(urls, {url: each if isinstance(each, ClientError) else each[0] for url, each in answers.items()})
    views = [view for each in answers.values() if isinstance(each, tuple) and each[1] for view in each[1].nodes]
    silent = {node: why_silent(each) for node, url in urls.items() if isinstance(each := answers[url], ClientError)}
    return shown | ({"trouble": trouble_of(diagnose(views, silent))} if views else {})


def why_silent(error: ClientError) -> str:
    """Why one node gave no answer, without the words about all nodes."""
    return error.message.removeprefix("no node answered. ")


def status_and_view(client: SyncClient) -> tuple[Status, Leaderless | None]:
    """What one node says. Without a view for a user that may not operate the cluster."""
    status = client.status()
    try:
        return status, client.call(requests.explain_leaderless())
    except ClientError:
        return status, None


def overview(urls: dict[int, str], answers: dict[str, Status | ClientError]) -> dict[str, Any]:
    """The cluster as one mapping: the leader, and a row per node with the leader's facts about it."""
    statuses = [status for status in answers.values() if isinstance(status, Status)]
    leaders = [status for status in statuses if status.role == "leader"]
    leader = max(leaders, key=lambda status: status.term, default=None)
    followers = {each.node: each for each in leader.followers} if leader is not None else {}
    nodes: list[dict[str, Any]] = []
    for node, url in sorted(urls.items()):
        status = answers.get(url)
        row: dict[str, Any] = {"node": node, "url": url}
        if isinstance(status, Status):
            row |= {"role": status.role, "term": status.term, "committed": status.committed, "applied": status.applied}
            row |= {"known_version": status.known_version}
            if status.is_insecure:
                row |= {"is_insecure": True}
            if status.is_cut_off:
                row |= {"cut_off": cut_off.words({each.node: each.reason for each in status.refused_by})}
        else:
            row |= {"role": "unreachable", "reason": str(status)}
        if leader is not None and node == leader.node:
            row |= {"match": leader.last, "lag": 0, "lag_seconds": 0.0}
        elif node in followers:
            seen = followers[node]
            row |= {"state": seen.state, "match": seen.match, "lag": seen.lag, "lag_seconds": seen.lag_seconds}
            row |= {"last_contact_ms": None if seen.last_contact_ms < 0 else seen.last_contact_ms}
            if "cut_off" in row or seen.refused:
                row |= {"lag": None, "lag_seconds": None}
                row.setdefault("cut_off", f"the leader refuses it: {seen.refused}")
        nodes.append(row)
    newest = leader or max(statuses, key=lambda status: status.committed, default=None)
    shown: dict[str, Any] = {"leader": None if leader is None else leader.node, "nodes": nodes}
    if newest is not None:
        shown = {
            "log": newest.log,
            **shown,
            "term": newest.term,
            "committed": newest.committed,
            "oldest": newest.oldest,
            "last_user_index": newest.last_user_index,
            "revision": newest.revision,
            "keys": newest.state.count,
            "sessions": newest.sessions,
            "version": newest.version,
            "cluster_version": newest.cluster_version,
        }
    return shown


@commands("status")
def status_command(
    cli: Cli,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Again and again, until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option("--interval", help="With --watch: seconds between.", min=0.1)] = 1.0,
    count: Annotated[int | None, typer.Option("--count", help="With --watch: stop after so many times.", min=1)] = None,
) -> None:
    """Show the leader, and each node's term, commit, match, lag in records and seconds, and last contact.

    Exit code 5 if there is no leader.
    """
    with cli.client() as client:
        urls = member_urls(client, cli.endpoints)
    urls = {node: dialled(url) for node, url in urls.items()}
    if not watch:
        shown = look(urls)
        _print_status(cli, shown)
        for row in shown["nodes"]:
            if row.get("is_insecure"):
                say(f"node {row['node']} runs with --insecure: each machine that reaches it may do everything")
        if shown["leader"] is None:
            raise CommandFailed(
                "there is no leader now", Exit.UNREACHABLE, "Watch for one with: raftlog status --watch"
            )
        return
    from rich.console import Console  # here: rich takes long to import
    from rich.live import Live

    console = Console(highlight=False)
    is_live = cli.printer.format is Format.TABLE and console.is_terminal
    with_json = cli.printer.is_json

    def again_and_again() -> Iterator[dict[str, Any]]:
        for number in itertools.count(1):
            yield look(urls)
            if number == count:
                return
            time.sleep(interval)

    def rows() -> Iterator[dict[str, Any]]:
        before = None
        for shown in again_and_again():
            if not with_json and (trouble := shown.get("trouble")) != before:
                say(trouble or "the trouble is over")
                before = trouble
            yield from [shown] if with_json else shown["nodes"]

    if not is_live:
        cli.printer.each(rows(), NODE)
        return
    with Live(console=console, auto_refresh=False, transient=False) as live:
        for shown in again_and_again():
            live.update(status_table(shown), refresh=True)


def dialled(url: str) -> str:
    """The URL of a node as clients write it. Raises CommandFailed."""
    try:
        return normal_url(url)
    except ValueError as error:
        raise CommandFailed(f"the cluster names a node's URL that cannot be used: {error}") from error


def _print_status(cli: Cli, shown: dict[str, Any]) -> None:
    if cli.printer.is_json:
        cli.printer.one(shown, NODE)
    elif cli.printer.format is Format.TABLE:
        print_status(shown)
    else:
        cli.printer.all(shown["nodes"], NODE)
        if shown.get("trouble"):
            say(shown["trouble"])


@commands("digest")
def digest_command(
    cli: Cli,
    index: Annotated[
        int | None, typer.Option("--index", help="At the end of this entry; now if not given.", min=1)
    ] = None,
    log_from: Annotated[
        int | None, typer.Option("--log-from", help="Also of the log rows from this index on.", min=1)
    ] = None,
) -> None:
    """Show the digest of the state, by which replicas and exports are compared."""
    cli.show(lambda client: client.digest(index, log_from=log_from), DIGEST)


@commands("snapshot", writes=True)
def snapshot_command(cli: Cli) -> None:
    """Save the state of one node as a snapshot now: of the first URL.

    Nodes do it by themselves when enough log has come.
    """
    with SyncClient(cli.endpoints[0], bound=True, sessions=False, deadline_s=cli.deadline_s) as client:
        cli.printer.one(as_row(client.save_snapshot()), SNAPSHOT)


SessionNumber = Annotated[int, typer.Argument(help="The session.", min=1)]
SequenceNumber = Annotated[int, typer.Argument(help="The sequence.", min=1)]


@_session("open", writes=True)
def session_open_command(
    cli: Cli,
    ttl_ms: Annotated[int, typer.Option("--ttl-ms", help="How long it lives without a sign.", min=1)] = 600_000,
) -> None:
    """Open a session for writes with --session and --sequence, each applied once however often it is sent."""
    cli.show(lambda client: client.open_session(ttl_ms), SESSION)


@_session("keep", writes=True)
def session_keep_command(cli: Cli, session: SessionNumber) -> None:
    """Keep a session alive for another of its times to live."""
    cli.show(lambda client: client.call(requests.keep_session(session)), SESSION)


@_session("close", writes=True)
def session_close_command(cli: Cli, session: SessionNumber) -> None:
    """End a session."""
    cli.show(lambda client: client.call(requests.close_session(session)), SESSION)


@_session("receipt")
def session_receipt_command(cli: Cli, session: SessionNumber, sequence: SequenceNumber) -> None:
    """Show the result of a sequence: applied, not_seen, voided or settled."""
    cli.show(lambda client: client.receipt(session, sequence), RECEIPT)


@_session("void", writes=True)
def session_void_command(cli: Cli, session: SessionNumber, sequence: SequenceNumber) -> None:
    """Void a sequence that was not seen, so that it never applies."""
    cli.show(lambda client: client.void(session, sequence), RECEIPT)


@_settings("show")
def settings_show_command(
    cli: Cli,
    config: Annotated[Path | None, typer.Option("--config", help="A node's settings file, or a cluster file.")] = None,
    node: Annotated[
        int | None, typer.Option("--node", help="The node, where the file is a cluster file.", min=1)
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE, over file and environment.")
    ] = None,
    origin: Annotated[bool, typer.Option("--origin", help="Where each value comes from, too.")] = False,
) -> None:
    """Show every setting of a node as it would start."""
    loaded = load_settings(config, os.environ, node_flags(node, assignments))
    rows = [{"key": each.key, "value": each.value, "origin": each.origin} for each in loaded.origins]
    if not origin:
        rows = [{"key": row["key"], "value": row["value"]} for row in rows]
    cli.printer.all(rows, SETTING_WITH_ORIGIN if origin else SETTING)


@commands("version")
def version_command(cli: Cli) -> None:
    """Show the version, whether compiled or interpreted modules run, and the interpreter."""
    cli.printer.one(build.facts(), VERSION)


def node_flags(node: int | None, assignments: list[str] | None) -> dict[str, Any]:
    """The settings that flags give: `--node` and `--set KEY=VALUE`."""
    flags: dict[str, Any] = {} if node is None else {"node": node}
    for each in assignments or ():
        key, equals, value = each.partition("=")
        if not equals:
            raise SettingsError(f"--set {each!r}: write KEY=VALUE, as in limits.connections_max=500")
        flags[key] = value
    return flags
