"""Runs transactions that append to some lists and read others, all in one entry of the log.

An element is a key of its own, so an append needs no read first. A list is the keys under its prefix, in the order in
which they were created. A read alone does not go through the log (a linearizable range); a read in a transaction does.
Lists change after a while.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from raftlog import Client, Item, prefix_end, step
from raftlog.chaos.judge.history import Operation
from raftlog.chaos.judge.log_truth import LogTruth
from raftlog.chaos.workloads.workload import Answer, Workload, placed
from raftlog.cluster.api.kv import TxnIn

PREFIX: Final = "l/"
LISTS: Final = 4
GENERATION: Final = 200
"""Transactions until other lists are used: a read returns a whole list."""

READ_SHARE: Final = 0.3
STEPS_MAX: Final = 3


@dataclass(slots=True)
class Lists(Workload):
    """The workload."""

    name: str = "lists"
    model: str = "list-append"
    started: int = 0
    _elements: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def ask(self, client: Client, node: int | None, process: str, chance: random.Random) -> None:
        """Reads a list, or runs a transaction."""
        self.started += 1
        names = [f"{PREFIX}{self.started // GENERATION}/{each}/" for each in range(LISTS)]
        if chance.random() < READ_SHARE:
            name = chance.choice(names)
            await self.recorder.run(process, "read", lambda: _read(client, name), key=name, node=node, writes=False)
        else:
            value = self._drawn(chance, names)
            await self.recorder.run(process, "txn", lambda: _txn(client, value), value=value, node=node)

    def _drawn(self, chance: random.Random, names: Sequence[str]) -> list[list[Any]]:
        """At least one append, at most one to each list (elements of one entry have no order among themselves), and
        reads before and after."""
        chosen = chance.sample(names, chance.randint(1, STEPS_MAX))
        steps: list[list[Any]] = [["append", chosen[0], f"{next(self._elements):06d}"]]
        steps += [
            ["append", name, f"{next(self._elements):06d}"] if chance.random() < 0.5 else ["read", name, None]
            for name in chosen[1:]
        ]
        if chance.random() < 0.5:
            steps.append(["read", chosen[0], None])
        chance.shuffle(steps)
        return steps

    def marks(self, operation: Operation) -> Sequence[str]:
        """The keys of the elements, in one entry: one of them proves all."""
        if operation.f != "txn":
            return ()
        return [f"{name}{element}" for f, name, element in operation.value if f == "append"][:1]

    def places(self, log: LogTruth) -> Mapping[str, Sequence[int]]:
        """The first element that each transaction put."""
        firsts = {mark for each in self.recorder.history.operations() for mark in self.marks(each)}
        return placed((key, index) for index, key, _ in log.values(PREFIX) if key in firsts)

    def judge(self, log: LogTruth) -> list[str]:
        """Checks that every transaction put all of its elements at one index, each once, and that no other element is
        there.
        """
        lies = placed((key, index) for index, key, _ in log.values(PREFIX))
        problems: list[str] = []
        for each in self.recorder.history.operations():
            if each.f == "txn":
                found = [lies.pop(f"{name}{element}", []) for f, name, element in each.value if f == "append"]
                if len(found[0]) > 1 or any(places != found[0] for places in found):
                    problems.append(f"{each} was to happen once, as a whole; its elements were put at {found}")
        problems += [f"no client put {key}, which was put at {places}" for key, places in lies.items()]
        return problems[:5]


async def _read(client: Client, name: str) -> Answer:
    page = await client.range_page(name.encode(), prefix_end(name.encode()), limit=10 * GENERATION)
    assert page.continuation is None
    return Answer(_in_order(name, page.items), index=page.index)


async def _txn(client: Client, value: list[list[Any]]) -> Answer:
    then = [
        step("put", f"{name}{element}".encode(), b"1")
        if f == "append"
        else step("get", name.encode(), end=prefix_end(name.encode()))
        for f, name, element in value
    ]
    done = await client.txn(TxnIn(then=then))
    steps = [
        [f, name, element if f == "append" else _in_order(name, response.items)]
        for (f, name, element), response in zip(value, done.responses, strict=True)
    ]
    return Answer(steps, index=done.index, term=done.term, repeated=done.result == "repeated")


def _in_order(name: str, items: Iterable[Item]) -> list[str]:
    created = sorted((each.create, each.key.decode()) for each in items)
    return [key.removeprefix(name) for _, key in created]
