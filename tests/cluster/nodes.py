"""Clusters of real nodes in one process, for tests: real sockets, real files, no HTTP."""

import asyncio
import functools
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from raftlog.cluster.api.encoding import to_b64
from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.config.bounds import rule_of
from raftlog.cluster.config.cluster_file import first_entry
from raftlog.cluster.config.settings import LoadedSettings, Settings, load_settings
from raftlog.cluster.disk.disk import Disk, OnAnswer
from raftlog.cluster.node.formatting import format_cluster, new_cluster
from raftlog.cluster.node.host import Host
from raftlog.cluster.peers.hello import Hello, Purpose
from raftlog.cluster.protocol.request import RequestResult
from raftlog.cluster.replica.opening import ReplicaParts
from raftlog.cluster.replica.replica import Replica
from raftlog.cluster.replica.state import ReplicaEnd
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.logging import get_logger
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.hello import Start
from raftlog.raft.ready import SyncBatch
from raftlog.raft.types import Now
from raftlog.statemachine.commands import Operation
from raftlog.statemachine.versions import CLUSTER_VERSION
from tests.support import Patience, free_ports, stretch, wait_until_async

START: Final = Start(run=1, last_index=1, last_term=1, term=1, floor=0)
"""What the process of a made-up hello found on its disk."""

IS_LINUX: Final = Path("/proc/self/schedstat").exists()


def hello_of(log: str, sender: int, disk: str, boot: int = 1, purpose: Purpose = Purpose.CONSENSUS) -> Hello:
    """What a node says that dials node 1."""
    return Hello(log=log, sender=sender, to=1, incarnation=disk, boot=boot, purpose=purpose, start=START)


def append_block(*values: bytes, session: int = 0, sequence: int = 0) -> bytes:
    """A request that appends these values."""
    records = [BlockRecord(Operation.APPEND, None, value) for value in values]
    return encode_block(records, plain=True, session=session, sequence=sequence)


def put_block(key: bytes, value: bytes) -> bytes:
    """A request that puts one key."""
    return encode_block([BlockRecord(Operation.PUT, key, value)])


def deadline(seconds: float = 5.0) -> float:
    """So many seconds from now, or more on a busy machine; fewer with a mutant planted, as in every `Patience`."""
    return clock.monotonic() + seconds * stretch() * Patience.share


class FairTime:
    """The time of an event loop, and of the service's clock while that loop is open, without what this process waited
    for a core. All nodes of a cluster here share the loop: while it stands still no heartbeat is sent, and an election
    would follow that no fault caused.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._before_ns = loop, _waited_ns()

    @classmethod
    def begin(cls, loop: asyncio.AbstractEventLoop) -> None:
        """From now on that loop and the service's clock have it."""
        if not isinstance(getattr(loop.time, "__self__", None), cls):
            fair = cls(loop)
            loop.time = fair.monotonic  # type: ignore[method-assign]
            vars(clock).update(read=fair.read, monotonic=fair.monotonic, wall_ms=lambda: fair.read().wall_ms)

    def monotonic(self) -> float:
        """As `clock.monotonic`."""
        return (time.monotonic_ns() - self._left_out_ns()) / 1e9

    def read(self) -> Now:
        """As `clock.read`. All clocks run alike: else each node would find the others' ahead of or behind its own."""
        left_out_ns = self._left_out_ns()
        return Now((time.monotonic_ns() - left_out_ns) // 1_000_000, (time.time_ns() - left_out_ns) // 1_000_000)

    def _left_out_ns(self) -> int:
        return 0 if self._loop.is_closed() else _waited_ns() - self._before_ns


def _waited_ns() -> int:
    """How long the main thread of this process was ready to run and waited for a core."""
    return int(os.pread(_schedstat(os.getpid()), 64, 0).split()[1]) if IS_LINUX else 0


@functools.cache
def _schedstat(pid: int) -> int:
    return os.open(f"/proc/self/task/{pid}/schedstat", os.O_RDONLY)


# Small files, and elections that take tenths of a second; the defaults are for machines that have more to do.
QUICK: dict[str, Any] = {
    "disk.segment_bytes": 1 << 20,
    "raft.heartbeat_ms": 40,
    "raft.election_timeout_min_ms": 150,
    "raft.election_timeout_max_ms": 300,
}

# For tests whose leader has to stay: a heartbeat that waits for a busy disk of this machine is no reason to elect.
LONG_ELECTIONS: dict[str, Any] = {"raft__election_timeout_min_ms": 1_500, "raft__election_timeout_max_ms": 2_000}


def host_of(node: Replica) -> Host:
    """The process of that node."""
    assert isinstance(node.process, Host)
    return node.process


def sync_with(node: Replica, job: Callable[[SyncBatch], Coroutine[Any, Any, None]]) -> None:
    """From now on `job` makes the batches of that node durable, in place of its disk."""

    def carry_out(batch: SyncBatch, answered: OnAnswer | None = None) -> asyncio.Future[None]:
        future = asyncio.ensure_future(job(batch))
        if answered is not None:
            future.add_done_callback(answered)
        return future

    node.state.disk.carry_out = carry_out  # type: ignore[method-assign]  # a disk of the test


def with_bounds(settings: Settings, bounds: Mapping[str, int]) -> Settings:
    """The settings with other bounds: also those that no file can set, by `section.name`."""
    for key, value in bounds.items():
        section, _, name = key.partition(".")
        changed = msgspec.structs.replace(getattr(settings, section), **{name: value})
        settings = msgspec.structs.replace(settings, **{section: changed})
    return settings


class Nodes:
    """The nodes of one cluster, by id; those not running are missing."""

    def __init__(self, folder: Path, count: int, flags: dict[str, Any]) -> None:
        self.folder = folder
        ports = free_ports(2 * count)
        self.cluster = new_cluster(count, peer_ports=ports[:count], http_ports=ports[count:])
        self.file = folder / "cluster.toml"
        self.flags = QUICK | flags
        self.running: dict[int, Replica] = {}
        entry = first_entry(self.cluster)
        self.first = to_b64(entry.header + entry.data)  # for the join files of nodes that are added
        format_cluster(self.cluster, self.file, segment_bytes=self.flags["disk.segment_bytes"])

    def loaded(self, node: int, more: Mapping[str, Any] = {}) -> LoadedSettings:
        """The settings of that node, also with bounds that no file can set."""
        flags = {"node": node, **self.flags, **more}
        bounds = {key: flags.pop(key) for key in list(flags) if rule_of(key)}
        loaded = load_settings(self.file, {}, flags)
        return replace(loaded, settings=with_bounds(loaded.settings, bounds))

    async def start(self, node: int, *, knows: int = CLUSTER_VERSION, **flags: Any) -> Replica:
        """Starts a node whose program `knows` that cluster version; `flags` are settings, with __ for the dot."""
        FairTime.begin(asyncio.get_running_loop())
        more = {key.replace("__", "."): value for key, value in flags.items()}
        loaded = self.loaded(node, more)
        disk, recovered = Disk.open(
            loaded.data, log_id=self.cluster.cluster.log, node=node, segment_bytes=loaded.settings.disk.segment_bytes
        )
        host = Host(
            loaded.settings,
            disk,
            recovered,
            metrics=Metrics(),
            logger=get_logger(node=node),
            cluster=self.cluster,
            making=ReplicaParts(knows=knows),
        )
        await host.start()
        self.running[node] = host.replica
        return host.replica

    def data(self, node: int) -> Path:
        """The data folder of that node."""
        return self.loaded(node).data

    async def kill(self, node: int) -> None:
        """Ends a node at once: no hand-over, no last answers. Waiting callers there get a client's error."""
        ended = self.running.pop(node)
        state, host = ended.state, host_of(ended)
        host.ended.cancel()
        state.life.end(ReplicaEnd.STOPPED)
        host.replica_ended(ended)  # no further tick
        state.writes.pending.fail_all(Code.LEADER_LOST, Code.LEADER_LOST, "the connection closed")
        state.reads.rounds.fail_all(ApiError(Code.SHUTTING_DOWN, "the connection closed"))
        state.applier.waiters.fail_all(ApiError(Code.SHUTTING_DOWN, "the connection closed"))
        await ended.close(1.0)
        await host.transport.close()
        await state.disk.close()

    async def stop(self, node: int) -> None:
        """Stops a node cleanly."""
        await host_of(self.running.pop(node)).stop()

    async def leader(self) -> Replica:
        """The leader that every running node follows, once the first entry of its term is applied there."""

        def agreed() -> Replica | None:
            leaders = {node.state.core.state.leader for node in self.running.values()}
            leader = self.running.get(leaders.pop()) if len(leaders) == 1 else None
            if leader is None or not leader.is_leader:
                return None
            return leader if leader.state.core.state.log.term_at(leader.applied) == leader.term else None

        found = await wait_until_async(agreed, what="one leader that all follow")
        assert isinstance(found, Replica)
        return found

    async def followers(self) -> list[Replica]:
        """Every other running node."""
        leader = await self.leader()
        return [node for node in self.running.values() if node is not leader]

    async def append(self, node: Replica, *values: bytes, seconds: float = 5.0) -> RequestResult:
        """Appends through that node."""
        return await node.submit(append_block(*values), len(values), deadline=deadline(seconds))

    async def all_at(self, index: int) -> None:
        """Waits until every running node has applied `index`."""
        await asyncio.gather(*(node.wait_applied(index, deadline(10)) for node in self.running.values()))


@asynccontextmanager
async def running(nodes: Nodes) -> AsyncIterator[Nodes]:
    """All nodes run, and end with the block."""
    try:
        for node in [each.id for each in nodes.cluster.node]:
            await nodes.start(node)
        yield nodes
    finally:
        for node in list(nodes.running):
            await nodes.kill(node)


@asynccontextmanager
async def cluster_of(count: int, folder: Path, **flags: Any) -> AsyncIterator[Nodes]:
    """A running cluster of `count` nodes, which ends with the block; `flags` are settings, with __ for the dot."""
    flags = {key.replace("__", "."): value for key, value in flags.items()}
    async with running(Nodes(folder, count, flags)) as nodes:
        yield nodes
