"""Asks of every error code whether it can be the answer to a request whose first copy was applied.

If it can, the answer to a request with a session must not say `not_applied`. A client that believes it sends the
request under a new session, and it is applied twice. Each row below sends a request twice under one sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from raftlog.cluster.api.errors import DECIDED, ApiError, Code, Outcome, outcome_of
from raftlog.cluster.protocol.request import RequestResult
from raftlog.statemachine.access.commands import AccessAction, AccessCommand
from raftlog.statemachine.commands import Limits
from tests.cluster.fake_node import FakeNode, Served, serve
from tests.cluster.http.access_world import ADMIN, change_access, raise_version
from tests.cluster.http.http_probe import Reply, ask, exchange, of_session, open_session


@dataclass(frozen=True, slots=True)
class Sent:
    """One request of a session; `headers` beside those of the session."""

    method: str
    target: str
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    settled: int = 1
    host: str = "127.0.0.1"


PUT = Sent("PUT", "/v1/kv/k", b"v")


async def send(served: Served, session: int, sent: Sent, sequence: int = 1) -> Reply:
    """Sends it under that session and sequence."""
    named = of_session(session, sequence, sent.settled)
    return await ask(served.port, sent.method, sent.target, sent.body, named | sent.headers, sent.host)


# ---------------------------------------------------------------------------------------------------------------
# Codes that can follow a first copy that was applied.


def expire(node: FakeNode) -> None:
    """The session's time is up."""
    node.clock_ms += 10_000


def fence(node: FakeNode) -> None:
    """The node met a disk error."""
    node.is_fenced = True


def refuse(code: Code) -> Callable[[FakeNode], None]:
    """The node answers with that code, as cluster/protocol/proposals.py and cluster/replica/parts/writes.py do
    before it is queued."""

    def prepare(node: FakeNode) -> None:
        node.refusal = ApiError(code, "why")

    return prepare


def switch_on(node: FakeNode) -> None:
    """Access control begins: requests without a token are refused."""
    raise_version(node)
    change_access(node, AccessCommand(AccessAction.INIT, ADMIN))


def nothing(_: FakeNode) -> None:
    """The copy alone differs."""


@dataclass(frozen=True, slots=True)
class Second:
    """What happens between the two copies, and what differs in the second."""

    prepare: Callable[[FakeNode], None] = nothing
    sent: Sent = PUT
    limits: dict[str, int] = field(default_factory=dict)  # of the node that gets the second copy
    settle: bool = False  # the client says in between that it has the answer


AFTER_AN_APPLIED_COPY: dict[Code, Second] = {
    Code.SESSION_EXPIRED: Second(expire),
    Code.SEQUENCE_SETTLED: Second(settle=True),
    Code.BAD_REQUEST: Second(sent=Sent("PUT", "/v1/kv/k", b"v", settled=2)),
    Code.FORBIDDEN: Second(sent=Sent("PUT", "/v1/kv/k", b"v", {"Origin": "http://other.example"})),
    Code.BAD_HOST: Second(sent=Sent("PUT", "/v1/kv/k", b"v", host="proxy.example")),
    Code.UNSUPPORTED_MEDIA_TYPE: Second(sent=Sent("PUT", "/v1/kv/k", b"v", {"Content-Encoding": "gzip"})),
    Code.TOO_LARGE: Second(limits={"value_bytes_max": 1}, sent=Sent("PUT", "/v1/kv/k", b"vv")),
    Code.FOREIGN_LOG: Second(sent=Sent("PUT", "/v1/kv/k", b"v", {"Raftlog-Log": "ff" * 16})),
    Code.FENCED: Second(fence),
    Code.UNAUTHORIZED: Second(switch_on),
    Code.INTERNAL: Second(refuse(Code.INTERNAL)),
    **{
        code: Second(refuse(code))
        for code in (
            Code.BUSY,
            Code.OVER_QUOTA,
            Code.DISK_FULL,
            Code.NO_LEADER,
            Code.LEADER_LOST,
            Code.TIMEOUT,
            Code.DEADLINE,
            Code.OVERWRITTEN,
            Code.SHUTTING_DOWN,
            Code.STATES_DIFFER,
            Code.WINDOW_FULL,
            Code.SESSIONS_FULL,
            Code.UNSUPPORTED,
        )
    },
}


@pytest.mark.parametrize("fast_path", [True, False], ids=["fast", "aiohttp"])
@pytest.mark.parametrize("code", AFTER_AN_APPLIED_COPY)
async def test_a_copy_of_an_applied_request_is_never_answered_not_applied(code: Code, fast_path: bool) -> None:
    """The first copy is applied, the second is answered with the code: the outcome is unknown, and nothing is applied
    a second time. Guards: `wire.outcome_of`, the rows of session_expired and sequence_settled."""
    second = AFTER_AN_APPLIED_COPY[code]
    node = FakeNode()
    async with (
        serve(node, fast_path=fast_path) as served,
        serve(node, fast_path=fast_path, http=None, port=0, credentials=None, **second.limits) as other,
    ):
        session = await open_session(served.port, b'{"ttl_ms":1000}')
        first = Sent("PUT", "/v1/kv/k", second.sent.body)
        assert (await send(served, session, first)).json()["result"] == "applied"
        if second.settle:
            assert (await send(served, session, Sent("POST", "/v1/log", b"x", settled=2), 2)).status == 200
        second.prepare(node)
        problem = (await send(other, session, second.sent)).problem()
        assert (problem.code, problem.outcome) == (code, Outcome.UNKNOWN)
        assert node.machine.get(b"k").version == 1  # type: ignore[union-attr]


# ---------------------------------------------------------------------------------------------------------------
# Codes that the state machine decides about a sequence: they are not_applied, and stay so.


async def claim(served: Served, name: str) -> int:
    """Makes a consumer group; its generation."""
    generation: int = (await ask(served.port, "POST", f"/v1/consumers/{name}/claim")).json()["generation"]
    return generation


def commit(served: Served, name: str, generation: int) -> Sent:
    """Commits position 1 as that owner."""
    body = f'{{"generation":{generation},"position":{{"log":"{served.node.log_id}","next":{{"0":1}}}}}}'
    return Sent("PUT", f"/v1/consumers/{name}", body.encode())


Again = tuple[Sent, Callable[[], Any]]
"""The request, and a step that would make a second execution of it possible."""


async def compare_failed(served: Served, session: int) -> Again:
    """The key has not the revision."""
    revision = served.node.machine.revision + 1
    return Sent("PUT", f"/v1/kv/k?if_revision={revision}", b"v"), lambda: ask(served.port, "PUT", "/v1/kv/k", b"x")


async def refused(served: Served, session: int) -> Again:
    """A trim beyond the end."""
    append = Sent("POST", "/v1/log/trim", b'{"before":%d}' % (served.node.applied + 3))

    async def grow() -> None:
        for _ in range(5):
            await ask(served.port, "POST", "/v1/log", b"x")

    return append, grow


async def future_index(served: Served, session: int) -> Again:
    """A compaction above the store's revision."""
    revision = served.node.applied + 2
    return (
        Sent("POST", "/v1/kv/compact", b'{"revision":%d}' % revision),
        lambda: ask(served.port, "PUT", "/v1/kv/k", b"x"),
    )


async def sequence_voided(served: Served, session: int) -> Again:
    """Its sequence was made void before it came."""
    await ask(served.port, "POST", f"/v1/sessions/{session}/receipts/1/void")
    return PUT, lambda: ask(served.port, "POST", "/v1/log", b"x")


async def sequence_reused(served: Served, session: int) -> Again:
    """The sequence belongs to another request."""
    assert (await send(served, session, Sent("POST", "/v1/log", b"other"))).status == 200
    return PUT, lambda: ask(served.port, "POST", "/v1/log", b"x")


async def permission_lost(served: Served, session: int) -> Again:
    """Access control begins after it was taken, and ends again."""
    apply: Callable[..., list[RequestResult]] = served.node.submit_now

    async def permit() -> None:
        change_access(served.node, AccessCommand(AccessAction.DISABLE))

    def first_set_up(*blocks: tuple[bytes, int]) -> list[RequestResult]:
        served.node.submit_now = apply
        switch_on(served.node)
        return apply(*blocks)

    served.node.submit_now = first_set_up
    return PUT, permit


async def consumer_not_found(served: Served, session: int) -> Again:
    """No such group, and then there is one."""
    return commit(served, "g", 5), lambda: claim(served, "g")


async def consumer_fenced(served: Served, session: int) -> Again:
    """Somebody else owns the group, which then goes; the generation is nobody's."""
    generation = await claim(served, "g")
    return commit(served, "g", generation + 1), lambda: ask(served.port, "DELETE", "/v1/consumers/g")


async def consumers_full(served: Served, session: int) -> Again:
    """As many groups as there may be, and then one less."""
    await claim(served, "only")
    return Sent("POST", "/v1/consumers/g/claim"), lambda: ask(served.port, "DELETE", "/v1/consumers/only")


DECISIONS = {
    Code.COMPARE_FAILED: compare_failed,
    Code.REFUSED: refused,
    Code.FUTURE_INDEX: future_index,
    Code.SEQUENCE_VOIDED: sequence_voided,
    Code.SEQUENCE_REUSED: sequence_reused,
    Code.PERMISSION_LOST: permission_lost,
    Code.CONSUMER_NOT_FOUND: consumer_not_found,
    Code.CONSUMER_FENCED: consumer_fenced,
    Code.CONSUMERS_FULL: consumers_full,
}


@pytest.mark.parametrize("code", DECISIONS)
async def test_an_outcome_of_the_state_machine_is_final(code: Code) -> None:
    """The request is answered with the code; what stood in its way goes; its copy is answered alike, and nothing is
    applied by either. So `not_applied` is true of every copy. Guard: `SessionTable.keep`."""
    async with serve(FakeNode(Limits(consumers_max=1))) as served:
        session = await open_session(served.port, b'{"ttl_ms":1000}')
        sent, make_possible = await DECISIONS[code](served, session)
        decided: set[object] = set()
        for _ in range(2):
            before = served.node.machine.revision, served.node.machine.oldest, served.node.machine.get(b"k")
            problem = (await send(served, session, sent)).problem()
            assert (problem.code, problem.outcome) == (code, Outcome.NOT_APPLIED)
            decided.add((problem.index, problem.revision))
            assert before == (served.node.machine.revision, served.node.machine.oldest, served.node.machine.get(b"k"))
            await make_possible()
        assert len(decided) == 1 or code in (Code.SEQUENCE_VOIDED, Code.SEQUENCE_REUSED), (
            "the copy gets the first answer"
        )


# ---------------------------------------------------------------------------------------------------------------
# Codes that no write gets.

NO_WRITE: dict[Code, str] = {
    Code.NOT_FOUND: "a path that is no route was not applied either; another version may know it, so unknown",
    Code.METHOD_NOT_ALLOWED: "as not_found",
    Code.NOT_ACCEPTABLE: "the parameter format of reads",
    Code.KEY_NOT_FOUND: "reads: a delete of a missing key is applied",
    Code.COMPACTED: "reads: a trim or compaction of gone records is applied",
    Code.INSIDE_ENTRY: "digests",
    Code.MEMBERS_CHANGING: "POST /v1/members and /v1/leader/transfer take no session",
    Code.MEMBERS_REFUSED: "as members_changing",
}


def test_every_code_stands_in_one_outcome_table() -> None:
    """A new code belongs into one of the three tables. Only codes whose outcome is proved to stay may say not_applied
    to a request with a session, and `wire.DECIDED` holds exactly those.
    """
    tables = [*AFTER_AN_APPLIED_COPY, *DECISIONS, *NO_WRITE]
    assert sorted(tables) == sorted(Code)
    assert set(DECISIONS) == DECIDED
    told = {code: outcome_of(code, has_session=True) for code in Code}
    assert {code for code, outcome in told.items() if outcome is not Outcome.UNKNOWN} == set(DECISIONS)


@pytest.mark.parametrize("fast_path", [True, False], ids=["fast", "aiohttp"])
async def test_a_copy_by_any_way_is_the_same_request(fast_path: bool) -> None:
    """A copy sent in chunks, after Expect, or through the other path has the same bytes in the log: it is repeated, not
    refused as another request under the same sequence."""
    node = FakeNode()
    async with serve(node, fast_path=fast_path) as served, serve(node, fast_path=not fast_path) as other:
        session = await open_session(served.port, b'{"ttl_ms":1000}')
        for sequence, sent in enumerate((PUT, Sent("POST", "/v1/log", b"x"), Sent("DELETE", "/v1/kv/k")), start=1):
            first = (await send(served, session, sent, sequence)).json()
            assert first["result"] == "applied"
            for server in (served, other):
                for more in ({}, {"Connection": "close"}, {"Accept": "application/json"}):
                    copy = Sent(sent.method, sent.target, sent.body, more)
                    assert (await send(server, session, copy, sequence)).json() == {**first, "result": "repeated"}


UNREAD = {
    "no connection is free": (b"", {"connections_max": 0}, Code.BUSY),
    "the head does not end": (b"PUT /v1/kv/k HTTP/1.1\r\nHost: loc", {"head_timeout_ms": 50}, Code.DEADLINE),
    "the head is malformed": (b"PUT /v1/kv/k HTTP/1.1\r\nno colon\r\n\r\n", {}, Code.BAD_REQUEST),
    "the head is too long": (b"PUT /" + b"k" * 40_000 + b" HTTP/1.1\r\n\r\n", {}, Code.TOO_LARGE),
    "the first chunk is malformed": (
        b"PUT /v1/kv/k HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        {},
        Code.BAD_REQUEST,
    ),
}
"""Bytes that the node answers before it has read a request from them: what it does not see may name a session."""


@pytest.mark.parametrize("what", UNREAD)
async def test_an_answer_to_a_request_that_was_not_read_says_unknown(what: str) -> None:
    """It may be a copy of an applied request: the node does not know whether it names a session. Guard: the gate's
    `problem` without a call."""
    data, limits, code = UNREAD[what]
    async with serve(None, http=None, fast_path=True, port=0, credentials=None, **limits) as served:
        problem = (await exchange(served.port, data)).problem()
        assert (problem.code, problem.outcome) == (code, Outcome.UNKNOWN)


async def test_reads_that_name_a_session_say_not_applied() -> None:
    """A read changes nothing, whatever headers it has."""
    async with serve() as served:
        reply = await ask(served.port, "GET", "/v1/kv/none", headers={"Raftlog-Session": "3", "Raftlog-Sequence": "1"})
        assert (reply.problem().code, reply.problem().outcome) == (Code.KEY_NOT_FOUND, Outcome.NOT_APPLIED)


async def test_without_a_session_each_sending_is_a_request_of_its_own() -> None:
    """`busy` was not applied: nothing else was sent in its name."""
    async with serve() as served:
        served.node.refusal = ApiError(Code.BUSY, "why")
        assert (await ask(served.port, "PUT", "/v1/kv/k", b"v")).problem().outcome is Outcome.NOT_APPLIED
