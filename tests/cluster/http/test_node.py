"""The HTTP API over real nodes: three of them with real files and links, spoken to through any."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from raftlog.cluster.cli.admin import overview
from raftlog.cluster.http.routes.table import ROUTES
from raftlog.cluster.replica import readiness
from raftlog.cluster.replica.replica import Replica
from raftlog.raft.codec.entry import decode_entry
from raftlog.raft.codec.index_rows import IDX_ROW
from raftlog.raft.hello import PeerProcess
from raftlog.raft.types import Entry
from tests.cluster.fake_node import Served, serve
from tests.cluster.http.http_probe import ask, get, of_session, open_session, open_stream, raw_parts
from tests.cluster.nodes import Nodes, cluster_of, host_of
from tests.support import wait_until_async

NDJSON = {"Content-Type": "application/x-ndjson"}


@asynccontextmanager
async def served_cluster(folder: Path) -> AsyncIterator[tuple[Nodes, list[Served]]]:
    """Three nodes with a leader, each behind its HTTP server; the leader's is the first."""
    async with cluster_of(3, folder) as nodes, AsyncExitStack() as stack:
        leader = await nodes.leader()
        others = [node for node in nodes.running.values() if node is not leader]
        yield nodes, [await stack.enter_async_context(serve(node, progress_ms=200)) for node in (leader, *others)]


async def test_any_node_takes_any_request(tmp_path: Path) -> None:
    """Write through one node, read through every other at once: linearizable, dense, with equal digests."""
    async with served_cluster(tmp_path) as (_, servers):
        for number, server in enumerate(servers):
            body = b"\n".join([b'{"value":"%d","key":"k"}' % number] * 3)
            appended = (await ask(server.port, "POST", "/v1/log", body, NDJSON)).json()
            assert appended["count"] == 3
            await ask(server.port, "PUT", f"/v1/kv/key{number}", b"v")
            for reader in servers:
                page = (await ask(reader.port, "GET", f"/v1/log?from={appended['first']}&limit=3")).json()
                assert [record["value"] for record in page["records"]] == [str(number)] * 3
                assert (await ask(reader.port, "GET", f"/v1/kv/key{number}")).json()["kv"]["value"] == "v"
        once = of_session(await open_session(servers[0].port), 1)
        answers = [(await ask(server.port, "PUT", "/v1/kv/once", b"1", once)).json() for server in servers]
        assert [answer["result"] for answer in answers] == ["applied", "repeated", "repeated"]
        assert len({(answer["index"], answer["revision"]) for answer in answers}) == 1
        index = (await ask(servers[0].port, "GET", "/v1/digest")).json()["index"]
        digests = [(await ask(server.port, "GET", f"/v1/digest?index={index}&log_from=1")).json() for server in servers]
        assert digests[0] == digests[1] == digests[2]
        statuses = [(await ask(server.port, "GET", "/v1/status")).json() for server in servers]
        assert [status["role"] for status in statuses] == ["leader", "follower", "follower"]
        assert len((await ask(servers[1].port, "GET", "/v1/members")).json()["members"]) == 3
        assert all([(await ask(server.port, "GET", "/readyz")).status == 200 for server in servers])


async def test_no_answer_shows_an_incarnation(tmp_path: Path) -> None:
    """A hello can be forged with one. Every route that can be asked without an argument, JSON records of the log and an
    error that is about a disk show fingerprints alone, which differ by node."""
    async with served_cluster(tmp_path) as (nodes, servers):
        secret = [member.incarnation.encode() for member in nodes.cluster.node]
        targets = [route.pattern for route in ROUTES if route.method == "GET" and "{" not in route.pattern]
        targets = [target for target in targets if target not in ("/v1/watch", "/v1/backup")]  # endless; for restore
        assert {"/v1/members", "/v1/status", "/metrics", "/v1/explain/leaderless", "/version"} <= set(targets)
        shown: list[bytes] = []
        for server in servers:
            asked = [*targets, "/v1/log?from=1&limit=10", "/v1/explain/1"]
            shown += [(await ask(server.port, "GET", target)).body for target in asked]
        again = {"change": "add", "node": 9, "peer": "127.0.0.1:1", "url": "http://127.0.0.1:2"}
        body = json.dumps(again | {"incarnation": secret[0].decode()}).encode()
        refused = await ask(servers[0].port, "POST", "/v1/members", body)
        assert refused.status >= 400
        shown.append(refused.body)
        shown.append((await ask(servers[0].port, "POST", "/v1/members", json.dumps(again | {"node": 1}).encode())).body)
        assert not [body for body in shown if any(each in body for each in secret)]
        members = (await ask(servers[0].port, "GET", "/v1/members")).json()["members"]
        disks = {each["node"]: each["disk"] for each in members}
        assert len(set(disks.values())) == 3
        for server in servers:
            status = (await ask(server.port, "GET", "/v1/status")).json()
            assert status["disk"] == disks[status["node"]]


async def test_a_node_that_the_others_refuse_says_that_it_is_cut_off(tmp_path: Path) -> None:
    """The leader still reaches it, so it follows: its /readyz said 200, and its lag was 0. Now /readyz is 503 with the
    reason, status, explain and a metric say so, and the leader does not know its lag; once they take it again, all is
    as before. A refusal of one follower alone cuts nothing off."""
    async with served_cluster(tmp_path) as (nodes, servers):
        leader, cut, third = (server.node for server in servers)
        port = servers[1].port
        disk = (cut.node_id, cut.state.identity.incarnation)

        def met(*refusing: Replica, boot: int) -> None:
            for node in refusing:
                host_of(node).transport.incoming.met[disk] = PeerProcess(boot)
            for link in host_of(cut).transport._consensus.values():
                link.redial()

        def refusing() -> list[int]:
            return sorted(readiness.refusals(cut.state))

        await wait_until_async(lambda: cut.is_ready, what="a node that is ready")
        met(third, boot=9)
        await wait_until_async(lambda: refusing() == [third.node_id], what="one refusal")
        assert (await ask(port, "GET", "/readyz")).status == 200
        met(leader, third, boot=9)
        await wait_until_async(lambda: refusing() == sorted([leader.node_id, third.node_id]), what="refusals")
        ready = await ask(port, "GET", "/readyz")
        assert ready.status == 503
        assert ready.body.startswith(b"cut off: node ")
        assert b"its data folder is an old copy" in ready.body
        status = (await ask(port, "GET", "/v1/status")).json()
        assert status["is_cut_off"] is True
        assert [each["node"] for each in status["refused_by"]] == refusing()
        assert "is an old copy" in status["refused_by"][0]["reason"]
        assert b"\nraftlog_cut_off 1" in (await ask(port, "GET", "/metrics")).body
        causes = (await ask(port, "GET", "/v1/explain/leaderless")).json()["causes"]
        assert ("cut_off", cut.node_id) in [(each["code"], each["node"]) for each in causes]
        told = (await ask(servers[0].port, "GET", "/v1/status")).json()
        (seen,) = [each for each in told["followers"] if each["node"] == cut.node_id]
        assert (seen["lag"], seen["lag_seconds"]) == (None, None)
        assert "is an old copy" in seen["refused"]
        shown = overview(
            {node.node_id: server.url for node, server in zip((leader, cut, third), servers, strict=True)},
            {server.url: server.node.status() for server in servers},
        )
        (row,) = [each for each in shown["nodes"] if each["node"] == cut.node_id]
        assert row["lag"] is None
        assert "refuses this node" in row["cut_off"]
        for node in (leader, third):
            del host_of(node).transport.incoming.met[disk]
        await wait_until_async(lambda: cut.is_ready, what="a node that is ready again")
        await nodes.all_at((await nodes.append(leader, b"after")).last)
        (seen,) = [each for each in leader.status().followers if each.node == cut.node_id]
        assert seen.refused == ""
        assert (await ask(port, "GET", "/readyz")).status == 200


async def raw_entries(server: Served, first: int, more: str = "") -> list[Entry]:
    """Every entry of a raw stream, found by the rows; between two of them the segment may hold a node's own marks."""
    *parts, mark = raw_parts((await ask(server.port, "GET", f"/v1/log?from={first}&format=raw{more}")).body)
    entries: list[Entry] = []
    for header, rows, segment, _ in parts:
        places = [row[0] for row in IDX_ROW.iter_unpack(rows)]
        entries += [decode_entry(segment, place - header.base) for place in dict.fromkeys(places)]
        assert entries[-1].index == header.next - 1
    assert mark.header.rows == 0, "the last chunk is a mark"
    return entries


async def test_raw_stream_of_every_node_is_the_same_chain(tmp_path: Path) -> None:
    """Over several segments: whole entries, each naming the one before, equal bytes on all nodes. A stream up to an
    index ends with the entry that holds the record before it."""
    async with served_cluster(tmp_path) as (nodes, servers):
        for number in range(6):
            await ask(servers[number % 3].port, "POST", "/v1/log", bytes([number]) * 500_000)
        last = (await ask(servers[0].port, "GET", "/v1/digest")).json()["index"]
        await nodes.all_at(last)
        streams = [await raw_entries(server, 1) for server in servers]
        assert streams[0] == streams[1] == streams[2]
        for before, entry in zip(streams[0], streams[0][1:], strict=False):
            assert entry.before == before.index
            assert entry.previous_crc == before.mark.header_crc
            assert await raw_entries(servers[0], before.first, f"&to={entry.first}") == [before]
        assert (streams[0][0].first, streams[0][-1].index) == (1, last)


async def test_watch_and_follow_live_on_a_follower(tmp_path: Path) -> None:
    """Both begin in the past, go live, and report every change once while writes go through another node."""
    async with served_cluster(tmp_path) as (_, servers):
        writer, reader = servers[0].port, servers[2].port
        for number in range(20):
            await ask(writer, "PUT", "/v1/kv/k", b"%d" % number)
        async with (
            open_stream(reader, get("/v1/watch?from=1&format=ndjson")) as watch,
            open_stream(reader, get("/v1/log?from=1&format=ndjson&follow=true")) as follow,
        ):
            writes = asyncio.gather(*[ask(writer, "PUT", f"/v1/kv/live{number}", b"x") for number in range(20)])
            changes: list[str] = []
            while len(changes) < 40:
                changes += [change["key"] for change in (await watch.json()).get("changes", ())]
            records: list[str] = []
            while len(records) < 40:
                line = await follow.json()
                records += [line["key"]] if "operation" in line else []
            assert {reply.status for reply in await writes} == {200}
        assert records == changes
        assert records[:20] == ["k"] * 20
        assert sorted(records[20:]) == sorted(f"live{number}" for number in range(20))
