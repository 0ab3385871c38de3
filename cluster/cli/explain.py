"""Defines the command that explains a missing leader, missing progress, or a record, from all nodes that it reaches."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import typer

from raftlog.cluster.api.diagnosis import diagnose, leader_of, tell_record
from raftlog.cluster.api.explain import Cause, EntryView, Leaderless, NodeView
from raftlog.cluster.api.text import as_row, as_time
from raftlog.cluster.cli.admin import ask_all, why_silent
from raftlog.cluster.cli.frame.common import Cli, CommandFailed, Commands, Exit
from raftlog.cluster.cli.frame.output import Format, view
from raftlog.cluster.client import requests
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.decisions import normal_url
from raftlog.cluster.client.errors import ClientError

commands = Commands()
register = commands.register

CAUSE: Final = view("code", "node", "peer", "words", raw="words")
REPLICA: Final = view("node", "role", "match", "is_durable", "is_applied", raw="node")


@commands("explain")
def explain_command(
    cli: Cli,
    what: Annotated[
        str, typer.Argument(help="`leader`: why there is none, or no progress; an index: what happened to that record.")
    ] = "leader",
) -> None:
    """Explain why there is no leader or no progress, or what happened to a record.

    Asks every node that it reaches, and needs no leader. Exit code 5 if there is no leader, or no node answers.
    """
    if what == "leader":
        answer = explain_leader(cli)
        _print_leader(cli, answer)
        if not answer.leader:
            raise CommandFailed("there is no leader now", Exit.UNREACHABLE)
    elif what.isascii() and what.isdigit() and int(what) > 0:
        _print_record(cli, explain_record(cli, int(what)))
    else:
        raise CommandFailed(f"{what!r}: write `leader`, or the index of a record", Exit.USAGE)


def explain_leader(cli: Cli) -> Leaderless:
    """The views of all nodes that can be reached, as one. Raises ClientError if there is none."""
    asked: dict[str, Leaderless | ClientError] = {}
    waiting = [normal_url(url) for url in cli.endpoints]
    while waiting:  # nodes that the views name are asked too
        asked |= ask_all(waiting, lambda client: client.call(requests.explain_leaderless()))
        known = [peer.url for view in _views(asked) for peer in view.peers]
        waiting = [url for url in dict.fromkeys(map(normal_url, known)) if url not in asked]
    views = {view.node: view for view in _views(asked)}
    if not views:
        raise next(error for error in asked.values() if isinstance(error, ClientError))
    places = {peer.node: normal_url(peer.url) for view in views.values() for peer in view.peers}
    unreachable = {node: _reason(asked[url]) for node, url in places.items() if node not in views}
    return diagnose(list(views.values()), unreachable)


def explain_record(cli: Cli, index: int) -> EntryView:
    """The leader's facts, if it can be reached, else any node's; with the applied indexes of the others."""
    views = explain_leader(cli).nodes
    urls = {peer.node: normal_url(peer.url) for view in views for peer in view.peers}
    urls |= {} if len(views) > 1 else {views[0].node: normal_url(cli.endpoints[0])}
    leader = leader_of(views) or views[0]
    with SyncClient(urls.get(leader.node, cli.endpoints[0]), bound=True, deadline_s=cli.deadline_s) as client:
        answer = client.call(requests.explain_index(index))
    applied = {view.node: view.applied >= index for view in views}
    replicas = [
        msgspec.structs.replace(each, is_applied=applied.get(each.node, each.is_applied)) for each in answer.replicas
    ]
    when = "" if answer.record is None else as_time(answer.record.time_ms)
    words = tell_record(index, answer.state, answer.record, when, replicas, answer.groups_past, answer.groups_before)
    return msgspec.structs.replace(answer, replicas=replicas, words=words)


def _views(asked: dict[str, Leaderless | ClientError]) -> list[NodeView]:
    return [view for answer in asked.values() if isinstance(answer, Leaderless) for view in answer.nodes]


def _reason(answer: Leaderless | ClientError) -> str:
    if isinstance(answer, Leaderless):
        return f"another node, {answer.nodes[0].node}, answers at its URL"
    return why_silent(answer)


def _print_leader(cli: Cli, answer: Leaderless) -> None:
    printer = cli.printer
    if printer.is_json:
        printer.one(as_row(answer), CAUSE)
        return
    if printer.format is Format.TABLE:
        print(answer.summary)
        for cause in answer.causes:
            print(f"- {cause.words}")
        return
    causes = answer.causes or [Cause("none", answer.summary, answer.leader)]  # an empty answer says nothing
    printer.all([as_row(cause) for cause in causes], CAUSE)


def _print_record(cli: Cli, answer: EntryView) -> None:
    printer = cli.printer
    if printer.is_json:
        printer.one(as_row(answer), REPLICA)
        return
    if printer.format is Format.TABLE:
        for line in answer.words:
            print(line)
    printer.all([as_row(each) for each in answer.replicas], REPLICA)
