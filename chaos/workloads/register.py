"""Reads, writes and compares-and-sets single keys, with values that are never written twice.

Keys change after a while, so that each has a history that the search can decide.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from raftlog import Client, compare, prefix_end, step
from raftlog.chaos.judge.checks import Changes
from raftlog.chaos.judge.history import Operation
from raftlog.chaos.judge.log_truth import LogTruth
from raftlog.chaos.workloads.workload import Answer, Workload, placed
from raftlog.cluster.api.kv import TxnIn

PREFIX: Final = "r/"
KEYS: Final = 5
GENERATION: Final = 1_500
"""Operations until other keys are used."""


class Store(Protocol):
    """A store of single keys; each method raises what `Recorder.run` knows."""

    async def read(self, key: str) -> Answer:
        """The value, None where there is none."""

    async def read_with_index(self, key: str) -> Answer:
        """The same by a range of one key, whose answer has the index as of which it was read."""

    async def write(self, key: str, value: int) -> Answer:
        """Sets it."""

    async def cas(self, key: str, expected: int, value: int) -> Answer:
        """Sets it if it was `expected`; `result` is whether it was."""


@dataclass(slots=True)
class Registers(Workload):
    """The workload and its memory. `open` gives the store of a client and the node to which it is bound.

    Without `open`, that is the raftlog of the arena.
    """

    name: str = "register"
    model: str = "cas-register"
    processes: int = 10
    think_s: float = 0.02
    seen: dict[str, int] = field(default_factory=dict)  # what a cas expects: mostly right, at times stale
    started: int = 0
    prefix: str = PREFIX
    open: Callable[[int], tuple[Store, int | None]] | None = None
    _values: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def client(self, number: int) -> tuple[Store, int | None]:
        """A store of single keys."""
        if self.open is not None:
            return self.open(number)
        client, node = self.arena.client(number)
        return RaftlogStore(client), node

    async def ask(self, client: Store, node: int | None, process: str, chance: random.Random) -> None:
        """Reads, writes, or compares and sets a key."""
        self.started += 1
        key = f"{self.prefix}{self.started // GENERATION}/{chance.randrange(KEYS)}"
        drawn = chance.random()
        if drawn < 0.4:
            call = partial(client.read if drawn < 0.25 else client.read_with_index, key)
            answer = await self.recorder.run(process, "read", call, key=key, node=node, writes=False)
            if answer is not None and answer.value is not None:
                self.seen[key] = answer.value
            return
        value = next(self._values)
        expected = self.seen.get(key)
        if drawn < 0.7 or expected is None:
            call = partial(client.write, key, value)
            answer = await self.recorder.run(process, "write", call, key=key, value=value, node=node)
        else:
            call = partial(client.cas, key, expected, value)
            answer = await self.recorder.run(process, "cas", call, key=key, value=[expected, value], node=node)
        if answer is not None and answer.result is not False:
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

    async def read(self, key: str) -> Answer:
        item = await self.client.get(key.encode())
        return Answer(None if item is None else int(item.value))

    async def read_with_index(self, key: str) -> Answer:
        page = await self.client.range_page(key.encode(), prefix_end(key.encode()), limit=1)
        return Answer(int(page.items[0].value) if page.items else None, index=page.index)

    async def write(self, key: str, value: int) -> Answer:
        done = await self.client.put(key.encode(), b"%d" % value)
        return Answer(value, index=done.index, term=done.term, repeated=done.result == "repeated")

    async def cas(self, key: str, expected: int, value: int) -> Answer:
        done = await self.client.txn(
            TxnIn(
                compare=[compare(key.encode(), "value", "=", b"%d" % expected)],
                then=[step("put", key.encode(), b"%d" % value)],
            )
        )
        return Answer([expected, value], done.succeeded, done.index, done.term, repeated=done.result == "repeated")
