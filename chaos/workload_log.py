"""The log workload: unique records, pipelined over sessions that retry, and consumers that read all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from chaos.checks import Changes
from chaos.history import Operation
from chaos.log_checker import records_of
from chaos.log_truth import LogTruth
from chaos.workload import AFTER_FAILURE_S, Arena, Recorder, Told
from cluster.client import Client, ClientError, NewRecord, Record

CLIENTS: Final = 4
IN_FLIGHT: Final = 4
"""Appends that one client has under way at once, in one session."""

BATCH_SHARE: Final = 0.1
BATCH_RECORDS: Final = 3
THINK_S: Final = 0.03

CONSUMERS: Final = 2
CHUNK_RECORDS: Final = 200
CHUNK_S: Final = 0.5
FINISH_S: Final = 30.0


@dataclass(slots=True)
class Consumer:
    """One reader of the whole log, from its first index on; its own tally of what it was given."""

    name: str
    client: Client
    rows: list[tuple[int, str]] = field(default_factory=list)
    position: int = 0
    reopened: int = 0


@dataclass(slots=True)
class Appends:
    """The workload and its consumers."""

    arena: Arena
    recorder: Recorder
    name: str = "log"
    model: str = "log"
    init: Any = None
    consumers: list[Consumer] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def prepare(self) -> None:
        """The consumers begin before anything is there to be read."""
        for number in range(CONSUMERS):
            client, _ = self.arena.client(0)
            self.consumers.append(Consumer(f"consumer-{number}", client))
        self._tasks = [asyncio.create_task(self._consume(each)) for each in self.consumers]

    async def run(self) -> None:
        """All processes of all clients."""
        async with asyncio.TaskGroup() as group:
            for number in range(len(self.arena.urls) if self.arena.all_bound else CLIENTS):
                client, node = self.arena.client(number)
                for lane in range(IN_FLIGHT):
                    group.create_task(self._process(client, node, f"log-{number}.{lane}"))

    async def _process(self, client: Client, node: int | None, process: str) -> None:
        chance = self.arena.chance(process)
        number = 0
        while not self.arena.stopping.is_set():
            number += 1
            record: Any = f"{process}:{number}"
            if chance.random() < BATCH_SHARE:
                record = [f"{record}.{part}" for part in range(BATCH_RECORDS)]
            await self.append(client, process, node, record)
            await self.arena.think(chance, THINK_S)

    async def append(self, client: Client, process: str, node: int | None, record: Any) -> Told | None:
        """One append of a record, or of a list of them as one batch."""

        async def call() -> Told:
            batch = record if isinstance(record, list) else [record]
            done = await client.append_many([NewRecord(each.encode()) for each in batch])
            return Told(record, index=done.last, term=done.term, repeated=done.result == "repeated")

        return await self.recorder.run(process, "append", call, value=record, node=node)

    async def _consume(self, consumer: Consumer) -> None:
        while True:
            try:
                await self._follow(consumer)
            except ClientError:
                consumer.reopened += 1  # no node for the whole deadline: from where it stands
                await asyncio.sleep(AFTER_FAILURE_S)

    async def _follow(self, consumer: Consumer) -> None:
        history, arena = self.recorder.history, self.arena
        rows: list[list[Any]] = []
        since_ns = arena.now_ns()
        history.invoke(consumer.name, "read", time_ns=since_ns)
        try:
            async for each in consumer.client.log(consumer.position + 1, follow=True, progress=True):
                if isinstance(each, Record):
                    consumer.position = each.index
                    if each.operation == "append" and each.result == "applied":
                        text = (each.value or b"").decode()
                        consumer.rows.append((each.index, text))
                        rows.append([each.index, text])
                now_ns = arena.now_ns()
                if rows and (len(rows) >= CHUNK_RECORDS or now_ns - since_ns > CHUNK_S * 1e9):
                    history.complete(consumer.name, "ok", rows, time_ns=now_ns)
                    rows, since_ns = [], now_ns
                    history.invoke(consumer.name, "read", time_ns=now_ns)
        finally:
            history.complete(consumer.name, "ok", rows, time_ns=arena.now_ns())

    def marks(self, operation: Operation) -> Sequence[str]:
        """The records themselves."""
        return records_of(operation) if operation.f == "append" else ()

    def places(self, log: LogTruth) -> Mapping[str, Sequence[int]]:
        """Every append."""
        places: dict[str, list[int]] = {}
        for index, value in log.appended:
            places.setdefault(value, []).append(index)
        return places

    def changes(self, log: LogTruth) -> Changes | None:
        """What the consumers read is compared with the log as a whole."""
        return None

    async def finish(self, last_index: int) -> None:
        """Waits until the consumers have read up to there; one that does not come is judged by what it has."""
        end = asyncio.get_running_loop().time() + FINISH_S
        while any(each.position < last_index for each in self.consumers):
            if asyncio.get_running_loop().time() > end or all(task.done() for task in self._tasks):
                break
            await asyncio.sleep(0.02)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def judge(self, log: LogTruth) -> list[str]:
        """Each consumer has every record of the log, once, in order."""
        return [problem for each in self.consumers for problem in _compared(each, log.appended)]


def _compared(consumer: Consumer, appended: Sequence[tuple[int, str]]) -> list[str]:
    if consumer.rows == list(appended):
        return []
    for before, after in pairwise(consumer.rows):
        if after[0] <= before[0]:
            return [f"{consumer.name} was given {after} after {before}"]
    had = dict(consumer.rows)
    missing = [row for row in appended if had.get(row[0]) != row[1]]
    there = dict(appended)
    extra = [row for row in consumer.rows if there.get(row[0]) != row[1]]
    told = f"{consumer.name} read {len(consumer.rows)} of {len(appended)} records, up to index {consumer.position}"
    if extra:
        return [f"{told}; it was given {extra[0]}, which is not in the log"]
    return [f"{told}; the first that it was never given is {missing[0]}"]
