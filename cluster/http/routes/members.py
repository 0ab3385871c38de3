"""Handles `POST /v1/members` and `/v1/leader/transfer`: builds the core's change, and the join file of a new node.

A node that does not lead forwards the request to the leader. Incarnations are made here or by the client, so that the
core needs no chance.
"""

from __future__ import annotations

import secrets
from typing import Final

import msgspec

from raftlog.cluster.api.encoding import to_b64
from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.api.members import ChangeAnswer, ChangeIn, TransferAnswer, TransferIn
from raftlog.cluster.config.cluster_file import (
    HEX32,
    ClusterFile,
    ClusterHead,
    ClusterNode,
    SettingsError,
    check_peer,
    place_of,
    render_cluster_file,
)
from raftlog.cluster.config.joining import joining_lines
from raftlog.cluster.http.exchange.answer import HttpAnswer
from raftlog.cluster.http.exchange.body import decode, read_body
from raftlog.cluster.http.exchange.call import Call
from raftlog.cluster.http.exchange.leader_proxy import passed_on
from raftlog.cluster.http.exchange.service import Service
from raftlog.raft.changes import AddLearners, ChangeAddresses, MemberChange, Promote, Remove, Replace
from raftlog.raft.codec.configuration import decode_configuration
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.types import NOBODY

_CHANGE: Final = msgspec.json.Decoder(ChangeIn)
_TRANSFER: Final = msgspec.json.Decoder(TransferIn)
_TAKES: Final[dict[str, frozenset[str]]] = {
    "add": frozenset({"peer", "url", "incarnation", "promote"}),
    "promote": frozenset({"promote"}),
    "remove": frozenset(),
    "replace": frozenset({"peer", "url", "incarnation", "by"}),
    "address": frozenset({"peer", "url"}),
}


async def transfer_leadership(service: Service, call: Call) -> HttpAnswer:
    """Hands leadership to a voter (an empty body: the one with the longest log); answers once the new leader is
    heard."""
    call.query()
    body = await read_body(service, call)
    if (leaders_answer := await passed_on(service, call, body)) is not None:
        return leaders_answer
    asked = decode(_TRANSFER, body, "the body as JSON") if body else TransferIn()
    node = service.node
    seconds = await node.transfer(asked.to or NOBODY, call.deadline)
    leader = node.leader_hint()
    if leader is None:
        raise ApiError(Code.LEADER_LOST, "leadership was handed over, and the new leader is lost already")
    answer = TransferAnswer(node.node_id, leader, round(seconds * 1_000, 1), node.applied, node.term)
    return service.answer(answer)


async def change_members(service: Service, call: Call) -> HttpAnswer:
    """Adds, promotes, removes, replaces a member or moves its addresses; answered once the change has begun."""
    call.query()
    body = await read_body(service, call)
    if (leaders_answer := await passed_on(service, call, body)) is not None:
        return leaders_answer
    asked = decode(_CHANGE, body, "the body as JSON")
    call.action = f"{asked.change} node {asked.node}"
    node = service.node
    before = node.configuration
    _check_url(service, asked.url)
    change, newcomer = _change_of(asked, before)
    join = settings = None
    if newcomer is not None:
        join = await _join_file(service, before, newcomer)
        settings = "\n".join(joining_lines(service.settings, newcomer.node, newcomer.peer, newcomer.url)) + "\n"
    index = await node.change_members(change, call.deadline)
    changed = asked.node if newcomer is None else newcomer.node
    return service.answer(
        ChangeAnswer(asked.change, changed, node.members().is_changing, index, node.term, join, settings)
    )


def _check_url(service: Service, url: str | None) -> None:
    """Raises ApiError bad_request for a URL by which no client may reach a member of this cluster.

    A cluster with TLS takes a plain URL only with `security.mode = both`, while it changes to TLS or back."""
    if url is None or url.startswith("https://"):
        return
    credentials = service.credentials
    if credentials is not None and not credentials.takes_plain:
        raise ApiError(Code.BAD_REQUEST, f"url is {url!r}: this node has TLS, so it must begin with https://")
    if not url.startswith("http://"):
        raise ApiError(Code.BAD_REQUEST, f"url is {url!r}: it must begin with http://, or https:// with TLS")


def _change_of(asked: ChangeIn, members: Configuration) -> tuple[MemberChange, Member | None]:
    """The change of the core, and the new disk that it names. Raises ApiError bad_request or members_refused."""
    defaults = ChangeIn(asked.change, asked.node)
    for name in ("peer", "url", "incarnation", "by", "promote"):
        if getattr(asked, name) != getattr(defaults, name) and name not in _TAKES[asked.change]:
            raise ApiError(Code.BAD_REQUEST, f"{name} is not for change {asked.change!r}: leave it out")
    there = {member.node: member for member in members.members}
    old = there.get(asked.node)
    match asked.change:
        case "add":
            newcomer = _member(asked, asked.node, None, members)
            return AddLearners((newcomer,), asked.promote), newcomer
        case "promote":
            if asked.promote and old is not None and old.node in members.learners:
                return AddLearners((old,)), None
            return Promote((asked.node,)), None
        case "remove":
            return Remove((asked.node,)), None
        case "replace":
            by = asked.by or asked.node
            newcomer = _member(asked, by, old if by == asked.node else None, members)
            return Replace(asked.node, newcomer), newcomer
        case "address":
            if old is None:
                raise ApiError(
                    Code.MEMBERS_REFUSED,
                    f"node {asked.node} is no member; name one of {sorted(there)}",
                    why="unknown_node",
                )
            moved = _member(msgspec.structs.replace(asked, incarnation=old.incarnation), old.node, old, members)
            return ChangeAddresses((moved,)), None


def _member(asked: ChangeIn, node: int, old: Member | None, members: Configuration) -> Member:
    """The requested member. Fields that are not given are those of `old`. Raises ApiError bad_request."""
    peer = asked.peer or (old.peer if old else None)
    url = asked.url or (old.url if old else None)
    if peer is None or url is None:
        raise ApiError(
            Code.BAD_REQUEST,
            f"node {node} needs peer (host:port for its peers) and url (http://host:port for clients)",
        )
    try:
        check_peer(peer, "peer")
    except SettingsError as error:
        raise ApiError(Code.BAD_REQUEST, str(error)) from error
    if peer == place_of(url):
        raise ApiError(Code.BAD_REQUEST, f"peer and url are both {peer}: peers and clients need a port each")
    incarnation = asked.incarnation or secrets.token_hex(16)
    if not HEX32.fullmatch(incarnation):
        raise ApiError(Code.BAD_REQUEST, f"incarnation is {incarnation!r}: it must be 32 lower-case hex digits")
    for member in members.members:
        is_itself = member.node == node or (asked.change == "replace" and member.node == asked.node)
        if not is_itself and {member.peer, place_of(member.url)} & {peer, place_of(url)}:
            raise ApiError(
                Code.MEMBERS_REFUSED,
                f"node {member.node} is at {member.peer} and {member.url}: give node {node} others",
                why="invalid",
            )
    return Member(node, incarnation, peer, url)


async def _join_file(service: Service, members: Configuration, newcomer: Member) -> str:
    """A cluster file for the new node alone: the log's first entry, and the present addresses of all members."""
    others = [each for each in members.members if each.node != newcomer.node]
    first = await service.node.first_entry()
    parameters = dict(decode_configuration(first.data).parameters)
    head = ClusterHead(
        log=service.node.log_id,
        time_ms=first.time_ms,
        parameters=parameters,
        join=newcomer.node,
        first=to_b64(first.header + first.data),
    )
    nodes = [
        ClusterNode(each.node, each.peer, each.url, f"node-{each.node}", each.incarnation)
        for each in sorted([*others, newcomer], key=lambda each: each.node)
    ]
    return render_cluster_file(ClusterFile(head, nodes))
