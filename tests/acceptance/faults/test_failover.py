"""How long a cluster takes no writes when its leader is killed or stands still, measured under load."""

import asyncio
import statistics
import time

import pytest

from raftlog.cluster.node.local_cluster import LocalCluster
from tests.acceptance.conftest import Measure
from tests.acceptance.load import Load
from tests.acceptance.logs import check_exactly_once, distribution, first_after
from tests.support import stretch, wait_until_async

pytestmark = pytest.mark.alone

# Medians of the issue. A short run on a busy machine is only asked to be sane.
KILLED_S, SILENT_S, SANE_S = 0.200, 0.700, 3.0
THINK_S = 0.002  # leaves some of the two cores to a restarting node

FULL = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.mark.parametrize("loss", ["killed", "paused"])
@pytest.mark.parametrize(("times", "is_full"), [(5, False), pytest.param(30, True, marks=FULL)], ids=["short", "full"])
async def test_the_next_leader_takes_writes_soon(
    cluster: LocalCluster, loss: str, times: int, is_full: bool, record_property: Measure
) -> None:
    """From kill -9 (the closed link is news) or kill -STOP (nothing but silence) of the leader to the first write that
    another leader acknowledges: the median is within the bound of the issue; and nothing is lost or doubled."""
    async with Load(cluster.urls, think_s=THINK_S) as load:
        took = [await _lose_the_leader(cluster, load, loss) for _ in range(times)]
    median = statistics.median(took)
    record_property("measured", f"leader {loss} to next acknowledged write: {distribution(took)}; {dict(load.answers)}")
    assert median <= SANE_S * stretch()
    if is_full:
        assert median <= (KILLED_S if loss == "killed" else SILENT_S), distribution(took)
    await check_exactly_once(cluster, load)


async def _lose_the_leader(cluster: LocalCluster, load: Load, loss: str) -> float:
    """Seconds from the loss to the first write acknowledged in a later term; then all nodes are back."""
    await load.more(100)
    leader = cluster.leader()
    told = cluster.status(leader)
    assert told is not None
    term = told.term
    moment = time.monotonic()
    if loss == "killed":
        cluster.kill(leader)
    else:
        cluster.pause(leader)
    first = await wait_until_async(
        lambda: first_after(load, moment, term), 20, what=f"a write: {load.answers}", every_s=0.005
    )
    assert first is not None
    if loss == "killed":
        cluster.start_node(leader)
    else:
        cluster.resume(leader)
    await asyncio.to_thread(cluster.wait_ready)
    return first.at - moment
