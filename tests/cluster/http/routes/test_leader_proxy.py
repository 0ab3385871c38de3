"""Changes of the members and hand-overs at a node that does not lead: passed on to the leader, once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from raftlog.cluster.api.errors import ApiError, Code, Outcome
from raftlog.cluster.api.values import LeaderHint
from raftlog.cluster.http.routes import explain
from raftlog.cluster.security.authority import make_authority, make_node
from raftlog.cluster.security.names import Holder, HolderKind
from raftlog.cluster.security.tls import Credentials, TlsFiles
from raftlog.raft.types import EntryKind
from tests.cluster.fake_node import FakeNode, Served, serve
from tests.cluster.http.http_probe import ask
from tests.cluster.nodes import cluster_of
from tests.support import free_port, streams_served

ADD = b'{"change":"add","node":4,"peer":"127.0.0.1:7104","url":"http://127.0.0.1:7004"}'
ASKED = [("/v1/members", ADD), ("/v1/leader/transfer", b'{"to":2}'), ("/v1/leader/transfer", b"")]


@asynccontextmanager
async def pair(*, fast_path: bool = True) -> AsyncIterator[tuple[Served, Served]]:
    """A leader, and a follower that knows it."""
    leader, follower = FakeNode(), FakeNode()
    follower.node_id = 2
    async with serve(leader, fast_path=fast_path) as first, serve(follower, fast_path=fast_path) as second:
        leader.leader = follower.leader = LeaderHint(1, first.url)
        yield first, second


@pytest.mark.parametrize("fast_path", [True, False])
@pytest.mark.parametrize(("target", "body"), ASKED)
async def test_a_follower_forwards_requests_that_only_the_leader_serves(
    target: str, body: bytes, fast_path: bool
) -> None:
    """The leader does it, and its answer comes back, with the client's request id. Guard: `passed_on`."""
    async with pair(fast_path=fast_path) as (leader, follower):
        reply = await ask(follower.port, "POST", target, body, {"Raftlog-Request-Id": "mine"})
        assert (reply.status, reply.headers["raftlog-request-id"]) == (200, "mine")
        assert reply.json()["outcome"] == "applied"
        assert len(leader.node.changes) + len(leader.node.transfers) == 1
        assert follower.node.changes == follower.node.transfers == []


async def test_a_refusal_of_the_leaders_comes_back_as_it_is() -> None:
    """Its code, status and words."""
    async with pair() as (leader, follower):
        direct = (await ask(leader.port, "POST", "/v1/members", b'{"change":"address","node":9}')).problem()
        passed = (await ask(follower.port, "POST", "/v1/members", b'{"change":"address","node":9}')).problem()
        assert (passed.code, passed.message, passed.why) == (direct.code, direct.message, direct.why)
        bad = (await ask(follower.port, "POST", "/v1/members", b'{"chnge":1}')).problem()
        assert bad.code is Code.BAD_REQUEST


@pytest.mark.parametrize(("target", "body"), ASKED)
async def test_a_request_is_passed_on_once(target: str, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes that each take the other for the leader make no loop: the second one answers by itself."""

    async def no_leader(*_: object) -> None:
        raise ApiError(Code.NO_LEADER, "does not lead")

    monkeypatch.setattr(FakeNode, "change_members", no_leader)
    monkeypatch.setattr(FakeNode, "transfer", no_leader)
    async with pair() as (first, second):
        first.node.leader = LeaderHint(2, second.url)
        problem = (await ask(second.port, "POST", target, body)).problem()
        assert (problem.code, problem.node, problem.leader) == (Code.NO_LEADER, 1, LeaderHint(2, second.url))


async def test_a_leader_that_cannot_be_reached_or_does_not_answer() -> None:
    """Not reached: no_leader, and the leader's address. Reached and silent: the outcome is unknown."""
    async with serve() as follower:
        follower.node.node_id = 2
        url = f"http://127.0.0.1:{free_port()}"
        follower.node.leader = LeaderHint(1, url)
        problem = (await ask(follower.port, "POST", "/v1/leader/transfer", b"{}")).problem()
        assert (problem.code, problem.outcome) == (Code.NO_LEADER, Outcome.NOT_APPLIED)
        assert problem.leader == LeaderHint(1, url)
        assert url in problem.message

        async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")

        async with streams_served(silent) as port:
            follower.node.leader = LeaderHint(1, f"http://127.0.0.1:{port}")
            problem = (await ask(follower.port, "POST", "/v1/members", ADD)).problem()
            assert (problem.code, problem.outcome) == (Code.LEADER_LOST, Outcome.UNKNOWN)


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    """Of a node with TLS, whose plain test port clients may use all the same: their certificates are optional."""
    make_authority(tmp_path, "test")
    made = make_node(tmp_path, NODE.log, 2, ["127.0.0.1"])
    return TlsFiles(str(tmp_path / "ca.pem"), str(made.certificate), str(made.key), is_optional=True)


NODE = Holder("c" * 32, HolderKind.NODE, "2")
TOKEN = {"Authorization": "Bearer rl_1_secret"}


@pytest.mark.parametrize(("target", "body"), ASKED)
@pytest.mark.parametrize(
    ("takes_plain", "headers", "is_forwarded"),
    [(False, {}, False), (False, TOKEN, False), (True, TOKEN, False), (True, {}, True)],
)
async def test_a_node_with_tls_sends_no_token_to_a_plain_url_of_the_leader(
    target: str, body: bytes, takes_plain: bool, headers: dict[str, str], is_forwarded: bool, files: TlsFiles
) -> None:
    """An operator gave the URL of the member: another program that listens there would read the token, and make up the
    answer. The refusal names the repair. With `security.mode = both` requests without a token are forwarded."""
    leader, follower = FakeNode(), FakeNode()
    follower.node_id = 2
    credentials = Credentials(msgspec.structs.replace(files, takes_plain=takes_plain), node=NODE)
    async with serve(leader) as first, serve(follower, credentials=credentials) as second:
        follower.leader = LeaderHint(1, first.url)
        reply = await ask(second.port, "POST", target, body, headers)
        assert (reply.status == 200) is is_forwarded, reply.body
        assert len(leader.changes) + len(leader.transfers) == is_forwarded
        if not is_forwarded:
            problem = reply.problem()
            assert (problem.code, problem.outcome, problem.leader) == (
                Code.NO_LEADER,
                Outcome.NOT_APPLIED,
                LeaderHint(1, first.url),
            )
            assert f"node 1, which leads, at {first.url}" in problem.message
            assert "raftlog members address 1 --url https://" in problem.message


@pytest.mark.parametrize("change", ["add", "replace", "address"])
async def test_a_node_with_tls_takes_a_plain_url_of_a_member_only_in_mode_both(change: str, files: TlsFiles) -> None:
    """Other nodes would dial it unencrypted. A change without a URL goes on where the former one is plain."""
    fields = {"change": change, "node": 4 if change == "add" else 1, "peer": "127.0.0.1:7104"}
    with_url = json.dumps(fields | {"url": "http://127.0.0.1:7004"}).encode()
    for takes_plain in (False, True):
        credentials = Credentials(msgspec.structs.replace(files, takes_plain=takes_plain), node=NODE)
        async with serve(credentials=credentials) as served:
            reply = await ask(served.port, "POST", "/v1/members", with_url)
            assert (reply.status == 200) is takes_plain, reply.body
            if not takes_plain:
                assert reply.problem().code is Code.BAD_REQUEST
                assert "url is 'http://127.0.0.1:7004': this node has TLS, so it must begin with https://" in (
                    reply.problem().message
                )
                assert served.node.changes == []
    if change != "add":
        async with serve(credentials=Credentials(files, node=NODE)) as served:
            assert (await ask(served.port, "POST", "/v1/members", json.dumps(fields).encode())).status == 200


async def test_real_nodes_hand_over_and_change_members_through_any(tmp_path: Path) -> None:
    """Three nodes at their advertised URLs: a hand-over asked of a follower, then a learner added through another."""
    async with cluster_of(3, tmp_path) as nodes, AsyncExitStack() as stack:
        leader = await nodes.leader()
        ports = {each.id: urlsplit(each.url).port or 0 for each in nodes.cluster.node}
        for node in nodes.running.values():
            await stack.enter_async_context(serve(node, port=ports[node.node_id]))
        follower = next(node for node in await nodes.followers() if node is not leader)
        told = (await ask(ports[follower.node_id], "POST", "/v1/leader/transfer", b"{}")).json()
        assert told["old"] == leader.node_id
        now = await nodes.leader()
        asked = next(node for node in await nodes.followers() if node is not now)
        body = b'{"change":"add","node":4,"peer":"127.0.0.1:%d","url":"http://127.0.0.1:%d"}' % (
            free_port(),
            free_port(),
        )
        told = (await ask(ports[asked.node_id], "POST", "/v1/members", body)).json()
        assert (told["change"], told["node"], "join" in told) == ("add", 4, True)


async def test_a_follower_asks_the_leader_what_happened_to_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader's account knows every copy. A leader that is away, or silent, is waited for a bounded time, and the
    follower answers by itself."""
    monkeypatch.setattr(explain, "LEADER_WAIT_S", 0.05)
    async with pair() as (leader, follower):
        leader.node.append(EntryKind.NOOP, b"", 1)
        only_there = leader.node.applied
        entries = [(await ask(leader.port, "GET", f"/v1/explain/{only_there + at}")).json() for at in (-1, 0)]
        assert entries[1]["previous_crc"] == entries[0]["entry_crc"]
        assert (await ask(follower.port, "GET", f"/v1/explain/{only_there}")).json()["state"] == "applied"
        appended = (await ask(leader.port, "POST", "/v1/log", b"long")).json()["last"]
        view = (await ask(follower.port, "GET", f"/v1/explain/{appended}?value_bytes=2")).json()
        assert (view["record"]["value"], view["record"]["value_bytes"]) == ("lo", 4)
        follower.node.leader = LeaderHint(1, f"http://127.0.0.1:{free_port()}")
        assert (await ask(follower.port, "GET", f"/v1/explain/{only_there}")).problem().code is Code.FUTURE_INDEX

    async def hear(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        """Reads all, and never answers."""
        await reader.read()

    async with streams_served(hear) as port, serve() as follower:
        follower.node.node_id = 2
        follower.node.leader = LeaderHint(1, f"http://127.0.0.1:{port}")
        assert (await ask(follower.port, "GET", "/v1/explain/2")).json()["state"] == "applied"
