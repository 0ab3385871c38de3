"""Handles `GET /v1/explain/…`: why there is no leader or no progress, and what happened to a record.

Neither route needs a leader: without one they answer from this node's own facts.
"""

from __future__ import annotations

from contextlib import suppress
from http import HTTPStatus
from typing import Final

from msgspec.structs import replace

from raftlog.cluster.admission.access import reads_all
from raftlog.cluster.api.diagnosis import diagnose, tell_record
from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.api.explain import EntryView, Leaderless, NodeView, RefusedView, ReplicaView
from raftlog.cluster.api.text import as_time
from raftlog.cluster.http.exchange.answer import HttpAnswer
from raftlog.cluster.http.exchange.call import Call
from raftlog.cluster.http.exchange.leader_proxy import passed_on
from raftlog.cluster.http.exchange.query import parse_number
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.http.routes.log import SLICE_BYTES, check_oldest
from raftlog.cluster.records.rows import as_record, decode_rows, is_visible, principals
from raftlog.cluster.runtime import clock
from raftlog.statemachine.access import needs

LEADER_WAIT_S: Final = 1.0
"""Longest wait for the leader's answer, in seconds: a node explains soon, above all while the leader is silent."""
GROUPS_SHOWN_MAX: Final = 100
"""Most names of consumer groups in one answer, of each kind."""


async def explain_leaderless(service: Service, call: Call) -> HttpAnswer:
    """Why there is no leader or no progress, as far as this node knows; `raftlog explain` asks all."""
    call.query()
    return service.answer(leaderless(service))


def leaderless(service: Service) -> Leaderless:
    """The same as a value."""
    view, tls = service.node.view(), service.credentials
    if tls is not None:
        refused = None
        if tls.refused is not None:
            when, where, reason = tls.refused
            refused = RefusedView(f"a client at {where}", reason, int(1_000 * (clock.monotonic() - when)))
        view = replace(view, tls_files=tls.trouble, refused_client=refused)
    return diagnose([view], {})


async def explain_index(service: Service, call: Call) -> HttpAnswer:
    """What happened to a record: term, time, effect, the nodes that hold it durably, the groups past it.

    A node that does not lead asks the leader, which knows all copies, and answers by itself where that fails.
    """
    query = call.query({"value_bytes"})
    value_bytes = query.number("value_bytes")
    node = service.node
    call.deadline = min(call.deadline, service.clock() + LEADER_WAIT_S)
    with suppress(ApiError):
        if (leaders := await passed_on(service, call, b"")) is not None and leaders.status == HTTPStatus.OK:
            return leaders
    at = parse_number(call.parts[0], "the index", 1)
    view = node.view()
    if at > view.last:
        raise ApiError(Code.FUTURE_INDEX, f"record {at} is not in this node's log, which ends with {view.last}")
    check_oldest(service, at)
    replicas = _replicas(view, at)
    state = "applied" if at <= node.applied else "committed" if at <= view.committed else "uncommitted"
    answer = EntryView(view.node, view.role, at, state, [], replicas, node.applied, view.term)
    if at > node.applied:
        return service.answer(replace(answer, words=tell_record(at, state, None, "", replicas, (), ())))
    pairs = await node.read_log(at, 1, SLICE_BYTES)
    if not pairs:
        raise ApiError(Code.COMPACTED, f"record {at} is not kept any more", oldest=node.oldest)
    entry, effects = pairs[0]
    row = next(row for row in decode_rows(entry, effects, at) if row.index == at)
    sees = service.access.permissions(call)
    if sees is not None and not (sees.allows(needs.READ_LOG) and is_visible(row, sees)):
        row = row._replace(key=None, value=None, headers=None, changes=None)
    shows_user = sees is None or needs.sees_members(sees)
    record = as_record(row, "auto", value_bytes, principals(entry).get(at) if shows_user else None)
    # A header's CRC covers the data: it would confirm a guess of hidden bytes of any record of the entry.
    sees_all = sees is None or (reads_all(sees) and needs.sees_segments(sees))
    groups = [(name.decode(), group.next > at) for name, group in node.machine.consumers.rows()]
    past = [name for name, is_past in groups if is_past][:GROUPS_SHOWN_MAX]
    before = [name for name, is_past in groups if not is_past][:GROUPS_SHOWN_MAX]
    answer = replace(
        answer,
        words=tell_record(at, state, record, as_time(entry.time_ms), replicas, past, before),
        index=node.applied,
        record=record,
        entry_first=entry.first,
        entry_last=entry.index,
        entry_bytes=entry.size,
        entry_crc=f"{entry.mark.header_crc:08x}" if sees_all else None,
        previous_crc=f"{entry.previous_crc:08x}" if sees_all else None,
        clock_ms=entry.clock_ms,
        groups_past=past,
        groups_before=before,
    )
    return service.answer(answer)


def _replicas(view: NodeView, at: int) -> list[ReplicaView]:
    """Every member's copy: the leader knows what each has proved, another node only its own copy."""
    own_role = "voter" if view.node in view.voters or view.node in view.outgoing else "learner"
    own = ReplicaView(view.node, own_role, view.persisted, at <= view.persisted, at <= view.applied)
    others = [
        ReplicaView(peer.node, peer.role, peer.match, None if peer.match is None else at <= peer.match)
        for peer in view.peers
    ]
    return sorted([own, *others], key=lambda replica: replica.node)
