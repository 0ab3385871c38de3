"""`/v1/sessions` over the wire: exactly once, receipts, and making "not seen" final."""

from __future__ import annotations

import pytest

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.api.values import LeaderHint
from raftlog.cluster.http.routes.table import ROUTES, Route
from raftlog.statemachine.access.commands import AccessAction, AccessCommand
from raftlog.statemachine.commands import Limits
from raftlog.statemachine.versions import CLUSTER_VERSION
from tests.cluster.fake_node import FakeNode, Served, serve
from tests.cluster.http.access_world import AccessWorld, valid
from tests.cluster.http.http_probe import Reply, ask, of_session, open_session


async def test_session_id_is_the_index_of_its_registration(served: Served) -> None:
    """An empty body asks for the defaults; ttl_ms may be chosen within the cluster's bounds."""
    answer = (await ask(served.port, "POST", "/v1/sessions")).json()
    assert answer == {"session": 3, "ttl_ms": 600_000, "index": 3, "term": 1, "outcome": "applied"}
    assert (await ask(served.port, "POST", "/v1/sessions", b'{"ttl_ms":5000}')).json()["ttl_ms"] == 5000
    too_short = (await ask(served.port, "POST", "/v1/sessions", b'{"ttl_ms":1}')).problem()
    assert (too_short.code, "session_ttl_min_ms" in too_short.message) == (Code.REFUSED, True)
    for body in (b'{"ttl":1}', b'{"ttl_ms":-1}', b"[]", b"null"):
        assert (await ask(served.port, "POST", "/v1/sessions", body)).problem().code is Code.BAD_REQUEST


async def test_repeated_request_gets_the_first_answer(served: Served) -> None:
    """Append, put, delete and transaction: sent again, the same indexes and revision come back, as `repeated`."""
    session = await open_session(served.port)
    requests: list[tuple[str, str, bytes | None]] = [
        ("POST", "/v1/log", b"x"),
        ("PUT", "/v1/kv/k?if_revision=0", b"1"),
        ("DELETE", "/v1/kv/k", None),
        ("POST", "/v1/kv/txn", b'{"then":[{"operation":"put","key":"t","value":"1"},{"operation":"get","key":"t"}]}'),
        ("DELETE", "/v1/kv?prefix=", None),
    ]
    for sequence, (method, target, body) in enumerate(requests, start=1):
        first = (await ask(served.port, method, target, body, of_session(session, sequence))).json()
        again = (await ask(served.port, method, target, body, of_session(session, sequence))).json()
        assert first["result"] == "applied"
        assert again == {**first, "result": "repeated"}
    assert served.node.machine.revision == 5


async def test_an_unknown_session_is_refused(served: Served) -> None:
    """A session that expired, was closed or never was: this copy did not happen, an earlier one may have."""
    session = await open_session(served.port)
    done = (await ask(served.port, "DELETE", f"/v1/sessions/{session}")).json()
    assert (done["session"], done["outcome"]) == (session, "applied")
    for method, target in (
        ("PUT", "/v1/kv/k"),
        ("GET", f"/v1/sessions/{session}/receipts/1"),
        ("POST", f"/v1/sessions/{session}/receipts/1/void"),
        ("POST", f"/v1/sessions/{session}/keepalive"),
        ("DELETE", f"/v1/sessions/{session}"),
    ):
        sent = of_session(session, 1) if method == "PUT" else {}
        problem = (await ask(served.port, method, target, b"" if method == "PUT" else None, sent)).problem()
        assert (problem.code, problem.outcome) == (Code.SESSION_EXPIRED, "unknown"), target


async def test_keepalive_puts_off_expiry(served: Served) -> None:
    """By the cluster clock: kept alive it lives on, else it is gone."""
    session = await open_session(served.port, b'{"ttl_ms":1000}')
    for clock_ms in (900, 1800):
        served.node.clock_ms = clock_ms
        assert (await ask(served.port, "POST", f"/v1/sessions/{session}/keepalive")).status == 200
    served.node.clock_ms = 2800
    assert (await ask(served.port, "POST", f"/v1/sessions/{session}/keepalive")).status == 409


async def receipt(served: Served, session: int, sequence: int, void: bool = False) -> dict[str, object]:
    """The receipt, after making the sequence void if asked to."""
    target = f"/v1/sessions/{session}/receipts/{sequence}"
    reply = await ask(served.port, "POST" if void else "GET", target + ("/void" if void else ""))
    assert reply.status == 200, reply
    found: dict[str, object] = reply.json()
    return found


async def test_receipts_show_the_outcome_of_a_sequence(served: Served) -> None:
    """applied with its indexes and result, not_seen, voided, settled."""
    session = await open_session(served.port)
    await ask(served.port, "POST", "/v1/log", b"x", of_session(session, 1))
    await ask(served.port, "PUT", "/v1/kv/k?if_revision=9", b"x", of_session(session, 2))
    told = await receipt(served, session, 1)
    assert (told["state"], told["first"], told["last"], told["result"]) == ("applied", 4, 4, "applied")
    assert (await receipt(served, session, 2))["result"] == "compare_failed"
    assert (await receipt(served, session, 3))["state"] == "not_seen"
    assert (await receipt(served, session, 3, void=True))["state"] == "voided"
    assert (await receipt(served, session, 3))["state"] == "voided"
    assert (await receipt(served, session, 3, void=True))["state"] == "voided"
    assert (await receipt(served, session, 1, void=True))["state"] == "applied", "it cannot be made void any more"
    await ask(served.port, "POST", "/v1/log", b"y", of_session(session, 4, settled=4))
    assert (await receipt(served, session, 1))["state"] == "settled"


async def test_full_window_and_full_table() -> None:
    """More open sequences, or sessions, than the cluster allows: busy by name, nothing evicted."""
    async with serve(FakeNode(Limits(session_window_max=2, sessions_max=1))) as served:
        session = await open_session(served.port)
        for sequence in (1, 2):
            await ask(served.port, "POST", "/v1/log", b"x", of_session(session, sequence))
        full = (await ask(served.port, "POST", "/v1/log", b"x", of_session(session, 3))).problem()
        assert (full.code, full.status, "Raftlog-Settled" in full.message) == (Code.WINDOW_FULL, 429, True)
        assert (await ask(served.port, "POST", "/v1/log", b"x", of_session(session, 3, settled=2))).status == 200
        assert (await ask(served.port, "POST", "/v1/sessions")).problem().code is Code.SESSIONS_FULL
        assert (await receipt(served, session, 2))["state"] == "applied"


async def test_a_share_that_is_used_up_is_named_with_its_numbers() -> None:
    """What the user has, of how much in all, by which limit, and what to do; another user is served."""
    async with AccessWorld() as world:
        world.node.machine.limits = Limits(sessions_max=8, session_answers_bytes_max=400, consumers_max=8)
        for name in ("ada", "ben"):
            world.user(name, "append on log", "write on groups:*")
        session = (await world.ask("ada", "POST", "/v1/sessions")).json()["session"]
        told = [await world.ask("ada", "POST", "/v1/sessions")]
        for number in (1, 2, 3):
            fields = [f"{name}: {value}" for name, value in of_session(session, number).items()]
            told.append(await world.ask("ada", "POST", "/v1/log", *fields, body=b"x"))
        told += [await world.ask("ada", "POST", f"/v1/consumers/{group}/claim") for group in ("g", "h")]
        assert [reply.status for reply in told] == [429, 200, 200, 429, 200, 429]
        problems = [reply.problem() for reply in told if reply.status == 429]
        assert [problem.code for problem in problems] == [Code.SESSIONS_FULL, Code.WINDOW_FULL, Code.CONSUMERS_FULL]
        sessions, answers, groups = (problem.message for problem in problems)
        assert "this user has its share of sessions: 1 of the 8 in all (sessions_max): close some" in sessions
        assert "50 of the 400 in all (session_answers_bytes_max): send Raftlog-Settled" in answers
        assert "this user has its share of consumer groups: 1 of the 8 in all (consumers_max): delete some" in groups
        assert (await world.ask("ben", "POST", "/v1/sessions")).status == 200


WRITES = [route for route in ROUTES if route.method not in ("GET", "OPTIONS")]


@pytest.mark.parametrize("route", WRITES, ids=[f"{route.method} {route.pattern}" for route in WRITES])
async def test_every_write_that_names_a_session_is_applied_once_or_refused(served: Served, route: Route) -> None:
    """A route that carries out every copy of a request must not accept a session: the client believes that a copy is
    safe. Guard: `Api._check_no_session`."""
    session = await open_session(served.port)
    target, body = valid(route.method, route.pattern, session)
    named = of_session(session, 1)
    if route.pattern == "/v1/kv/batch":
        del named["Raftlog-Sequence"]
        body = b'{"writes":[{"key":"a","value":"v","sequence":1}]}'
    machine = served.node.machine
    machine.version = CLUSTER_VERSION
    for action in (AccessAction.INIT, AccessAction.DISABLE):  # set up, and off again: no request names a user
        assert machine.access.execute(AccessCommand(action, "root"), 0) is None
    before = served.node.applied
    first, copy = [await ask(served.port, route.method, target, body, named) for _ in range(2)]
    if first.status == 200:
        assert b"repeated" in copy.body or first.json()["index"] == copy.json()["index"], (first, copy)
    else:
        assert "takes no session" in first.problem().message
        assert (served.node.applied, served.node.changes, served.node.transfers) == (before, [], [])


@pytest.mark.parametrize("code", [Code.LEADER_LOST, Code.TIMEOUT])
async def test_pitfall_30_lost_leader_leaves_the_outcome_unknown(served: Served, code: Code) -> None:
    """A write that was queued when its leader was lost is `unknown`, never failed: it may have happened, and the
    receipt of its sequence shows it. Guard: `wire.ERRORS`, from which alone an answer takes its outcome.
    """
    session = await open_session(served.port)
    served.node.refusal = ApiError(code, "node 1: gone")
    reply: Reply = await ask(served.port, "PUT", "/v1/kv/k", b"1", of_session(session, 1))
    problem = reply.problem()
    assert (problem.status, problem.outcome, problem.retryable) == (504, "unknown", True)
    assert problem.message == "node 1: gone"
    served.node.refusal = None
    assert (await receipt(served, session, 1))["state"] == "not_seen"


async def test_pitfall_83_hints_are_returned_never_followed(served: Served) -> None:
    """No redirect: a refusal names the leader that this node knows now, or none, and the client decides. Guard:
    `make_problem` asks the node at that moment; no answer has a 3xx status or a Location."""
    served.node.refusal = ApiError(Code.NO_LEADER, "no node could take it")
    reply = await ask(served.port, "PUT", "/v1/kv/k", b"1")
    assert (reply.status, reply.problem().leader, "location" in reply.headers) == (503, None, False)
    served.node.leader = LeaderHint(2, "http://127.0.0.1:2")
    assert (await ask(served.port, "PUT", "/v1/kv/k", b"1")).problem().leader == LeaderHint(2, "http://127.0.0.1:2")
