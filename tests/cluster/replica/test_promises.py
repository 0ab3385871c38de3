"""What a node promises its peers, and when."""

from __future__ import annotations

import asyncio
from pathlib import Path

from raftlog.raft.messages import AppendEntriesReply, Message
from raftlog.raft.ready import SyncBatch
from raftlog.raft.types import NodeId
from tests.cluster.nodes import append_block, cluster_of, deadline, sync_with
from tests.support import hang_s, wait_until_async


async def test_an_acknowledgement_waits_for_the_followers_own_sync(tmp_path: Path) -> None:
    """While the disk of a follower works, nothing that it sends promises the entries; afterwards one message does."""
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        follower = next(node for node in nodes.running.values() if node is not leader)
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        real, send = follower.state.disk.carry_out, follower.state.links.send
        promised: list[int] = []

        async def slow(batch: SyncBatch) -> None:
            await gate
            await real(batch)

        def sent(message: Message) -> None:
            if isinstance(message, AppendEntriesReply) and message.success:
                promised.append(message.match)
            send(message)

        sync_with(follower, slow)  # a slow disk
        follower.state.links.send = sent  # type: ignore[method-assign]
        last = (await leader.submit(append_block(b"x"), 1, deadline=deadline())).last
        core, syncer = follower.state.core, follower.state.syncer
        await wait_until_async(lambda: core.state.log.last.index >= last and syncer.is_busy)
        heard = len(promised)
        await wait_until_async(lambda: follower.committed >= last, what="heartbeats that name the commit")
        assert max(promised, default=0) < last, "a promise of an entry that is not durable"
        gate.set_result(None)
        await wait_until_async(lambda: max(promised[heard:], default=0) >= last, what="the promise")


async def test_an_answer_for_a_peer_waits_until_a_link_takes_it(tmp_path: Path) -> None:
    """The leader's link to a follower is not open when it places a write that the follower forwarded. The follower gets
    the answer once the link is open, long before the deadline of the write."""
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        follower = next(node for node in nodes.running.values() if node is not leader)
        send = leader.state.links.send_bulk

        def is_down(to: NodeId, frame: bytes) -> bool:
            return False

        leader.state.links.send_bulk = is_down  # type: ignore[method-assign]  # a link that is not open yet
        writing = follower.submit(append_block(b"x"), 1, deadline=deadline())
        await wait_until_async(lambda: leader.state.writes.unsent, what="an answer that no link took")
        assert not writing.done()
        leader.state.links.send_bulk = send  # type: ignore[method-assign]
        async with asyncio.timeout(hang_s()):
            assert (await writing).last > 0
