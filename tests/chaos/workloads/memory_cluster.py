"""A cluster that is one store in memory, with clients that lose answers, and with bugs that can be switched on.

It answers as fast as the event loop turns, so that a workload and its checkers see thousands of operations a second.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from raftlog import Client, Item, NewRecord, OutcomeUnknown, Page, Record, TxnResult, WatchEvent
from raftlog.chaos.runs.aftermath import Aftermath
from raftlog.chaos.runs.judgement import Judgement, judge_run
from raftlog.chaos.runs.runner import Run, RunPlan
from raftlog.chaos.runs.scenarios import Scenario
from raftlog.chaos.workloads.workload import Arena, Workload
from raftlog.cluster.api.errors import Code, Outcome
from raftlog.cluster.api.kv import CompareIn, TxnIn, Written
from raftlog.cluster.api.records import Appended, ChangeJson, LogRecord
from raftlog.cluster.client.answers import Change, TxnResponse
from tests.support import wait_until_async

TERM = 1
TURNS_MAX = 6
"""Of the event loop before and after an operation takes effect."""

LOST_SHARE = 0.01
BUG_SHARE = 0.02


@dataclass
class MemoryCluster:
    """The store and its log. `bug`: "stale", "lost", "twice", "torn", "skipping" or "" for none."""

    bug: str = ""
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    items: dict[str, Item] = field(default_factory=dict)
    before: dict[str, Item] = field(default_factory=dict)  # what a stale read sees
    records: list[LogRecord] = field(default_factory=list)
    revision: int = 0
    more: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def index(self) -> int:
        """Of the last record."""
        return len(self.records)

    def strikes(self, bug: str) -> bool:
        """Whether that bug shows now."""
        return self.bug == bug and self.chance.random() < BUG_SHARE

    def append(self, values: Sequence[str]) -> None:
        """Appends records."""
        for value in values:
            self._log("append", value=value)

    def put(self, pairs: Sequence[tuple[str, str]], operation: str) -> None:
        """Puts keys in one entry."""
        if self.chance.random() < 0.1:
            self.before = dict(self.items)
        self.revision += 1
        changes: list[ChangeJson] = []
        for key, value in pairs:
            old = self.items.get(key)
            create, version = (old.create, old.version + 1) if old else (self.revision, 1)
            self.items[key] = Item(key.encode(), value.encode(), create, self.revision, version)
            changes.append(ChangeJson(False, create, self.revision, version, key=key, value=value))
        if operation == "txn":
            self._log("txn", changes=changes)
        else:
            self._log("put", key=pairs[0][0], value=pairs[0][1])

    def _log(self, operation: str, **told: Any) -> None:
        self.records.append(LogRecord(len(self.records) + 1, TERM, 0, "commands", operation, **told))
        self.more.set()
        self.more = asyncio.Event()


@dataclass
class MemoryClient:
    """What workloads use of a `raftlog.cluster.client.aio.client.Client`."""

    cluster: MemoryCluster

    async def _turns(self) -> None:
        for _ in range(self.cluster.chance.randrange(TURNS_MAX)):
            await asyncio.sleep(0)

    async def _answer(self) -> None:
        await self._turns()
        if self.cluster.chance.random() < LOST_SHARE:
            raise OutcomeUnknown(Code.TIMEOUT, "the answer was lost")

    async def close(self) -> None:
        """Nothing is open."""

    async def get(self, key: bytes) -> Item | None:
        """One key."""
        return next(iter((await self.range_page(key, key + b"\0")).items), None)

    async def range_page(self, start: bytes, end: bytes | None, *, limit: int = 0) -> Page:
        """Keys from start to end."""
        await self._turns()
        cluster = self.cluster
        items = cluster.before if cluster.strikes("stale") else cluster.items
        found = [
            each for key, each in sorted(items.items()) if start <= key.encode() and (not end or key.encode() < end)
        ]
        index = cluster.index
        await self._turns()
        return Page(tuple(found), len(found), None, cluster.revision, index)

    async def put(self, key: bytes, value: bytes) -> Written:
        """One key."""
        await self._turns()
        cluster = self.cluster
        if not cluster.strikes("lost"):
            cluster.put([(key.decode(), value.decode())], "put")
        done = Written(Outcome.APPLIED, "applied", cluster.revision, cluster.index, TERM)
        await self._answer()
        return done

    async def append_many(self, batch: Sequence[NewRecord]) -> Appended:
        """Records."""
        await self._turns()
        cluster = self.cluster
        values = [(each.value or b"").decode() for each in batch]
        if not cluster.strikes("lost"):
            cluster.append(values)
        last = cluster.index
        if cluster.strikes("twice"):
            cluster.append(values)
        await self._answer()
        return Appended(Outcome.APPLIED, "applied", last - len(values) + 1, last, len(values), last, TERM)

    async def txn(self, transaction: TxnIn) -> TxnResult:
        """Compares, then the steps one after the other."""
        await self._turns()
        cluster = self.cluster
        succeeded = all(self._fits(each) for each in transaction.compare)
        responses: list[TxnResponse] = []
        puts: list[tuple[str, str]] = []
        for each in transaction.then if succeeded else []:
            assert each.key is not None
            if each.operation == "put":
                puts.append((each.key, each.value or ""))
                responses.append(TxnResponse("put"))
            else:
                now = dict(cluster.items)
                for key, _ in puts:
                    now[key] = Item(key.encode(), b"1", cluster.revision + 1, cluster.revision + 1, 1)
                items = tuple(now[key] for key in sorted(now) if each.key <= key < (each.end or each.key + "\0"))
                responses.append(TxnResponse("get", items, len(items)))
        if puts:
            cluster.put(puts[:1] if len(puts) > 1 and cluster.strikes("torn") else puts, "txn")
        else:
            cluster._log("txn", changes=[])
        done = TxnResult(succeeded, tuple(responses), "applied", cluster.revision, cluster.index, TERM)
        await self._answer()
        return done

    def _fits(self, compare: CompareIn) -> bool:
        item = self.cluster.items.get(compare.key or "")
        if compare.target == "value":
            return bool(item is not None and item.value.decode() == compare.value)
        return int(getattr(item, compare.target, 0)) == compare.number

    async def log(
        self, from_index: int, *, to: int | None = None, follow: bool = False, progress: bool = False
    ) -> AsyncIterator[Record]:
        """The records from an index on."""
        async for each in self._rows(from_index, to, follow):
            value = None if each.value is None else each.value.encode()
            row: dict[str, Any] = {name: getattr(each, name, None) for name in Record.__struct_fields__}
            yield Record(**(row | {"key": None, "value": value, "changes": None}))

    async def watch(self, *, prefix: bytes, from_index: int) -> AsyncIterator[WatchEvent]:
        """Changes of keys with that prefix."""
        async for each in self._rows(from_index, None, True):
            if each.operation == "put" and (each.key or "").startswith(prefix.decode()):
                change = Change((each.key or "").encode(), (each.value or "").encode(), False, 1, 1, 1)
                yield WatchEvent(each.index, TERM, 0, 1, (change,))

    async def _rows(self, from_index: int, to: int | None, follow: bool) -> AsyncIterator[LogRecord]:
        position = from_index
        while True:
            while position <= self.cluster.index and (to is None or position < to):
                record = self.cluster.records[position - 1]
                position += 1
                if not self.cluster.strikes("skipping"):
                    yield record
            if not follow:
                return
            await self.cluster.more.wait()


@dataclass(slots=True)
class MemoryArena(Arena):
    """An arena whose clients are clients of a cluster in memory, and which has no think times."""

    cluster: MemoryCluster = field(default_factory=MemoryCluster)

    def client(self, number: int) -> tuple[Client, int | None]:
        """A client."""
        return cast(Client, MemoryClient(self.cluster)), self.node_of(number)


async def judged_alone(
    workload: Workload, events: int, last: Callable[[], int], found: Callable[[], Aftermath]
) -> Judgement:
    """What the harness says of a run of this workload alone, once its history has so many events; `last` is then the
    newest index."""
    arena = workload.arena
    running = asyncio.create_task(workload.run())
    await wait_until_async(lambda: len(workload.recorder.history) >= events or running.done(), 60)
    arena.stopping.set()
    await running
    await workload.finish(last())
    scenario = Scenario(name="calm", says="", nemeses=(), workloads=(workload.name,), faults_min=0, always=())
    plan = RunPlan(scenario, [], nodes=3, seconds=1.0, seed=arena.seed)
    run = Run(plan, Path(), [], [workload], arena, load_ns=arena.now_ns())
    run.aftermath = found()
    run.aftermath.last_index = last()
    return judge_run(run)
