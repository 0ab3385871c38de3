"""`GET /v1/explain/…`: why there is no leader or no progress, and what became of a record, by this node's account.

Neither needs a leader: they answer from what this node has.
"""

from __future__ import annotations

from typing import Final

from cluster.explain import diagnose, tell_record
from cluster.http_answer import Answer
from cluster.http_call import Call, Service
from cluster.http_log import SLICE_BYTES, check_oldest
from cluster.http_query import parse_number
from cluster.output import as_time
from cluster.records import as_record, decode_rows
from cluster.wire import ApiError, Code
from cluster.wire_explain import EntryView, NodeView, ReplicaView

GROUPS_SHOWN_MAX: Final = 100
"""Names of consumer groups in one answer, of each kind."""


async def explain_leaderless(service: Service, call: Call) -> Answer:
    """Why there is no leader or no progress, as far as this node knows; `raftlog explain` asks all."""
    call.query()
    return service.answer(diagnose([service.node.view()], {}))


async def explain_index(service: Service, call: Call) -> Answer:
    """What became of a record: term, time, effect, who has it durably, which groups are past it."""
    call.query()
    node = service.node
    at = parse_number(call.parts[0], "the index", 1)
    view = node.view()
    if at > view.last:
        raise ApiError(Code.FUTURE_INDEX, f"record {at} is not in this node's log, which ends with {view.last}")
    check_oldest(service, at)
    replicas = _replicas(view, at)
    if at > node.applied:
        state = "committed" if at <= view.committed else "uncommitted"
        words = tell_record(at, state, None, "", replicas, (), ())
        return service.answer(EntryView(view.node, view.role, at, state, words, replicas, node.applied, view.term))
    pairs = await node.read_log(at, 1, SLICE_BYTES)
    if not pairs:
        raise ApiError(Code.COMPACTED, f"record {at} is not kept any more", oldest=node.oldest)
    entry, effects = pairs[0]
    record = as_record(next(row for row in decode_rows(entry, effects, at) if row.index == at))
    groups = [(name.decode(), group.next > at) for name, group in node.machine.consumers.rows()]
    past = [name for name, is_past in groups if is_past][:GROUPS_SHOWN_MAX]
    before = [name for name, is_past in groups if not is_past][:GROUPS_SHOWN_MAX]
    words = tell_record(at, "applied", record, as_time(entry.time_ms), replicas, past, before)
    return service.answer(
        EntryView(
            view.node, view.role, at, "applied", words, replicas, node.applied, view.term, record, entry.first,
            entry.index, entry.size, entry.clock_ms, past, before,
        )
    )  # fmt: skip


def _replicas(view: NodeView, at: int) -> list[ReplicaView]:
    """Every member's copy: at the leader what each has proved, elsewhere only this node's own."""
    own_role = "voter" if view.node in view.voters or view.node in view.outgoing else "learner"
    own = ReplicaView(view.node, own_role, view.persisted, at <= view.persisted, at <= view.applied)
    others = [
        ReplicaView(peer.node, peer.role, peer.match, None if peer.match is None else at <= peer.match)
        for peer in view.peers
    ]
    return sorted([own, *others], key=lambda replica: replica.node)
