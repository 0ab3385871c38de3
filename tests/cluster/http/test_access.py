"""Access control at the HTTP API: what each user may do on each route, on the fast path and through aiohttp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from raftlog.cluster.admission.access import Need
from raftlog.cluster.http.routes.table import ROUTES
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.log_file import LogSink
from raftlog.cluster.security.names import Holder, HolderKind
from raftlog.cluster.security.tokens import make_token
from raftlog.statemachine.access.commands import AccessAction
from tests.cluster.http.access_world import AccessWorld, txn, valid
from tests.cluster.http.fast.fast_wire import request, turns
from tests.cluster.http.http_probe import Reply
from tests.support import wait_until_async


async def of_route(world: AccessWorld, user: str | None, method: str, pattern: str) -> Any:
    """One valid request to that route."""
    target, body = valid(method, pattern)
    return await world.ask(user, method, target, body=body)


async def test_every_route_asks_who_sends_the_request(world: AccessWorld) -> None:
    """Without a token only probes are answered; the answer names the scheme. With the token of a user without any
    grant, only routes that show nothing of the state are; a refusal names the grant. An admin passes everywhere."""
    world.user("nobody")
    open_ones = 0
    for route in ROUTES:
        if route.pattern == "/v1/login":  # its token is in the body: tests/cluster/http/test_login.py
            continue
        unknown = await of_route(world, None, route.method, route.pattern)
        if route.need is Need.NOTHING:
            assert unknown.status in (200, 503), route
            continue
        assert unknown.status == 401, route
        assert unknown.headers["www-authenticate"] == 'Bearer realm="raftlog"'
        assert unknown.problem().code == "unauthorized"
        known = await of_route(world, "nobody", route.method, route.pattern)
        if route.need is Need.PRINCIPAL and "sessions" not in route.pattern and route.method == "GET":
            open_ones += 1
            assert known.status == 200, route
        elif "/v1/sessions/" in route.pattern:
            assert known.problem().code == "session_expired", route
        elif route.pattern == "/v1/consumers":
            assert json.loads(known.body)["consumers"] == []
        else:
            assert known.status == 403, (route, known.body)
            assert (known.problem().missing or "may write nothing") in known.problem().message
            assert known.problem().outcome == "not_applied"
        admin = await of_route(world, "root", route.method, route.pattern) if "watch" not in route.pattern else None
        assert admin is None or admin.status not in (401, 403), (route, admin.body)
    assert open_ones == 7


_EXPLAIN = ("GET /v1/explain/leaderless", "GET /v1/explain/{index}")
CLUSTER_GRANTS = {  # of each user: the routes that need a grant on the cluster, and are open to it
    "watch": {"GET /metrics", "GET /v1/overview", "GET /v1/events", "GET /v1/history", *_EXPLAIN},
    "members": {"POST /v1/members"},
    "access": {"GET /v1/access", "POST /v1/access"},
    "operate": {
        *("GET /metrics", "GET /v1/overview", "GET /v1/events", "GET /v1/history", "GET /v1/backup", *_EXPLAIN),
        *("POST /v1/log/trim", "POST /v1/kv/compact", "POST /v1/leader/transfer"),
    },
}


@pytest.mark.parametrize("verb", CLUSTER_GRANTS)
async def test_each_grant_on_the_cluster_opens_its_routes_and_no_other(world: AccessWorld, verb: str) -> None:
    """A monitor reads metrics, explanations, members and the whole status but the digest of the state. It takes no
    backup, and trims, compacts and hands over nothing. An operator may do both."""
    world.user("ada", f"{verb} on cluster")
    await world.ask("root", "POST", "/v1/consumers/billing/claim", body=b'{"owner":"o"}')
    await world.ask("root", "PUT", "/v1/kv/x", body=b"v")
    opened = set()
    for route in ROUTES:
        if f"{route.method} {route.pattern}" in set().union(*CLUSTER_GRANTS.values()):
            answer = await of_route(world, "ada", route.method, route.pattern)
            if answer.status != 403:
                opened.add(f"{route.method} {route.pattern}")
    assert opened == CLUSTER_GRANTS[verb]
    assert (await world.ask("ada", "GET", "/v1/members")).status == 200
    status = json.loads((await world.ask("ada", "GET", "/v1/status")).body)
    consumers = json.loads((await world.ask("ada", "GET", "/v1/consumers")).body)["consumers"]
    watches = verb in ("watch", "operate")
    assert [each["name"] for each in consumers] == ["billing"] * watches
    assert [each["name"] for each in status["consumers"]] == ["billing"] * watches
    assert (status["state"]["count"] > 0) == (verb == "operate")


PUT = {"operation": "put", "key": "a/1", "value": "v"}
NEARLY = [
    ("read on keys:orders/*", "GET", "orders", False),
    ("read on keys:orders/*", "GET", "orders0", False),
    ("read on keys:orders/*", "GET", "orders/", True),
    ("read on keys:orders/*", "GET", "orders/1", True),
    ("read on keys:orders/*", "GET", "orders.", False),
    ("read on keys:orders/*", "GET", "%6Frders/1", True),
    ("read on keys:orders/*", "GET", "orders%2F1", True),
    ("read on keys:orders/*", "GET", "./orders/1", False),
    ("read on keys:orders/*", "GET", "orders/../secret", True),
    ("read on keys:orders/*", "GET", "Orders/1", False),
    ("read on keys:orders/*", "PUT", "orders/1", False),
    ("read on keys:config", "GET", "config", True),
    ("read on keys:config", "GET", "config%00", False),
    ("read on keys:config", "GET", "confi", False),
    ("write on keys:a..m", "PUT", "a", True),
    ("write on keys:a..m", "PUT", "lzz", True),
    ("write on keys:a..m", "PUT", "m", False),
    ("write on keys:a..m", "DELETE", "b", True),
    ("write on keys:a..m", "GET", "b", False),
    ("write on keys:%FF*", "PUT", "%FF%FF", True),
    ("write on keys:%FF*", "PUT", "%FE", False),
]


@pytest.mark.parametrize(("grant", "method", "key", "is_allowed"), NEARLY)
async def test_a_grant_allows_its_keys_and_no_others(grant: str, method: str, key: str, is_allowed: bool) -> None:
    """Prefixes that nearly match, escaped spellings of one key (which are the same key), paths that look like ways up
    (which they are not). A refused reader gets the same answer whether the key exists or not."""
    async with AccessWorld() as world:
        world.user("u", grant)
        body = b"v" if method == "PUT" else None
        before = await world.ask("u", method, f"/v1/kv/{key}", body=body)
        assert (before.status != 403) is is_allowed, before.body
        await world.ask("root", "PUT", f"/v1/kv/{key}", body=b"secret")
        after = await world.ask("u", method, f"/v1/kv/{key}", body=body)
        assert (after.status != 403) is is_allowed
        if not is_allowed:
            assert before.problem().message == after.problem().message
            assert (before.problem().revision, after.problem().revision) == (None, None)


@pytest.mark.parametrize(
    ("method", "target", "body", "is_allowed"),
    [
        ("GET", "/v1/kv?prefix=a/", None, True),
        ("GET", "/v1/kv?prefix=a", None, False),
        ("GET", "/v1/kv?start=a/&end=a0", None, True),
        ("GET", "/v1/kv?start=a/&end=a0a", None, False),
        ("GET", "/v1/kv?start=a/", None, False),
        ("GET", "/v1/kv?prefix=", None, False),
        ("GET", "/v1/kv/a/1?versions=5", None, True),
        ("GET", "/v1/kv/b?versions=5", None, False),
        ("DELETE", "/v1/kv?prefix=a/", None, True),
        ("DELETE", "/v1/kv?prefix=", None, False),
        ("POST", "/v1/kv/txn", txn(PUT), True),
        ("POST", "/v1/kv/txn", txn(PUT, {"operation": "get", "key": "b"}), False),
        ("POST", "/v1/kv/txn", txn(PUT, {"operation": "delete", "key": "b"}), False),
        ("POST", "/v1/kv/txn", txn({"operation": "get", "key": "a/", "end": "a0"}), True),
        ("POST", "/v1/kv/txn", txn({"operation": "get", "key": "a/", "end": ""}), False),
        (
            "POST",
            "/v1/kv/txn",
            txn(compare=[{"key": "b", "target": "version", "operator": "=", "number": 0}]),
            False,
        ),
        ("POST", "/v1/kv/batch", b'{"writes":[{"key":"a/1","value":"v"}]}', True),
        ("POST", "/v1/kv/batch", b'{"writes":[{"key":"a/1","value":"v"},{"key":"b","value":"v"}]}', False),
        ("GET", "/v1/watch?prefix=b", None, False),
        ("GET", "/v1/watch", None, False),
        ("POST", "/v1/log?key=a/1", b"v", True),
        ("POST", "/v1/log?key=b", b"v", False),
        ("POST", "/v1/log", b"v", False),
        ("GET", "/v1/log", None, False),
        ("GET", "/v1/consumers/mine-1", None, True),
        ("GET", "/v1/consumers/other", None, False),
        ("POST", "/v1/consumers/mine-1/claim", b"", True),
        ("POST", "/v1/consumers/mine/claim", b"", False),
        ("POST", "/v1/sessions", b"", True),
        ("GET", "/metrics", None, False),
        ("GET", "/v1/backup", None, False),
        ("POST", "/v1/snapshot", b"", False),
        ("GET", "/v1/digest", None, False),
        ("GET", "/v1/access/can?user=root&grant=read+on+log", None, False),
    ],
)
async def test_ranges_transactions_and_groups_are_allowed_whole_or_not_at_all(
    method: str, target: str, body: bytes | None, is_allowed: bool
) -> None:
    """A part that is not permitted refuses the whole request, and nothing of it is applied."""
    async with AccessWorld() as world:
        world.user(
            "u",
            "read on keys:a/*",
            "write on keys:a/*",
            "append on keys:a/*",
            "read on groups:mine-*",
            "write on groups:mine-*",
        )
        before = world.node.applied
        reply = await world.ask("u", method, target, body=body)
        assert (reply.status != 403) is is_allowed, reply.body
        assert is_allowed or world.node.applied == before


async def test_a_reader_of_the_log_sees_only_what_it_may_read(world: AccessWorld) -> None:
    """Pages, streams and msgpack leave out records of other keys, and go on behind them. Whole segments are refused.
    A reader without a filter at the end of the log does not share its slices."""
    world.user("part", "read on log", "read on keys:a/*")
    world.user("all", roles=("reader",))
    world.user("keys", "read on keys:*")
    for key in ("a/1", "b", "a/2"):
        await world.ask("root", "PUT", f"/v1/kv/{key}", body=b"of " + key.encode())
    await world.ask("root", "POST", "/v1/log?key=b", body=b"keyed")
    await world.ask("root", "POST", "/v1/log", body=b"plain")
    await world.ask("root", "DELETE", "/v1/kv?prefix=")
    body = txn({"operation": "put", "key": "a/3", "value": "x"}, {"operation": "put", "key": "b", "value": "y"})
    await world.ask("root", "POST", "/v1/kv/txn", body=body)
    page = json.loads((await world.ask("part", "GET", "/v1/log?from=1")).body)
    assert [record.get("value") for record in page["records"]] == ["of a/1", "of a/2", "plain"]
    assert page["next"] == world.node.applied + 1
    whole = json.loads((await world.ask("all", "GET", "/v1/log?from=1")).body)
    assert len(whole["records"]) == 7
    for target in ("/v1/log?from=1&format=ndjson", "/v1/log?from=1&format=msgpack", "/v1/log?from=1&internal=true"):
        reply = await world.ask("part", "GET", target)
        assert reply.status == 200
        assert b"of a/2" in reply.body
        for hidden in (b"of b", b"keyed", b"root", b"set_user"):
            assert hidden not in reply.body, target
    assert (await world.ask("part", "GET", "/v1/log?format=raw")).problem().missing == "read on keys:*"
    assert (await world.ask("all", "GET", "/v1/log?format=raw&from=1")).status == 200
    assert (await world.ask("keys", "GET", "/v1/log")).problem().missing == "read on log"


async def test_internal_records_name_their_user_wherever_a_page_begins(world: AccessWorld) -> None:
    """Records of plain values, which are shown by a shorter way, and others. A page that begins at a record shows it as
    a page from 1 on does. A reader without `operate on cluster` sees no users."""
    world.user("part", "read on log", "read on keys:*")
    begin = world.node.applied + 1
    for method, target in (("POST", "/v1/log"), ("PUT", "/v1/kv/a"), ("POST", "/v1/log?key=a"), ("POST", "/v1/log")):
        await world.ask("root", method, target, body=b"v")
    whole = json.loads((await world.ask("root", "GET", "/v1/log?from=1&internal=true")).body)["records"]
    assert [record.get("principal") for record in whole[begin - 1 :]] == ["root"] * 4
    for record in whole:
        page = await world.ask("root", "GET", f"/v1/log?from={record['index']}&limit=1&internal=true")
        assert json.loads(page.body)["records"] == [record]
    seen = json.loads((await world.ask("part", "GET", "/v1/log?from=1&internal=true")).body)["records"]
    assert len(seen) >= 4
    assert not any("principal" in record for record in seen)


@pytest.mark.parametrize("fast_path", [True, False], ids=["fast", "aiohttp"])
async def test_a_node_that_catches_up_takes_no_write_by_permissions_that_it_does_not_know(
    fast_path: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node with TLS has applied nothing of what its disk holds: by its state access control is off. Before its first
    write, it asks the leader how far the log goes. So a write carries its user, and one without a user is refused."""
    async with AccessWorld(fast_path=fast_path, is_set_up=False) as world:
        monkeypatch.setattr(world.service.access, "is_behind", True)
        token = world.tokens["root"] = make_token()
        before = world.node.read_barrier

        def catch_up(deadline: float) -> Any:
            if not world.node.machine.access.is_on:
                world.change(AccessAction.INIT, name="root", token=token.identifier, token_hash=token.digest)
            return before(deadline)

        monkeypatch.setattr(world.node, "read_barrier", catch_up)
        assert (await world.ask(None, "POST", "/v1/leader/transfer")).status == 401
        assert (await world.ask("root", "POST", "/v1/log", body=b"v")).status == 200
        last = json.loads((await world.ask("root", "GET", "/v1/log?from=1&internal=true")).body)["records"][-1]
        assert (last["value"], last["principal"]) == ("v", "root")
        assert world.node.barriers == 2, "one before the first write, and one of the read"


async def test_readers_at_the_end_of_the_log_share_no_slice_across_permissions() -> None:
    """Two followers wait at the end: the one that may read everything is served first, and the other still gets only
    its own part."""
    async with AccessWorld() as world:
        world.user("part", "read on log", "read on keys:a/*")
        world.user("all", roles=("reader",))
        wires = {}
        for user in ("all", "part"):
            wires[user] = wire = world.connect()
            await wire.feed(request("GET", "/v1/log?follow=true&format=ndjson", *world.sign(user)))
        for key in ("a/1", "b"):
            await world.ask("root", "PUT", f"/v1/kv/{key}", body=b"of " + key.encode())
        await wait_until_async(lambda: b"of b" in wires["all"].written, what="the record")
        await wait_until_async(lambda: b"of a/1" in wires["part"].written, what="the record")
        await turns()
        assert b"of b" not in wires["part"].written


async def as_holder(
    world: AccessWorld, holder: Holder, method: str, target: str, *headers: str, body: bytes | None = None
) -> Reply:
    """The answer to a request on a connection whose client has shown that certificate."""
    wire = world.connect()
    cast(Any, wire.protocol).holder = holder
    return await world.on(wire, None, method, target, *headers, body=body)


@pytest.mark.parametrize("world", [True], indirect=True)  # aiohttp's connection alone reads it from the socket
async def test_certificates_name_users_and_nodes_pass_requests_on(world: AccessWorld) -> None:
    """A certificate's name is a user; one without a user may do nothing. A node's own certificate may operate, and may
    name the user whose request it passes on; a client's may not."""
    world.user("alice", "write on keys:*", "members on cluster")

    alice, node = Holder("", HolderKind.CLIENT, "alice"), Holder("", HolderKind.NODE, "1")
    assert (await as_holder(world, alice, "PUT", "/v1/kv/a", body=b"v")).status == 200
    assert (await as_holder(world, alice, "GET", "/v1/status")).status == 200
    for name, word in (("bob", "no user 'bob'"), ("jwt:x", "cannot be that of a user"), ("raftlog:node", "cannot be")):
        refused = await as_holder(world, Holder("", HolderKind.CLIENT, name), "PUT", "/v1/kv/a", body=b"v")
        assert (refused.status, word in refused.problem().message) == (403, True)
    assert (await as_holder(world, node, "GET", "/metrics")).status == 200
    assert (await as_holder(world, node, "PUT", "/v1/kv/a", body=b"v")).status == 403
    remove = b'{"change":"remove","node":2}'
    assert (await as_holder(world, node, "POST", "/v1/members", body=remove)).status == 403
    passed = ("Raftlog-Passed-On: 1", "Raftlog-Principal: alice")
    assert (await as_holder(world, node, "POST", "/v1/members", *passed, body=remove)).status == 200
    assert (await as_holder(world, alice, "POST", "/v1/members", *passed, body=remove)).status == 403
    assert (await as_holder(world, node, "POST", "/v1/members", passed[1], body=remove)).status == 403
    assert (
        await as_holder(world, node, "PUT", "/v1/kv/a", *passed, body=b"v")
    ).status == 403  # no such request is passed on


@pytest.mark.parametrize("world", [True], indirect=True)
async def test_the_certificate_of_a_node_counts_while_it_is_a_member(world: AccessWorld) -> None:
    """A removed node keeps its certificate, which names neither itself nor a user any more; nor makes it an admin."""
    world.user("alice", "write on keys:*", "members on cluster")
    removed = Holder("", HolderKind.NODE, "2")
    passed = ("Raftlog-Passed-On: 2", "Raftlog-Principal: alice")
    body = b'{"change":"remove","node":2}'
    for method, target, headers in (
        ("GET", "/metrics", ()),
        ("GET", "/v1/backup", ()),
        ("POST", "/v1/members", passed),
    ):
        answer = await as_holder(world, removed, method, target, *headers, body=body if method == "POST" else None)
        assert answer.status == 403
        assert "no member" in answer.problem().message


async def test_the_first_admin_is_made_once() -> None:
    """Over HTTP. Then access control is on, and the same request is refused. It may be switched off and on again."""
    async with AccessWorld(is_set_up=False) as world:
        assert (await world.ask(None, "PUT", "/v1/kv/a", body=b"v")).status == 200
        token = world.tokens["root"] = make_token()
        first = json.dumps(
            {"action": "init", "name": "root", "token": token.identifier, "token_hash": token.digest.hex()}
        ).encode()
        assert (await world.ask(None, "POST", "/v1/access", body=first)).status == 200
        assert (await world.ask(None, "PUT", "/v1/kv/a", body=b"v")).status == 401
        assert (await world.ask(None, "POST", "/v1/access", body=first)).status == 401
        assert "once" in (await world.ask("root", "POST", "/v1/access", body=first)).problem().message
        shown = json.loads((await world.ask("root", "GET", "/v1/access")).body)
        assert shown["users"] == [{"name": "root", "roles": ["admin"], "blocked": False}]
        assert token.digest.hex() not in json.dumps(shown)
        assert (await world.ask("root", "POST", "/v1/access", body=b'{"action":"disable"}')).status == 200
        assert (await world.ask(None, "PUT", "/v1/kv/a", body=b"v")).status == 200


async def test_a_decision_is_explained(world: AccessWorld) -> None:
    """Its own decisions to any user, others' to users that may change permissions."""
    world.user("u", "read on keys:a/*", roles=("operator",))
    can = "/v1/access/can?grant="
    told = json.loads((await world.ask("u", "GET", f"{can}read+on+keys:a/b*")).body)
    assert (told["user"], told["allowed"], told["roles"]) == ("u", True, ["of-u"])
    told = json.loads((await world.ask("root", "GET", f"{can}write+on+keys:a/1&user=u")).body)
    assert (told["user"], told["allowed"], told["why"]) == ("u", False, "no role of the user has the grant")
    told = json.loads((await world.ask("root", "GET", f"{can}read+on+log&user=nobody")).body)
    assert (told["allowed"], told["why"]) == (False, "no such user")
    assert "VERB on RESOURCE" in (await world.ask("u", "GET", f"{can}everything")).problem().message


async def test_an_exposed_node_serves_nothing_before_the_first_admin(monkeypatch: pytest.MonkeyPatch) -> None:
    """It listens beyond loopback: until access control is on, only probes and the request for the first admin pass."""
    async with AccessWorld(is_set_up=False) as world:
        world.service.access.is_exposed = True
        for route in ROUTES:
            reply = await of_route(world, None, route.method, route.pattern)
            if route.need is Need.NOTHING or route.is_first_admin:
                assert reply.status != 403
            else:
                assert "raftlog access init" in reply.problem().message


async def test_each_user_has_its_share_of_requests_bytes_and_streams(
    world: AccessWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over it: 429 with the time to wait; other users go on. After a second there is room again."""
    now = clock.monotonic()
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    access = world.service.access
    access._limits = msgspec.structs.replace(
        access._limits, principal_requests_max=3, principal_bytes_max=1_000, principal_streams_max=1
    )
    world.user("greedy", "write on keys:*", "read on keys:*")
    world.user("other", "write on keys:*")
    for _ in range(3):
        assert (await world.ask("greedy", "PUT", "/v1/kv/a", body=b"v")).status == 200
    for name in ("requests", "bytes"):
        refused = await world.ask("greedy", "PUT", "/v1/kv/a", body=b"v")
        problem = refused.problem()
        assert (problem.status, problem.code, problem.outcome, problem.retryable) == (
            429,
            "over_quota",
            "not_applied",
            True,
        )
        assert f"limits.principal_{name}_max" in problem.message
        assert int(refused.headers["retry-after"]) == problem.retry_after
        assert (await world.ask("other", "PUT", "/v1/kv/a", body=b"v")).status == 200
        now += 1.0
        if name == "requests":
            assert (await world.ask("greedy", "PUT", "/v1/kv/a", body=b"v" * 3_000)).status == 200
    now += 10.0
    await world.connect().feed(request("GET", "/v1/watch?key=a", *world.sign("greedy")))
    second = await world.ask("greedy", "GET", "/v1/watch?key=a")
    assert "limits.principal_streams_max" in second.problem().message


async def test_all_bytes_of_a_user_count(world: AccessWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a body whose length no header names, and those of a stream to a client of HTTP/1.0, too."""
    now = clock.monotonic()
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    access = world.service.access
    access._limits = msgspec.structs.replace(access._limits, principal_bytes_max=1_000)
    world.user("chunked", "write on keys:*")
    world.user("old", "read on log", "read on keys:*")
    parts = b"258\r\n" + b"v" * 600 + b"\r\n"
    for code in (200, 429):
        wire = world.connect()
        head = request("PUT", "/v1/kv/a", "Transfer-Encoding: chunked", *world.sign("chunked"))
        await wire.feed(head + 2 * parts + b"0\r\n\r\n")
        while not wire.written:
            await turns()
        assert wire.replies()[0].status == code
    for status in (b"200", b"429"):
        wire = world.connect()
        await wire.feed(
            request("GET", "/v1/log?format=ndjson", *world.sign("old")).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
        )
        while not wire.written:
            await turns()
        assert wire.written[9:12] == status


async def test_changes_and_refusals_have_lines_in_an_audit_log(tmp_path: Path) -> None:
    """The user, the request, and the result. A flood of refusals has one line for each reason. No line has a
    secret. The file is rotated."""
    sink = LogSink()
    sink.open(tmp_path / "audit.log", 800, 1, is_stderr=False)
    async with AccessWorld() as world:
        world.runner._api._audit._file = sink
        world.user("u", "read on keys:*")
        await world.ask("root", "PUT", "/v1/kv/a", body=b"v")
        await world.ask("root", "DELETE", "/v1/kv?prefix=a")
        for step in (
            {"operation": "put", "key": "b", "value": "v"},
            {"operation": "delete_range", "key": "b", "end": ""},
        ):
            await world.ask("root", "POST", "/v1/kv/txn", body=json.dumps({"then": [step]}).encode())
        for _ in range(5):
            await world.ask("u", "PUT", "/v1/kv/a", body=b"v")
        await world.ask("root", "POST", "/v1/access", body=b'{"action":"set_user","name":"x","roles":["none"]}')
        text = (tmp_path / "audit.log.1").read_text() + (tmp_path / "audit.log").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        assert [(line["result"], line["user"], line["status"]) for line in lines] == [
            ("carried_out", "root", 200),
            ("carried_out", "root", 200),
            ("refused", "u", 403),
            ("failed", "root", 422),
        ]
        assert [line.get("action") for line in lines] == [None, "delete_range", None, "set_user x"]
        assert not [token for token in world.tokens.values() if token.text[14:] in text]
    sink.close()


async def test_a_user_sees_what_it_may_do(world: AccessWorld) -> None:
    """`/v1/access/me`: the name, its roles, each grant once, how it was named and until when. While access control is
    off it says so."""
    world.role("also", "read on keys:a/*")
    world.user("alice", "read on keys:a/*", "read on log", roles=("also",))
    own = (await world.ask("alice", "GET", "/v1/access/me")).json()
    assert (own["is_on"], own["user"], own["named_by"], own["expires_ms"]) == (True, "alice", "token", 0)
    assert sorted(own["roles"]) == ["also", "of-alice"]
    assert sorted(own["grants"]) == ["read on keys:a/*", "read on log"]
    world.token("alice", expires_ms=1 << 50)
    assert (await world.ask("alice", "GET", "/v1/access/me")).json()["expires_ms"] == 1 << 50
    world.change(AccessAction.DISABLE)
    own = (await world.ask(None, "GET", "/v1/access/me")).json()
    assert (own["is_on"], own["user"], own["roles"]) == (False, "", [])
