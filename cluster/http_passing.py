"""Passes a request that only the leader can carry out on to the leader, over HTTP, and gives its answer back.

Used for changes of the members and hand-overs (`http_members`); writes go by the peer links (`cluster.forwarding`). A
request is passed on once: a header marks it, and a node that gets it so answers by itself.
"""

from __future__ import annotations

from typing import Final

from cluster import wire
from cluster.client_connection import Pool
from cluster.client_core import Failure
from cluster.client_flow import Lost
from cluster.client_http import Head, encode_request
from cluster.http_answer import Answer
from cluster.http_call import Call, Service
from cluster.wire import ApiError, Code

GRACE_S: Final = 0.25
"""Longer than the leader was told, in seconds: its own verdict arrives."""


async def passed_on(service: Service, call: Call, body: bytes) -> Answer | None:
    """The leader's answer; None where this node has to answer. Raises ApiError no_leader where the leader cannot be
    reached, leader_lost where its answer does not come."""
    node = service.node
    leader = node.leader_hint()
    if leader is None or leader.node == node.node_id or wire.H_PASSED_ON in call.headers:
        return None
    left_s = max(0.001, call.deadline - service.clock())
    host = leader.url.partition("://")[2]
    headers = (
        ("Content-Type", wire.JSON), (wire.H_PASSED_ON, str(node.node_id)), (wire.H_LOG, node.log_id),
        (wire.H_REQUEST_ID, call.request_id), (wire.H_DEADLINE, str(max(1, int(left_s * 1000)))),
    )  # fmt: skip
    pool = Pool()
    try:
        data = encode_request(call.method, call.path, host, headers, body)
        told = await pool.send(leader.url, data, left_s + GRACE_S)
    finally:
        pool.close()
    if isinstance(told, Lost):
        at = f"node {leader.node}, which leads, at {leader.url}"
        if told.failure is Failure.NOT_SENT:
            raise ApiError(
                Code.NO_LEADER, f"this node does not lead, and cannot reach {at}: {told.reason}; ask it there"
            )
        raise ApiError(Code.LEADER_LOST, f"passed on to {at}, which did not answer: {told.reason}; look at the members")
    answer = Answer(
        service.identity, told.body, _number(told.head, wire.H_INDEX), _number(told.head, wire.H_TERM),
        status=told.head.status, content_type=told.head.content_type or wire.JSON,
    )  # fmt: skip
    return answer


def _number(head: Head, name: str) -> int:
    answered = head.headers
    text = answered.get(name.lower(), "")
    return int(text) if text.isascii() and text.isdigit() else 0
