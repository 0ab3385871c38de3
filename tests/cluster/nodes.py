"""Clusters of real nodes in one process, for tests: real sockets, real files, no HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from cluster import clock
from cluster.cluster_file import first_entry
from cluster.disk import Disk
from cluster.formatting import format_cluster, new_cluster
from cluster.logging import get_logger
from cluster.metrics import Metrics
from cluster.node import Node
from cluster.requests import Settled
from cluster.settings import load_settings
from cluster.wire import ApiError, Code, to_b64
from raft.codec import Record, encode_block
from statemachine.commands import Operation
from tests.support import free_ports, wait_until_async


def append_block(*values: bytes, session: int = 0, sequence: int = 0) -> bytes:
    """A request that appends these values."""
    records = [Record(Operation.APPEND, None, value) for value in values]
    return encode_block(records, plain=True, session=session, sequence=sequence)


def put_block(key: bytes, value: bytes) -> bytes:
    """A request that puts one key."""
    return encode_block([Record(Operation.PUT, key, value)])


def deadline(seconds: float = 5.0) -> float:
    """So many seconds from now."""
    return clock.monotonic() + seconds


# Small files, and elections that take tenths of a second; the defaults are for machines that have more to do.
QUICK: dict[str, Any] = {
    "disk.segment_bytes": 1 << 20,
    "raft.heartbeat_ms": 40,
    "raft.election_timeout_min_ms": 150,
    "raft.election_timeout_max_ms": 300,
}


class Nodes:
    """The nodes of one cluster, by id; those not running are missing."""

    def __init__(self, folder: Path, count: int, flags: dict[str, Any], *, cluster_version: int = 0) -> None:
        self.folder = folder
        ports = free_ports(2 * count)
        self.cluster = new_cluster(count, peer_ports=ports[:count], http_ports=ports[count:])
        if cluster_version:
            head = msgspec.structs.replace(self.cluster.cluster, cluster_version=cluster_version)
            self.cluster = msgspec.structs.replace(self.cluster, cluster=head)
        self.file = folder / "cluster.toml"
        self.flags = QUICK | flags
        self.running: dict[int, Node] = {}
        entry = first_entry(self.cluster)
        self.first = to_b64(entry.header + entry.data)  # for the join files of nodes that are added
        format_cluster(self.cluster, self.file, segment_bytes=self.flags["disk.segment_bytes"])

    async def start(self, node: int, *, is_older: bool = False, speaks: int = 0, **flags: Any) -> Node:
        """Starts a node of the cluster; `flags` are further settings, with __ for the dot. `is_older`: its program
        knows cluster version 1 alone, and speaks the peer protocol of then. `speaks`: it says it speaks that version of
        the peer protocol (0: today's)."""
        more = {key.replace("__", "."): value for key, value in flags.items()}
        loaded = load_settings(self.file, {}, {"node": node, **self.flags, **more})
        disk, recovered = Disk.open(
            loaded.data, log_id=self.cluster.cluster.log, node=node, segment_bytes=loaded.settings.disk.segment_bytes
        )
        started = Node(
            loaded.settings, disk, recovered, metrics=Metrics(), logger=get_logger(node=node),
            cluster=self.cluster,
        )  # fmt: skip
        if is_older:
            started.core.state.knows = 1
            speaks = 2
        if speaks:
            started.transport.identity = replace(started.transport.identity, speaks=speaks)
        await started.start()
        self.running[node] = started
        return started

    async def kill(self, node: int) -> None:
        """Ends a node without a word: no hand-over, no last answers. Who waits there hears what a client would."""
        ended = self.running.pop(node)
        ended.ended.cancel()
        ended.pending.fail_all(Code.LEADER_LOST, Code.LEADER_LOST, "the connection closed")
        ended.reads.fail_all(ApiError(Code.SHUTTING_DOWN, "the connection closed"))
        ended.applier.waiters.fail_all(ApiError(Code.SHUTTING_DOWN, "the connection closed"))
        ended.close_inputs()
        await ended.transport.close()
        await ended.disk.close()

    async def stop(self, node: int) -> None:
        """Stops a node cleanly."""
        await self.running.pop(node).stop()

    async def leader(self) -> Node:
        """The leader that everyone who runs follows, once the first entry of its term is applied there."""

        def agreed() -> Node | None:
            leaders = {node.core.state.leader for node in self.running.values()}
            leader = self.running.get(leaders.pop()) if len(leaders) == 1 else None
            if leader is None or not leader.is_leader:
                return None
            return leader if leader.core.state.log.term_at(leader.applied) == leader.term else None

        found = await wait_until_async(agreed, what="one leader that all follow")
        assert isinstance(found, Node)
        return found

    async def followers(self) -> list[Node]:
        """Everyone else who runs."""
        leader = await self.leader()
        return [node for node in self.running.values() if node is not leader]

    async def append(self, node: Node, *values: bytes, seconds: float = 5.0) -> Settled:
        """Appends through that node."""
        return await node.submit(append_block(*values), len(values), deadline=deadline(seconds))

    async def all_at(self, index: int) -> None:
        """Waits until every running node has applied `index`."""
        await asyncio.gather(*(node.wait_applied(index, deadline(10)) for node in self.running.values()))


@asynccontextmanager
async def cluster_of(count: int, folder: Path, **flags: Any) -> AsyncIterator[Nodes]:
    """A running cluster of `count` nodes, which ends with the block; `flags` are settings, with __ for the dot."""
    nodes = Nodes(folder, count, {key.replace("__", "."): value for key, value in flags.items()})
    try:
        for node in range(1, count + 1):
            await nodes.start(node)
        yield nodes
    finally:
        for node in list(nodes.running):
            await nodes.kill(node)
