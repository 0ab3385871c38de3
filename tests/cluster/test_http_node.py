"""The HTTP API over real nodes: three of them with real files and links, spoken to through any."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from cluster.wire import Code
from raft.codec import IDX_ROW, RAW_SIZE, decode_entry, decode_raw_header, header_crc, previous_crc
from raft.types import Entry
from tests.cluster.fake_node import Served, serve
from tests.cluster.http_probe import ask, get, open_stream
from tests.cluster.nodes import Nodes, cluster_of

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
        session = (await ask(servers[0].port, "POST", "/v1/sessions")).json()["session"]
        once = {"Raftlog-Session": str(session), "Raftlog-Sequence": "1"}
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


async def raw_entries(server: Served, first: int) -> list[Entry]:
    """Every entry of a raw stream, found by the rows; between two of them the segment may hold a node's own marks."""
    body = (await ask(server.port, "GET", f"/v1/log?from={first}&format=raw")).body
    entries: list[Entry] = []
    position = 0
    while (header := decode_raw_header(body, position)).rows:
        start = position + RAW_SIZE + header.rows * IDX_ROW.size
        segment = body[start : start + header.segment_bytes]
        places = [row[0] for row in IDX_ROW.iter_unpack(body[position + RAW_SIZE : start])]
        entries += [decode_entry(segment, place - header.base) for place in dict.fromkeys(places)]
        assert entries[-1].index == header.next - 1
        position = start + header.segment_bytes + header.ledger_bytes
    assert position + RAW_SIZE == len(body), "the last chunk is a mark"
    return entries


async def test_raw_stream_of_every_node_is_the_same_chain(tmp_path: Path) -> None:
    """Over several segments: whole entries, each naming the one before, equal bytes on all nodes."""
    async with served_cluster(tmp_path) as (nodes, servers):
        for number in range(6):
            await ask(servers[number % 3].port, "POST", "/v1/log", bytes([number]) * 500_000)
        last = (await ask(servers[0].port, "GET", "/v1/digest")).json()["index"]
        await nodes.all_at(last)
        streams = [await raw_entries(server, 1) for server in servers]
        assert streams[0] == streams[1] == streams[2]
        for before, entry in zip(streams[0], streams[0][1:], strict=False):
            assert entry.before == before.index
            assert previous_crc(entry) == header_crc(before)
        assert (streams[0][0].first, streams[0][-1].index) == (1, last)


async def test_watch_and_follow_live_on_a_follower(tmp_path: Path) -> None:
    """Both begin in the past, go live, and tell every change once while writes go through another node."""
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


async def test_watch_from_the_first_index_after_a_restart_of_all(tmp_path: Path) -> None:
    """Effects survive on disk or are made again: each change once, with the same bytes as before."""

    async def told(port: int, count: int) -> list[bytes]:
        async with open_stream(port, get("/v1/watch?from=1&format=ndjson")) as stream:
            messages: list[bytes] = []
            while len(messages) < count:
                line = await stream.message()
                if b'"changes"' in line:
                    messages.append(line)
            return messages

    async with cluster_of(3, tmp_path) as nodes:
        async with serve(await nodes.leader()) as server:
            for number in range(10):
                await ask(server.port, "PUT", f"/v1/kv/k{number % 3}", b"%d" % number)
            await ask(server.port, "DELETE", "/v1/kv?prefix=k")
            before = await told(server.port, 11)
        for number in (1, 2, 3):
            await nodes.stop(number)
        for number in (1, 2, 3):
            await nodes.start(number)
        await nodes.leader()
        for node in nodes.running.values():
            async with serve(node) as server:
                assert await told(server.port, 11) == before


async def test_write_without_a_majority_is_never_called_applied(tmp_path: Path) -> None:
    """The leader alone: unknown or not_applied within the deadline; a linearizable read fails, a stale one answers."""
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        async with serve(leader) as server:
            await ask(server.port, "PUT", "/v1/kv/k", b"1")
            for number in [number for number, node in nodes.running.items() if node is not leader]:
                await nodes.kill(number)
            short = {"Raftlog-Deadline-Ms": "400"}
            problem = (await ask(server.port, "PUT", "/v1/kv/k", b"2", short)).problem()
            assert problem.outcome in ("unknown", "not_applied")
            assert problem.retryable
            assert (await ask(server.port, "GET", "/v1/kv/k", headers=short)).problem().code in (
                Code.DEADLINE, Code.NO_LEADER,
            )  # fmt: skip
            stale = await ask(server.port, "GET", "/v1/kv/k?consistency=stale")
            assert msgspec.json.decode(stale.body)["kv"]["value"] == "1"
