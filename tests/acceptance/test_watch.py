"""A watch from index 1 after all nodes were stopped and started: every change once, in order."""

import asyncio
import signal
from contextlib import aclosing

from raftlog import Client, WatchEvent, step
from raftlog.cluster.api.kv import TxnIn
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.support import hang_s


async def test_a_watch_from_1_after_a_restart_of_all_nodes(cluster: LocalCluster) -> None:
    """Puts, deletes, range deletes and transactions come before and after all nodes were killed at once, and again
    stopped one after the other. A watch from index 1 at every node reports each change once, under its index and
    revision.
    """
    expected: dict[int, list[tuple[bytes, bytes | None]]] = {}

    async def change(turns: range) -> None:
        async with Client(cluster.urls) as client:
            for turn in turns:
                name, number = b"a/%d" % turn, b"%d" % turn
                put = await client.put(name, number)
                expected[put.index] = [(name, number)]
                txn = await client.txn(TxnIn(then=[step("put", b"b", number), step("put", b"c", number)]))
                expected[txn.index] = [(b"b", number), (b"c", number)]
                gone = await client.delete(name)
                expected[gone.index] = [(name, None)]
                await client.delete(b"never there")
                await client.append(b"no change of any key")
            ranged = await client.delete_range(b"b", b"d")
            expected[ranged.index] = [(b"b", None), (b"c", None)]

    await change(range(3))
    for how in (signal.SIGKILL, signal.SIGTERM):
        if how is signal.SIGKILL:
            cluster.kill(*cluster.nodes)
        else:
            for node in cluster.nodes:
                assert cluster.stop_node(node) == 0
        await asyncio.to_thread(cluster.restore)
        watching = {node: asyncio.create_task(_events(cluster.url(node), max(expected) + 1)) for node in cluster.nodes}
        await change(range(3, 5))
        told = {node: await asyncio.wait_for(task, hang_s()) for node, task in watching.items()}
        for node, events in told.items():
            seen = {event.index: [(change.key, change.value) for change in event.changes] for event in events}
            assert len(seen) == len(events), f"node {node} reported an index twice"
            assert seen == {index: expected[index] for index in sorted(expected) if index <= events[-1].index}
            revisions = [event.revision for event in events]
            assert revisions == list(range(2, 2 + len(events))), "every change is one step of the revision"


async def _events(url: str, beyond: int) -> list[WatchEvent]:
    """The events of one node from index 1 to the first at or after `beyond`."""
    told: list[WatchEvent] = []
    async with Client(url, bound=True) as watcher, aclosing(watcher.watch(from_index=1)) as events:
        async for event in events:
            assert isinstance(event, WatchEvent)
            told.append(event)
            if event.index >= beyond:
                break
    return told
