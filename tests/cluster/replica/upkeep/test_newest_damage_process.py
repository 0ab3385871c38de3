"""Real nodes are killed right after they acknowledged a write, and what one of them wrote last is damaged."""

from pathlib import Path

import pytest

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.raft.codec.entry import ENTRY_MAGIC, HEADER_SIZE
from tests.cluster.files.disk_folder import flip
from tests.cluster.replica.upkeep.test_damage_process import lines_of
from tests.support import wait_until

pytestmark = [pytest.mark.timeout(180)]

NEVER_MS = 600_000
"""No durable mark comes in this time: only the row, the effects or the damage itself prove the sync."""


def newest_segment(cluster: LocalCluster, node: int) -> Path:
    """The file that the node appends to."""
    return max((cluster.data(node) / "shard-0/log").glob("[0-9]*.seg"))


@pytest.mark.parametrize(
    ("has_row", "mask"), [(False, 0x10), (True, 0xFF)], ids=["one bit, at once", "a byte, once its row is written"]
)
def test_a_damaged_newest_entry_loses_no_acknowledged_write(tmp_path: Path, has_row: bool, mask: int) -> None:
    """Node 3 is down; nodes 1 and 2 acknowledge a write and are killed; the newest entry of one is damaged. That one
    and node 3 start: they hold no election that could lose the write. Node 2 comes back, the damaged one heals, and all
    three serve the write.

    Guard: `synced_until` of raft/wal/evidence.py.
    """
    with LocalCluster(tmp_path / "cluster", 3, settings={"disk.mark_idle_ms": NEVER_MS}) as cluster:
        cluster.restore()
        leader = cluster.leader()
        hit, away = [node for node in cluster.nodes if node != leader]
        with SyncClient(cluster.urls, deadline_s=30) as client:
            client.append(b"before")
            cluster.kill(away)
            last = client.append(b"acknowledged").last
            if has_row:
                rows = newest_segment(cluster, hit).with_suffix(".idx")
                wait_until(lambda: rows.stat().st_size >= 64 + 16 * last, 30, what="the row of the newest record")
            cluster.kill(leader, hit)
        segment = newest_segment(cluster, hit)
        content = segment.read_bytes()
        flip(segment, content.rindex(b"acknowledged") + 3, mask)
        assert content.rindex(ENTRY_MAGIC) + HEADER_SIZE < content.rindex(b"acknowledged"), "it is the newest entry"
        cluster.start_node(hit)
        cluster.start_node(away)
        wait_until(lambda: bool(lines_of(cluster, hit, "healing")), 30, what="the damage is noticed")
        cluster.start_node(leader)
        cluster.wait_ready()
        wait_until(lambda: bool(lines_of(cluster, hit, "healed")), 60, what="the damaged node has healed")
        for node in cluster.nodes:
            wait_until(lambda: (told := cluster.status(node)) is not None and told.applied >= last, 30)  # noqa: B023
            with SyncClient([cluster.url(node)], bound=True, deadline_s=30) as client:
                assert [each.value for each in client.log(to=last + 1)] == [b"before", b"acknowledged"]
