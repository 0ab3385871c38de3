"""Each way to read the log or the state shows a user the same facts: a table of ways and roles, against one rule."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from urllib.parse import quote

import msgspec
import pytest
import structlog

from raftlog.cluster.api.status import DigestStatus, ReplicaDigest
from raftlog.cluster.http.request_log import RequestLog
from raftlog.cluster.runtime import logging, recent_events
from raftlog.cluster.runtime.recent_events import RecentEvents
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.statemachine.access.admission import encode_admission
from raftlog.statemachine.access.commands import AccessAction
from raftlog.statemachine.access.grants import BUILT_IN, Grant, parse_grant
from raftlog.statemachine.access.permissions import Permissions
from raftlog.statemachine.commands import Operation
from tests.cluster.http.access_world import AccessWorld
from tests.cluster.http.fast.fast_wire import request
from tests.cluster.http.http_probe import Reply
from tests.support import wait_until_async

USERS = {
    "reader": [str(grant) for grant in BUILT_IN["reader"]],
    "writer": [str(grant) for grant in BUILT_IN["writer"]],
    "operator": [str(grant) for grant in BUILT_IN["operator"]],
    "admin": [str(grant) for grant in BUILT_IN["admin"]],
    "prefix": ["read on log", "read on keys:near/*", "read on groups:near*"],
    "auditor": ["read on log", "read on keys:*", "read on groups:*", "operate on cluster"],
    "keeper": ["read on log", "read on keys:*", "read on groups:*", "access on cluster"],
    "keys": ["read on keys:*"],
    "monitor": [str(grant) for grant in BUILT_IN["monitor"]],
    "watcher": ["read on log", "read on keys:*", "watch on cluster"],
    "none": [],
}
HASH = b"this is the hash of one token..."
assert len(HASH) == 32
FACTS: dict[str, tuple[bytes, tuple[str, ...]]] = {
    # what stands in the log or the state: some bytes of it, and the grants of which one is enough to see it
    "near value": (b"close by, near/1", ("read on keys:near/*",)),
    "far value": (b"away, in far/1", ("read on keys:far/*",)),
    "far key of a malformed transaction": (b"far/malformed", ("read on keys:*",)),
    "far group": (b"far-group", ("read on groups:far-group", "watch on cluster")),
    "far owner": (b"owner of it", ("read on groups:far-group", "watch on cluster")),
    "user of a record": (b"wendy-writes", ("operate on cluster", "access on cluster")),
    "role": (b"secret-role", ("access on cluster",)),
    "grant": (b"granted/only", ("access on cluster",)),
    "token": (b"tokenid0", ("access on cluster",)),
    "hash": (HASH, ("access on cluster",)),
    "incarnation": (b"ab" * 16, ("operate on cluster",)),
}
WAYS = (
    "/v1/log?from=1",
    "/v1/log?from=1&internal=true",
    "/v1/log?from=1&internal=true&encoding=base64",
    "/v1/log?from=1&format=ndjson&internal=true",
    "/v1/log?from=1&format=msgpack&internal=true",
    "/v1/log?from=1&format=raw",
    "/v1/log?from=1&format=raw&effects=brief",
    "/v1/kv?prefix=",
    "/v1/kv?prefix=near/",
    "/v1/kv/far%2F1",
    "/v1/consumers",
    "/v1/consumers/far-group",
    "/v1/status",
    "/v1/cluster",
    "/v1/members",
    "/metrics",
    "/v1/explain/leaderless",
    "/v1/access",
    "/v1/digest?log_from=1",
    "/v1/events",
    "/v1/overview",
    "/v1/history",
    "/v1/log/density",
)


@pytest.fixture
async def planted(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AccessWorld]:
    """A log, a state and the lines of a node that hold each of the facts."""
    kept = RecentEvents()
    monkeypatch.setattr(recent_events, "recent", kept)
    monkeypatch.setattr("raftlog.cluster.http.routes.observe.recent", kept)
    before = structlog.get_config()
    logging.configure("error", "json")
    async with AccessWorld() as world:
        for name, grants in USERS.items():
            world.user(name, *grants)
        world.user("wendy-writes", roles=("writer",))
        world.role("secret-role", "write on keys:granted/only")
        world.change(AccessAction.ADD_TOKEN, name="wendy-writes", token="tokenid0", token_hash=HASH)
        for key, value in (("near/1", b"close by, near/1"), ("far/1", b"away, in far/1")):
            await world.ask("wendy-writes", "PUT", f"/v1/kv/{quote(key, '')}", body=value)
        await world.ask("wendy-writes", "POST", "/v1/log", body=b"plain")
        await world.ask("wendy-writes", "POST", "/v1/consumers/far-group/claim", body=b'{"owner":"owner of it"}')
        malformed = BlockRecord(int(Operation.TXN), None, b"\xc1 far/malformed")
        admission = encode_admission(world.node.machine.access.admission("root"))
        world.node.submit_now((encode_block((malformed,), admission=admission), 1))
        await world.ask("wendy-writes", "DELETE", "/v1/kv?prefix=far/malformed")  # audited
        logging.get_logger(node=world.node.node_id).info("became_leader")
        yield world
    structlog.configure(**before)


async def answer(world: AccessWorld, user: str, target: str) -> Reply:
    """The whole answer; some are made in another thread."""
    wire = world.connect()
    await wire.feed(request("GET", target, *world.sign(user), "Connection: close"))
    await wait_until_async(lambda: wire.is_closed, what="the end of the answer")
    return wire.replies()[0]


def permissions(user: str) -> Permissions:
    """What the table of grants allows that user."""
    return Permissions([parse_grant(text) for text in USERS[user]])


def may_see(user: str, fact: str) -> bool:
    """The one rule."""
    return any(permissions(user).allows(parse_grant(text)) for text in FACTS[fact][1])


async def test_no_way_shows_a_fact_that_its_reader_may_not_see(planted: AccessWorld) -> None:
    """Every way and every user: each fact in the answer is one that the user's grants allow. Base64 counts as well."""
    for user in USERS:
        ways = (*WAYS, *(f"/v1/explain/{index}" for index in range(1, planted.node.applied + 1)))
        for way in ways:
            body = (await answer(planted, user, way)).body
            for fact, (data, _) in FACTS.items():
                if may_see(user, fact) or data.decode() in way:  # a refusal repeats the request
                    continue
                shapes = [data, data.hex().encode(), *(b64encode(data[at:])[:-4] for at in range(3))]
                assert not any(len(shape) > 6 and shape in body for shape in shapes), (user, way, fact)


async def test_an_explanation_has_no_crc_of_hidden_bytes(planted: AccessWorld) -> None:
    """The CRC of a header covers that of the data: with the other fields it would confirm a guess of a hidden value, or
    of a user. The other entries' are shown neither, as each names the one before."""
    [(entry, _)] = await planted.node.read_log(planted.node.applied, 1, 1 << 20)
    crcs = (f"{entry.mark.header_crc:08x}".encode(), f"{entry.previous_crc:08x}".encode())
    for user in USERS:
        reply = await answer(planted, user, f"/v1/explain/{planted.node.applied}")
        assert [crc in reply.body for crc in crcs] == [user == "admin"] * 2, user


async def test_events_are_no_lines_of_requests(planted: AccessWorld) -> None:
    """They name keys and users: the audit log, and with a log as text the lines of slow and of failed requests."""
    logging.configure("error", "text")
    lines = RequestLog(planted.node.node_id, 10, 1, has_all=True)
    lines.add("GET", "/v1/kv/far%2F1", 500, 2.0, "1-2", "internal")
    await lines.close()
    events = (await answer(planted, "monitor", "/v1/events")).json()["events"]
    assert [each["event"] for each in events] == ["became_leader"]


async def test_states_of_replicas_are_shown_to_operators_alone(
    planted: AccessWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are digests of the state, by which a reader could check its guess of a value."""
    digests = DigestStatus(replicas=[ReplicaDigest(1, 10, "abcd", True)])
    status = msgspec.structs.replace(planted.node.status(), digests=digests)
    monkeypatch.setattr(planted.node, "status", lambda: status)
    for user in USERS:
        shown = (await answer(planted, user, "/v1/status")).json()["digests"]["replicas"]
        assert bool(shown) is permissions(user).allows(parse_grant("operate on cluster")), user


async def test_a_reader_of_all_keys_gets_all_of_them_from_raw_segments(planted: AccessWorld) -> None:
    """Without the permission to operate the cluster, it still gets each record, and both values. An admin gets each
    fact, byte for byte as on the disk."""
    for user in ("reader", "writer", "auditor", "keeper", "admin"):
        reply = await answer(planted, user, "/v1/log?from=1&format=raw")
        assert reply.status == 200
        seen = {fact for fact, (data, _) in FACTS.items() if data in reply.body}
        assert seen == {fact for fact in FACTS if may_see(user, fact)}, user
    disk = await planted.node.read_raw(1, planted.node.applied + 1, 1 << 30)
    whole = (await answer(planted, "admin", "/v1/log?from=1&format=raw")).body
    assert disk.segment in whole
    for user in ("operator", "prefix", "keys", "monitor", "watcher", "none"):
        assert (await answer(planted, user, "/v1/log?from=1&format=raw")).status == 403


async def test_a_digest_proves_what_every_reader_of_segments_sees(planted: AccessWorld) -> None:
    """It is the same for each of them, though some see no contents of configurations and permissions: those are left
    out of it for all."""
    answers = {(await answer(planted, user, "/v1/digest?log_from=1")).body for user in ("reader", "auditor", "admin")}
    assert len(answers) == 1
    for user in ("operator", "prefix", "keys", "monitor", "watcher", "none"):
        assert (await answer(planted, user, "/v1/digest?log_from=1")).status == 403


def test_the_table_names_grants_that_exist() -> None:
    """A fact whose grant is misspelt would never be looked for."""
    assert all(isinstance(parse_grant(text), Grant) for _, texts in FACTS.values() for text in texts)
