"""kill -9 of one node or of all at random moments: nothing acknowledged is lost, and nothing is there twice."""

import random

import pytest

from raftlog.cluster.node.local_cluster import LocalCluster
from tests.acceptance.conftest import Measure
from tests.acceptance.load import Load
from tests.acceptance.logs import check_exactly_once
from tests.support import fresh_seed


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
async def test_kill_9_loses_and_doubles_nothing(cluster: LocalCluster, kills: int, record_property: Measure) -> None:
    """The leader or all nodes at once are killed while writers never stop.

    Every acknowledged write is at the index of its answer, none is there twice, and all nodes hold the same log.
    """
    seed = fresh_seed("kill")
    print(f"seed {seed}")
    chance = random.Random(seed)
    async with Load(cluster.urls) as load:
        for kill in range(kills):
            await load.more(chance.randint(1, 300))
            kinds = {
                "leader": [cluster.leader()],
                "any": [chance.choice(list(cluster.nodes))],
                "all": list(cluster.nodes),
            }
            kind = list(kinds)[kill % 3]
            cluster.kill(*kinds[kind])
            if kind != "all":
                await load.more(chance.randint(1, 300))  # two of three go on
            for node in kinds[kind]:
                cluster.start_node(node)
            print(f"killed {kind}: {kinds[kind]} after {len(load.acknowledged)} acknowledged")
        await load.more(50)
    cluster.wait_ready()
    record_property("measured", f"{kills} kills, {len(load.acknowledged)} acknowledged; {dict(load.answers)}")
    await check_exactly_once(cluster, load)
