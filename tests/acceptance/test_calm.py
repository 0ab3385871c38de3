"""Tests a cluster without faults: no unknown outcome, and no leader change under any load."""

import asyncio
import time
from collections import Counter

import pytest

from raftlog import Client, compare, step
from raftlog.cluster.api.kv import TxnIn
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.acceptance.conftest import Measure
from tests.acceptance.load import Load, check_no_election
from tests.acceptance.logs import check_exactly_once
from tests.support import HANG_S, wait_until_async

pytestmark = pytest.mark.alone


async def test_a_run_without_faults_has_no_unknown(cluster: LocalCluster) -> None:
    """Appends, puts, compare-and-sets, transactions, deletes and reads at every node, many at once: each is answered
    at its first attempt, none with unknown."""
    outcomes: Counter[str] = Counter()

    async def use(number: int) -> None:
        async with Client(cluster.url(1 + number % 3), bound=True, sessions=number % 2 == 0) as client:
            key = b"key-%d" % (number % 5)
            for turn in range(20):
                outcomes[(await client.append(b"record", key=key)).outcome] += 1
                written = await client.put(key, b"%d" % turn)
                outcomes[written.outcome] += 1
                then = [step("put", key + b"-last", b"%d" % turn)]
                txn = TxnIn([compare(key, "mod", "=", written.revision)], then, [step("delete", key)])
                outcomes[(await client.txn(txn)).result] += 1
                await client.get(key)

    async with Load(cluster.urls, writers=32) as load:
        await asyncio.gather(*(use(number) for number in range(15)))
    print(f"{dict(outcomes)}; {dict(load.answers)}")
    assert set(load.answers) == {"applied/applied"}, load.answers
    assert set(outcomes) == {"applied"}, outcomes
    await check_exactly_once(cluster, load)


@pytest.mark.parametrize("seconds", [5, pytest.param(300, marks=[pytest.mark.long, pytest.mark.timeout(480)])])
async def test_no_leader_change_under_full_load(cluster: LocalCluster, seconds: int, record_property: Measure) -> None:
    """As many writes as the machine takes: the term stays what it was, the leader too, and no write fails."""
    leader = cluster.leader()
    before = cluster.status(leader)
    began = time.monotonic()
    async with Load(cluster.urls, writers=128, attempt_s=10) as load:
        await wait_until_async(
            lambda: time.monotonic() - began > seconds, seconds + HANG_S, what=f"{seconds} s of load", every_s=0.1
        )
        rate = len(load.acknowledged) / (time.monotonic() - began)
    record_property("measured", f"{rate:.0f} acknowledged writes a second for {seconds} s; {dict(load.answers)}")
    check_no_election(before, cluster.status(leader))
    assert set(load.answers) == {"applied/applied"}, load.answers
    assert rate > (100 if seconds > 60 else 0)
