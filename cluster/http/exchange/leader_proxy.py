"""Forwards a request that only the leader can carry out to the leader over HTTP, and returns its answer.

`raftlog.cluster.http.routes.members` uses it for changes of the members and hand-overs. Writes go by the peer links
(`raftlog.cluster.protocol.forward_frames`). A request is forwarded once: a header marks it, and a node that gets it
with the header answers itself.
"""

from __future__ import annotations

from typing import Final

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.api.headers import (
    H_DEADLINE,
    H_INDEX,
    H_LOG,
    H_PASSED_ON,
    H_PRINCIPAL,
    H_REQUEST_ID,
    H_TERM,
    H_TRACEPARENT,
    JSON,
)
from raftlog.cluster.client.aio.connection import Pool
from raftlog.cluster.client.flow import LostAnswer
from raftlog.cluster.client.http1 import ResponseHead, encode_request
from raftlog.cluster.http.exchange.answer import HttpAnswer
from raftlog.cluster.http.exchange.call import Call
from raftlog.cluster.http.exchange.service import Service

GRACE_S: Final = 0.25
"""Added to the leader's deadline, in seconds, so that the leader's own answer arrives."""


async def passed_on(service: Service, call: Call, body: bytes) -> HttpAnswer | None:
    """The leader's answer. None if this node must answer itself.

    Raises ApiError no_leader if the leader cannot be reached, or not by TLS; leader_lost if its answer does not
    come."""
    node = service.node
    leader = node.leader_hint()
    if leader is None or leader.node == node.node_id or H_PASSED_ON in call.headers:
        return None
    at = f"node {leader.node}, which leads, at {leader.url}"
    if not _is_safe(service, call, leader.url):
        raise ApiError(
            Code.NO_LEADER,
            f"this node does not lead, and forwards nothing to {at}: others could read the request there. Ask the "
            f"leader itself, and correct its URL: raftlog members address {leader.node} --url https://HOST:PORT",
        )
    left_s = max(0.001, call.deadline - service.clock())
    host = leader.url.partition("://")[2]
    headers = (
        ("Content-Type", JSON),
        (H_PASSED_ON, str(node.node_id)),
        (H_LOG, node.log_id),
        (H_REQUEST_ID, call.request_id),
        (H_DEADLINE, str(max(1, int(left_s * 1000)))),
        *_principal(service, call),
        *(() if call.traced is None else ((H_TRACEPARENT, call.traced.header),)),
    )
    pool = Pool(1, service.credentials)
    try:
        target = f"{call.path}?{call.query_text}" if call.query_text else call.path
        data = encode_request(call.method, target, host, headers, body)
        answer = await pool.send(leader.url, data, left_s + GRACE_S)
    finally:
        pool.close()
    if isinstance(answer, LostAnswer):
        if answer.failure.is_unseen:
            raise ApiError(
                Code.NO_LEADER, f"this node does not lead, and cannot reach {at}: {answer.reason}; ask it there"
            )
        raise ApiError(
            Code.LEADER_LOST, f"passed on to {at}, which did not answer: {answer.reason}; look at the members"
        )
    return HttpAnswer(
        service.identity,
        answer.body,
        _number(answer.head, H_INDEX),
        _number(answer.head, H_TERM),
        status=answer.head.status,
        content_type=answer.head.content_type or JSON,
    )


def _is_safe(service: Service, call: Call, url: str) -> bool:
    """Whether the leader's URL may get this request. An operator gave that URL: without TLS nothing proves that the
    leader listens there, and a token would go unencrypted.

    With `security.mode = both` plain URLs get requests without a token. A node without TLS got the request
    unencrypted, too."""
    credentials = service.credentials
    if credentials is None or url.startswith("https://"):
        return True
    return credentials.takes_plain and _token(call) is None


def _token(call: Call) -> str | None:
    """The header of the sender's token, also of the one behind its login: the leader does not know this node's."""
    return call.headers.get("Authorization") or (call.login and f"Bearer {call.login.token}")


def _principal(service: Service, call: Call) -> tuple[tuple[str, str], ...]:
    """The sender of the request: the token again, or the name in the client's certificate, for which this node
    vouches by its own."""
    if (text := _token(call)) is not None:
        return (("Authorization", text),)
    name = service.access.name(call)
    return ((H_PRINCIPAL, name),) if name else ()


def _number(head: ResponseHead, name: str) -> int:
    fields = head.headers
    text = fields.get(name.lower(), "")
    return int(text) if text.isascii() and text.isdigit() else 0
