"""Reads, writes and compares-and-sets single keys, with values that are never written twice.

Keys change after a while, so that each has a history that the search can decide.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from raftlog.chaos.judge.checks import Changes
from raftlog.chaos.judge.history import Operation
from raftlog.chaos.judge.log_truth import LogTruth
from raftlog.chaos.workloads.workload import Arena, Recorder, Told, Workload, placed
from raftlog.cluster.api.kv import TxnIn
from raftlog.cluster.client.aio.client import Client, compare, prefix_end, step

PREFIX: Final = "r/"
PROCESSES: Final = 10
KEYS: Final = 5
GENERATION: Final = 1_500
"""Operations until other keys are used."""

THINK_S: Final = 0.02


class Store(Protocol):
    """A store of single keys, of whatever system: each raises what `Recorder.run` knows."""

    async def read(self, key: str) -> Told:
        """The value, None where there is none."""

    async def read_with_index(self, key: str) -> Told:
        """The same, with the index as of which it was read, if the system returns one."""

    async def write(self, key: str, value: int) -> Told:
        """Sets it."""

    async def cas(self, key: str, expected: int, value: int) -> Told:
        """Sets it if it was `expected`; `result` is whether it was."""


@dataclass(slots=True)
class Registers(Workload):
    """The workload and its memory. `open` gives the store of a client and the node to which it is bound.

    Without `open`, that is the raftlog of the arena.
    """

    arena: Arena
    recorder: Recorder
    name: str = "register"
    model: str = "cas-register"
    init: Any = None
    seen: dict[str, int] = field(default_factory=dict)  # what a cas expects: mostly right, at times stale
    started: int = 0
    prefix: str = PREFIX
    processes: int = PROCESSES
    open: Callable[[int], tuple[Store, int | None]] | None = None
    _values: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def run(self) -> None:
        """All processes."""
        await asyncio.gather(*(self._process(number) for number in range(self.processes)))

    async def _process(self, number: int) -> None:
        store, node = (self.open or self._raftlog)(number)
        process = f"{self.name}-{number}"
        chance = self.arena.chance(process)
        while not self.arena.stopping.is_set():
            self.started += 1
            key = f"{self.prefix}{self.started // GENERATION}/{chance.randrange(KEYS)}"
            await self._one(store, process, node, key, chance)
            await self.arena.think(chance, THINK_S)

    def _raftlog(self, number: int) -> tuple[Store, int | None]:
        client, node = self.arena.client(number)
        return RaftlogStore(client), node

    async def _one(self, store: Store, process: str, node: int | None, key: str, chance: random.Random) -> None:
        drawn = chance.random()
        if drawn < 0.4:
            call = (lambda: store.read(key)) if drawn < 0.25 else (lambda: store.read_with_index(key))
            told = await self.recorder.run(process, "read", call, key=key, node=node, writes=False)
            if told is not None and told.value is not None:
                self.seen[key] = told.value
            return
        value = next(self._values)
        expected = self.seen.get(key)
        if drawn < 0.7 or expected is None:
            told = await self.recorder.run(
                process, "write", lambda: store.write(key, value), key=key, value=value, node=node
            )
        else:
            pair = [expected, value]
            told = await self.recorder.run(
                process, "cas", lambda: store.cas(key, expected, value), key=key, value=pair, node=node
            )
        if told is not None and told.result is not False:
            self.seen[key] = value

    def marks(self, operation: Operation) -> Sequence[str]:
        """Key and value: no value is written twice."""
        if operation.f == "read":
            return ()
        value = operation.value[1] if operation.f == "cas" else operation.value
        return (f"{operation.key}={value}",)

    def places(self, log: LogTruth) -> Mapping[str, Sequence[int]]:
        """Every change of the keys."""
        return placed((f"{key}={value}", index) for index, key, value in log.values(self.prefix))

    def changes(self, log: LogTruth) -> Changes:
        """Every value that a key had."""
        changes: dict[Hashable, list[tuple[int, Any]]] = {}
        for index, key, value in log.values(self.prefix):
            changes.setdefault(key, []).append((index, None if value is None else int(value)))
        return changes


@dataclass(frozen=True, slots=True)
class RaftlogStore:
    """Keys of raftlog."""

    client: Client

    async def read(self, key: str) -> Told:
        """A get."""
        item = await self.client.get(key.encode())
        return Told(None if item is None else int(item.value))

    async def read_with_index(self, key: str) -> Told:
        """A range of one key: its answer has the index."""
        page = await self.client.range_page(key.encode(), prefix_end(key.encode()), limit=1)
        return Told(int(page.items[0].value) if page.items else None, index=page.index)

    async def write(self, key: str, value: int) -> Told:
        """A put."""
        done = await self.client.put(key.encode(), b"%d" % value)
        return Told(value, index=done.index, term=done.term, repeated=done.result == "repeated")

    async def cas(self, key: str, expected: int, value: int) -> Told:
        """A transaction."""
        done = await self.client.txn(
            TxnIn(
                compare=[compare(key.encode(), "value", "=", b"%d" % expected)],
                then=[step("put", key.encode(), b"%d" % value)],
            )
        )
        return Told([expected, value], done.succeeded, done.index, done.term, repeated=done.result == "repeated")
