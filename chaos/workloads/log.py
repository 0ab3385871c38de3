"""Appends unique records, pipelined over sessions that retry, while consumers read all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from raftlog import Client, NewRecord
from raftlog.chaos.judge.history import Operation
from raftlog.chaos.judge.log_checker import records_of
from raftlog.chaos.judge.log_truth import LogTruth
from raftlog.chaos.workloads.consumers import Consumer, Jumper, hopping, steady
from raftlog.chaos.workloads.workload import DIRECT, Answer, Workload, placed, read_to_the_end

CLIENTS: Final = 4
IN_FLIGHT: Final = 4
"""Appends that one client has under way at once, in one session."""

BATCH_SHARE: Final = 0.1
BATCH_RECORDS: Final = 3
THINK_S: Final = 0.03


@dataclass(slots=True)
class Appends(Workload):
    """The workload and its consumers."""

    name: str = "log"
    model: str = "log"
    consumers: list[Consumer] = field(default_factory=list)
    jumper: Jumper | None = None
    oldest: Callable[[], int] = lambda: 1  # the oldest index that may be read, as far as known
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def prepare(self) -> None:
        """The consumers begin before anything is there to be read."""
        for name, route in (("consumer-steady", steady), ("consumer-hopping", hopping)):
            self.consumers.append(Consumer(name, route(self.arena, name)))
        first = self.consumers[0]
        self.jumper = Jumper("consumer-jumping", hopping(self.arena, "").clients, self.arena.chance("consumer-jumping"))
        history = self.recorder.history
        self._tasks = [asyncio.create_task(each.run(history, self.arena)) for each in self.consumers]
        self._tasks.append(
            asyncio.create_task(self.jumper.run(history, self.arena, lambda: (self.oldest(), first.position)))
        )

    async def run(self) -> None:
        """All processes of all clients."""
        async with asyncio.TaskGroup() as group:
            for number in range(len(self.arena.urls) if self.arena.all_bound else CLIENTS):
                client, node = self.arena.client(number)
                for lane in range(IN_FLIGHT):
                    group.create_task(self._lane(client, node, f"log-{number}.{lane}"))

    async def _lane(self, client: Client, node: int | None, process: str) -> None:
        chance = self.arena.chance(process)
        number = 0
        while not self.arena.stopping.is_set():
            number += 1
            record: Any = f"{process}:{number}"
            if chance.random() < BATCH_SHARE:
                record = [f"{record}.{part}" for part in range(BATCH_RECORDS)]
            await self.append(client, process, node, record)
            await self.arena.think(chance, THINK_S)

    async def append(self, client: Client, process: str, node: int | None, record: Any) -> Answer | None:
        """One append of a record, or of a list of them as one batch."""

        async def call() -> Answer:
            batch = record if isinstance(record, list) else [record]
            done = await client.append_many([NewRecord(each.encode()) for each in batch])
            return Answer(record, index=done.last, term=done.term, repeated=done.result == "repeated")

        return await self.recorder.run(process, "append", call, value=record, node=node)

    def marks(self, operation: Operation) -> Sequence[str]:
        """The records themselves."""
        return records_of(operation) if operation.f == "append" else ()

    def places(self, log: LogTruth) -> Mapping[str, Sequence[int]]:
        """Every append of this workload."""
        return placed((value, index) for index, value in log.appended if not value.startswith(DIRECT))

    async def finish(self, last_index: int) -> None:
        """Waits until the consumers have read up to there."""
        await read_to_the_end(self._tasks, lambda: all(each.position >= last_index for each in self.consumers))

    def judge(self, log: LogTruth) -> list[str]:
        """Each consumer has every record of the log, once, in order."""
        problems = [problem for each in self.consumers for problem in each.compared(log)]
        return problems + (self.jumper.compared(log.appended) if self.jumper is not None else [])
