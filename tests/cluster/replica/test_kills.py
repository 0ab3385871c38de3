"""Kills and restarts nodes under load: acknowledged writes are there once, refused ones are not there."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from raftlog.cluster.api.errors import ApiError, Outcome
from tests.cluster.nodes import Nodes, append_block, cluster_of, deadline, host_of
from tests.cluster.replica.test_replica import log_of
from tests.support import wait_until_async

WRITERS = 12
ROUNDS = 6


class Load:
    """Writers and readers on any running node, and their answers."""

    def __init__(self, nodes: Nodes, chance: random.Random) -> None:
        self.nodes = nodes
        self.chance = chance
        self.told: dict[bytes, str] = {}  # value -> applied | not_applied | unknown
        self.newest = 0  # highest acknowledged index
        self.stale: list[tuple[int, int]] = []
        self.is_over = False
        self._count = 0

    @property
    def acknowledged(self) -> int:
        """How many writes were."""
        return sum(outcome == "applied" for outcome in self.told.values())

    async def go_on(self, writes: int) -> None:
        """Returns after so many more acknowledged writes."""
        goal = self.acknowledged + writes
        await wait_until_async(lambda: self.acknowledged >= goal, what="acknowledged writes")

    async def write(self) -> None:
        """One write after another, each a value of its own, never sent twice."""
        while not self.is_over:
            self._count += 1
            value = b"%d" % self._count
            try:
                node = self.chance.choice(list(self.nodes.running.values()))
                answer = await node.submit(append_block(value), 1, deadline=deadline(0.3))
                self.told[value] = "applied"
                self.newest = max(self.newest, answer.last)
            except ApiError as error:
                self.told[value] = str(error.row.outcome)
            except IndexError:  # no node runs
                await asyncio.sleep(0)

    async def read(self) -> None:
        """Linearizable reads: none may be older than a write acknowledged before it began."""
        while not self.is_over:
            before = self.newest
            try:
                node = self.chance.choice(list(self.nodes.running.values()))
                index = await node.read_barrier(deadline(0.3))
                if index < before:
                    self.stale.append((index, before))
            except (ApiError, IndexError):
                await asyncio.sleep(0)


@pytest.mark.parametrize("seed", [1, 2])
async def test_kills_lose_nothing_acknowledged_and_double_nothing(tmp_path: Path, seed: int) -> None:
    """Promise 1 and 3: one node, the leader, or all at once are killed while writes run. Then all logs are equal, every
    acknowledged value is in them once, every refused one not at all, and no read was stale.
    """
    chance = random.Random(seed)
    small = {"raft__tail_bytes_max": 30_000, "limits__recent_bytes_max": 30_000, "limits__snapshot_log_bytes": 60_000}
    async with cluster_of(3, tmp_path, **small) as nodes:
        await nodes.leader()
        load = Load(nodes, chance)
        tasks = [asyncio.create_task(load.write()) for _ in range(WRITERS)]
        tasks += [asyncio.create_task(load.read()) for _ in range(3)]
        for number in range(ROUNDS):
            await load.go_on(chance.randint(20, 150))
            running = list(nodes.running)
            leaders = [node for node in running if nodes.running[node].is_leader]
            for victim in (running, leaders or running[:1], [chance.choice(running)])[number % 3]:
                await nodes.kill(victim)
            for node in (1, 2, 3):
                if node not in nodes.running:
                    await nodes.start(node)
        load.is_over = True
        await asyncio.gather(*tasks)
        leader = await nodes.leader()
        last = await nodes.append(leader, b"end")
        await nodes.all_at(last.last)
        logs = [await log_of(node) for node in nodes.running.values()]
        assert logs[0] == logs[1] == logs[2]
        there = Counter(logs[0])
        assert [value for value, outcome in load.told.items() if outcome == "applied" and there[value] != 1] == []
        assert [value for value, outcome in load.told.items() if outcome == Outcome.NOT_APPLIED and there[value]] == []
        assert max(there.values()) == 1
        assert load.stale == []
        assert len({node.machine.digest() for node in nodes.running.values()}) == 1
        assert not [node for node in nodes.running.values() if host_of(node).ended.done()]
