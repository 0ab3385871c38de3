"""Every workload with its checkers, against a store in memory: valid as it is, invalid with each bug that it sees."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftlog.chaos.judge.log_truth import LogTruth
from raftlog.chaos.judge.verdicts import Verdict
from raftlog.chaos.runs.aftermath import Aftermath
from raftlog.chaos.runs.judgement import Judgement
from raftlog.chaos.workloads.bank import Bank
from raftlog.chaos.workloads.lists import Lists
from raftlog.chaos.workloads.log import Appends
from raftlog.chaos.workloads.register import Registers
from raftlog.chaos.workloads.set import Sets
from raftlog.chaos.workloads.workload import Arena, Recorder, Workload
from tests.chaos.workloads.memory_cluster import MemoryArena, MemoryCluster, judged_alone

OPERATIONS = 600
MAKERS: dict[str, Callable[[Arena, Recorder], Workload]] = {
    "register": Registers,
    "log": Appends,
    "set": Sets,
    "bank": Bank,
    "lists": Lists,
}


async def judged(name: str, bug: str, operations: int = OPERATIONS) -> Judgement:
    """What the harness says of that many operations against a cluster with that bug."""
    cluster = MemoryCluster(bug)
    arena = MemoryArena(seed=3, urls={1: "", 2: "", 3: ""}, pace=0.0, cluster=cluster)
    workload = MAKERS[name](arena, Recorder(arena))
    await workload.prepare()
    return await judged_alone(
        workload, 2 * operations, lambda: cluster.index, lambda: Aftermath(log=LogTruth(cluster.records))
    )


@pytest.mark.parametrize("name", MAKERS)
async def test_a_store_without_bugs_is_valid(name: str) -> None:
    """Answers are lost and clients overtake each other, and nothing is wrong: the log settles unknown outcomes."""
    told = await judged(name, "")
    assert told.verdict is Verdict.VALID, (told.problems, told.missing, [each.problems for each in told.workloads])
    assert sum(len(each.operations) for each in told.workloads) >= OPERATIONS
    assert sum(told.workloads[0].settled.values()) > 0, "no answer was lost"


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("register", "stale"),
        ("register", "lost"),
        ("log", "lost"),
        ("log", "twice"),
        ("log", "skipping"),
        ("set", "stale"),
        ("set", "lost"),
        ("set", "skipping"),
        ("bank", "torn"),
        ("lists", "stale"),
        ("lists", "torn"),
    ],
)
async def test_each_bug_is_seen(name: str, bug: str) -> None:
    """One operation in fifty is answered from an old state, not carried out, carried out twice, or by half; or one
    record in fifty is passed over. With OPERATIONS the few stale reads may all fit an order by chance (1 of 60
    runs); four times as many did not (0 of 40)."""
    assert (await judged(name, bug, 4 * OPERATIONS)).verdict is Verdict.INVALID
