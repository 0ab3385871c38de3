"""Readers of a real node: how many may wait."""

import asyncio
from pathlib import Path

import pytest

from raftlog.cluster.api.errors import ApiError, Code
from tests.cluster.nodes import cluster_of, deadline
from tests.support import wait_until_async


async def test_readers_in_a_round_count_towards_the_limit_of_readers(tmp_path: Path) -> None:
    """A leader that no majority confirms keeps its readers in rounds. As many as limits.waiters_max may wait in all,
    and one more is refused as busy, wherever the others wait. Guard: `_check_waiters`."""
    async with cluster_of(3, tmp_path, **{"limits.waiters_max": 4}) as nodes:
        leader = await nodes.leader()
        for node in await nodes.followers():
            await nodes.kill(node.node_id)
        reads = [leader.read_barrier(deadline(5.0)) for _ in range(2)]
        await wait_until_async(lambda: not leader.state.reads.rounds.waiting, what="the readers are in a round")
        reads += [leader.read_barrier(deadline(5.0))]
        waits = asyncio.ensure_future(leader.wait_applied(leader.applied + 100, deadline(5.0)))
        await wait_until_async(lambda: len(leader.state.applier.waiters) == 1, what="somebody waits for an index")
        for _ in range(2):
            with pytest.raises(ApiError, match=r"limits\.waiters_max") as failed:
                await leader.read_barrier(deadline(5.0))
            assert failed.value.code is Code.BUSY
        with pytest.raises(ApiError, match=r"limits\.waiters_max"):
            await leader.wait_applied(leader.applied + 100, deadline(5.0))
        waits.cancel()
        for read in reads:
            read.cancel()
