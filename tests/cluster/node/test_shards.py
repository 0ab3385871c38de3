"""Three Raft groups on each of three nodes, in one process for each node: each group is a cluster of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from raftlog.cluster.config.cluster_file import first_entry
from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.files.errors import FolderExists, FolderForeign, FolderLocked, FolderMissing
from raftlog.cluster.files.folder import DiskIdentity, format_shard, open_further
from raftlog.cluster.node.host import Host
from raftlog.cluster.protocol.forward_frames import encode_read
from raftlog.cluster.replica.replica import Replica
from raftlog.cluster.runtime.logging import get_logger
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.raft.codec.frame import (
    FrameDecoder,
    encode_for_shard,
)
from raftlog.raft.messages import RequestVote
from tests.cluster.nodes import Nodes, deadline, put_block
from tests.cluster.replica.upkeep.test_snapshots import EARLY
from tests.support import wait_until_async

SHARDS = (0, 1, 2)
SEGMENT_BYTES = 1 << 20


class Hosts:
    """Three nodes, each with the groups of SHARDS; those not running are missing."""

    def __init__(self, folder: Path, flags: dict[str, Any]) -> None:
        self.nodes = Nodes(folder, 3, {"disk.segment_bytes": SEGMENT_BYTES} | flags)
        self.running: dict[int, Host] = {}

    async def start(self, node: int) -> Host:
        """Starts a node; the first start makes the folders of its further groups."""
        loaded = self.nodes.loaded(node)
        opened = Disk.open(loaded.data, segment_bytes=SEGMENT_BYTES)
        identity, further = opened[1].identity, []
        for shard in SHARDS[1:]:
            if not (loaded.data / f"shard-{shard}").exists():
                entry = first_entry(self.nodes.cluster)
                format_shard(loaded.data, identity, shard, entry, segment_bytes=SEGMENT_BYTES)
            found = open_further(loaded.data, identity, shard, segment_bytes=SEGMENT_BYTES)
            further.append((Disk(found), found.recovered))
        host = Host(
            loaded.settings,
            *opened,
            metrics=Metrics(),
            logger=get_logger(node=node),
            cluster=self.nodes.cluster,
            further=further,
        )
        await host.start()
        self.running[node] = host
        return host

    async def stop(self, node: int) -> None:
        """Stops it cleanly."""
        await self.running.pop(node).stop()

    async def leader(self, shard: int) -> Replica:
        """The leader of a group that all its running replicas follow, with an applied entry of its term."""

        def agreed() -> Replica | None:
            replicas = {node: host.replicas[shard] for node, host in self.running.items()}
            leaders = {each.state.core.state.leader for each in replicas.values()}
            leader = replicas.get(leaders.pop()) if len(leaders) == 1 else None
            if leader is None or not leader.is_leader:
                return None
            return leader if leader.state.core.state.log.term_at(leader.applied) == leader.term else None

        found = await wait_until_async(agreed, what=f"a leader of group {shard}")
        assert isinstance(found, Replica)
        return found


@asynccontextmanager
async def three_hosts(folder: Path, **flags: Any) -> AsyncIterator[Hosts]:
    """All of them running; they end with the block. `flags` are settings, with __ for the dot."""
    hosts = Hosts(folder, {key.replace("__", "."): value for key, value in flags.items()})
    try:
        for node in (1, 2, 3):
            await hosts.start(node)
        yield hosts
    finally:
        for node in list(hosts.running):
            await hosts.stop(node)


async def put(replica: Replica, key: bytes, value: bytes) -> int:
    """Puts a key through that replica: its index."""
    return (await replica.submit(put_block(key, value), 1, deadline=deadline())).last


def value_of(replica: Replica, key: bytes) -> bytes | None:
    """What the replica has applied for that key."""
    found = replica.machine.get(key)
    return None if found is None else found.value


async def test_groups_elect_write_and_read_apart(tmp_path: Path) -> None:
    """Each group has a leader, a log and a state of its own, written and read through every node; what one group has
    no other one has. The public interface of a host is that of group 0."""
    async with three_hosts(tmp_path) as hosts:
        for shard in SHARDS:
            leader = await hosts.leader(shard)
            for node, host in hosts.running.items():
                await put(host.replicas[shard], b"k%d" % node, b"group %d" % shard)  # a follower forwards it
            index = await put(leader, b"own-%d" % shard, b"x")
            for host in hosts.running.values():
                replica = host.replicas[shard]
                assert await replica.read_barrier(deadline()) >= index
                assert [value_of(replica, b"k%d" % node) for node in (1, 2, 3)] == [b"group %d" % shard] * 3
                assert [value_of(replica, b"own-%d" % each) for each in SHARDS] == [
                    b"x" if each == shard else None for each in SHARDS
                ]
        for host in hosts.running.values():
            assert host.replica is host.replicas[0]
            for shard in SHARDS:
                digests = {each.replicas[shard].machine.digest() for each in hosts.running.values()}
                assert len(digests) == 1


async def test_leaders_of_groups_may_be_on_different_nodes(tmp_path: Path) -> None:
    """Leadership of one group is handed over without the others, and each goes on where its leader is."""
    async with three_hosts(tmp_path) as hosts:
        for shard in SHARDS:
            leader = await hosts.leader(shard)
            if leader.node_id != shard + 1:
                await leader.transfer(shard + 1, deadline())
        for shard in SHARDS:
            assert (await hosts.leader(shard)).node_id == shard + 1
        await asyncio.gather(*(put(hosts.running[1].replicas[shard], b"k", b"v") for shard in SHARDS))
        await hosts.stop(2)  # the leader of group 1: the others keep theirs
        terms = {shard: hosts.running[shard + 1].replicas[shard].term for shard in (0, 2)}
        assert (await hosts.leader(1)).node_id in (1, 3)
        await put(hosts.running[1].replicas[1], b"k", b"w")
        assert {shard: hosts.running[shard + 1].replicas[shard].term for shard in (0, 2)} == terms


async def test_snapshots_of_groups_are_saved_sent_and_restored_apart(tmp_path: Path) -> None:
    """Each group saves snapshots in its own folder. A replica that was away gets the snapshot of its group from the
    leader of that group, under writes of the others, and a restart restores every group."""
    async with three_hosts(tmp_path, **EARLY) as hosts:
        for shard in SHARDS:
            await put(await hosts.leader(shard), b"first", b"%d" % shard)
        leader = await hosts.leader(1)
        away = next(node for node in (1, 2, 3) if node != leader.node_id)
        had = hosts.running[away].replicas[1].state.core.state.log.last.index
        await hosts.stop(away)
        leader = await hosts.leader(1)
        while leader.state.core.state.log.first <= had + 1:
            blocks = [put_block(b"k%03d" % (number % 150), b"v" * 200) for number in range(100)]
            await asyncio.gather(*(leader.submit(block, 1, deadline=deadline(20)) for block in blocks))
            leader = await hosts.leader(1)
        again = (await hosts.start(away)).replicas
        await again[1].wait_applied(leader.applied, deadline(30))
        assert again[1].state.snapshots.index > had, "the log that it lacked is gone at the leader: it got the state"
        for shard in SHARDS:
            applied = (await hosts.leader(shard)).applied
            for host in hosts.running.values():
                await host.replicas[shard].wait_applied(applied, deadline())
            assert value_of(again[shard], b"first") == b"%d" % shard
            folder = hosts.nodes.loaded(away).data / f"shard-{shard}" / "snapshots"
            saved = sorted(int(path.name) for path in folder.iterdir() if path.suffix != ".new")
            assert (saved[-1:] or [0]) == [again[shard].state.snapshots.index]
        digests = {shard: again[shard].machine.digest() for shard in SHARDS}
        await hosts.stop(away)
        restarted = (await hosts.start(away)).replicas
        for shard in SHARDS:
            await restarted[shard].wait_applied((await hosts.leader(shard)).applied, deadline(30))
            assert value_of(restarted[shard], b"first") == b"%d" % shard
            assert restarted[shard].state.snapshots.index == again[shard].state.snapshots.index
        assert restarted[1].machine.digest().count == digests[1].count


async def test_gauges_of_further_groups_say_their_group(tmp_path: Path) -> None:
    """The gauges of group 0 stand in /metrics as ever, those of other groups beside them with the label `shard`."""
    async with three_hosts(tmp_path) as hosts:
        leader = await hosts.leader(2)
        host = hosts.running[leader.node_id]
        sample = host.metrics.registry.get_sample_value
        assert sample("raftlog_is_leader", {"shard": "2"}) == 1
        assert sample("raftlog_is_leader") == float(host.replica.is_leader)
        text = host.metrics.text().decode()
        assert text.count("# TYPE raftlog_term gauge") == 1
        assert f"\nraftlog_term {float(host.replica.term)}\n" in text
        assert f'\nraftlog_term{{shard="1"}} {float(host.replicas[1].term)}\n' in text
        assert sample("raftlog_follower_lag", {"peer": str(leader.node_id % 3 + 1), "shard": "2"}) is not None


async def test_error_in_one_group_ends_the_process(tmp_path: Path) -> None:
    """A group that cannot go on must not be served by a process that looks well."""
    async with three_hosts(tmp_path) as hosts:
        host = hosts.running[(await hosts.leader(1)).node_id]
        host.replicas[1].fail(RuntimeError("a defect"))
        assert await host.ended is NodeExit.FAILURE
        assert not host.replica.state.life.is_over, "the launcher stops the others cleanly"


async def test_frames_of_a_group_that_is_not_here_are_dropped(tmp_path: Path) -> None:
    """A peer may have a group already that this node has not: nothing of it reaches another group."""
    async with three_hosts(tmp_path) as hosts:
        host = hosts.running[1]
        before = {shard: replica.state.core.state.term for shard, replica in host.replicas.items()}
        vote = RequestVote(shard=7, sender=2, to=1, term=1_000, last_index=9, last_term=9)
        host.peer_messages(2, "", [vote])
        (frame,) = FrameDecoder().feed(encode_for_shard(7, encode_read(1)))
        host.peer_requests(2, "", [frame])
        assert {shard: replica.state.core.state.term for shard, replica in host.replicas.items()} == before
        assert all(replica.state.reads.asked == [] for replica in host.replicas.values())


async def test_folder_of_a_group_is_made_once_and_opened_under_the_lock(tmp_path: Path) -> None:
    """The folder of a group says its group: in the place of another it is refused. The data folder's one lock keeps a
    second process out of all groups."""
    async with three_hosts(tmp_path) as hosts:
        data = hosts.nodes.loaded(1).data
        identity = hosts.running[1].replica.state.identity
        own = DiskIdentity(identity.log_id, identity.node, identity.incarnation)
        with pytest.raises(FolderExists, match="shard-1"):
            format_shard(data, own, 1, first_entry(hosts.nodes.cluster))
        with pytest.raises(ValueError, match="numbered 1 to"):
            format_shard(data, own, 0, first_entry(hosts.nodes.cluster))
        with pytest.raises(FolderMissing, match="shard-3"):
            open_further(data, own, 3)
        with pytest.raises(FolderLocked):
            Disk.open(data)
        await hosts.stop(1)
        (data / "shard-1").rename(data / "shard-3")
        with pytest.raises(FolderForeign, match="shard 1"):
            open_further(data, own, 3)
        (data / "shard-3").rename(data / "shard-1")
        await hosts.start(1)
