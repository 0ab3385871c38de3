"""Each node of a healed cluster is asked for a write and a read: one that fails to is named, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from raftlog.chaos.deploy.processes import waited_s
from raftlog.chaos.runs.every_node import bound_s, every_node_serves
from raftlog.chaos.workloads.log import Appends
from raftlog.chaos.workloads.workload import Arena, Recorder
from raftlog.cluster.api.errors import Code
from raftlog.cluster.client.errors import NotApplied, OutcomeUnknown
from tests.chaos.workloads.memory_cluster import MemoryClient, MemoryCluster


@dataclass
class FakeNode(MemoryClient):
    """A node that fails in one way: `fails` is "append", "put", "get", "stale", "late" or "" for none."""

    fails: str = ""

    async def _answer(self) -> None:
        await self._turns()

    async def append_many(self, batch: Any) -> Any:
        """Records."""
        if self.fails == "append":
            raise OutcomeUnknown(Code.TIMEOUT, "no answer")
        return await super().append_many(batch)

    async def put(self, key: bytes, value: bytes) -> Any:
        """One key."""
        if self.fails == "put":
            raise NotApplied(Code.NO_LEADER, "node 2 knows no leader")
        return await super().put(key, b"1" if self.fails == "stale" else value)

    async def get(self, key: bytes) -> Any:
        """One key."""
        if self.fails == "get":
            raise NotApplied(Code.DEADLINE, "the leader did not answer")
        return await super().get(key)


async def found(fails: str, *, within_s: float = 60.0, waited: float = 0.0) -> tuple[int, list[str]]:
    """The findings of nodes 1 to 3, of which node 2 fails so; each of them waits that long for a core."""
    cluster, counted = MemoryCluster(), [0.0]

    def waiting() -> float:
        counted[0] += waited
        return counted[0]

    nodes: Any = {node: FakeNode(cluster, fails=fails if node == 2 else "") for node in (1, 2, 3)}
    arena = Arena(seed=1)
    return await every_node_serves(nodes, Appends(arena, Recorder(arena)), within_s, waiting)


async def test_nodes_that_serve_are_no_finding() -> None:
    """Three appends, and the index of the newest."""
    last, problems = await found("")
    assert problems == []
    assert last > 0


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        ("append", "its append was not acknowledged"),
        ("put", "NotApplied: no_leader: node 2 knows no leader"),
        ("get", "NotApplied: deadline: the leader did not answer"),
        ("stale", "after it had written 2"),
    ],
)
async def test_one_node_that_does_not_serve_is_a_finding(fails: str, said: str) -> None:
    """Though the others serve: the sentence names that node and what it refused."""
    _, problems = await found(fails)
    assert len(problems) == 1
    assert problems[0].startswith("every node serves, but not node 2: ")
    assert said in problems[0]


async def test_a_node_that_serves_late_is_a_finding_unless_it_waited_for_a_core() -> None:
    """Late is what took longer than the bound, without the time in which no core was free."""
    _, late = await found("", within_s=-1.0)
    assert len(late) == 3
    assert "the bound is -1 s" in late[0]
    assert (await found("", within_s=-1.0, waited=60.0))[1] == []


def test_the_bound_follows_the_election_timeout() -> None:
    """Ten of them, as in the simulator; a process that is gone has waited for nothing."""
    assert bound_s({}) == 6.0
    assert bound_s({"raft.election_timeout_max_ms": 2_500}) == 25.0
    assert waited_s([1 << 30]) == 0.0
