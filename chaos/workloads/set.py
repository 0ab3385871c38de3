"""Adds elements one by one and reads all at once, while a watch must see each of them arrive.

An element is a key of its own, a read a range of all keys of the set. Sets change after a while.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from raftlog import Client, Compacted, WatchEvent, prefix_end
from raftlog.chaos.judge.history import Operation
from raftlog.chaos.judge.log_truth import LogTruth
from raftlog.chaos.workloads.consumers import Follower, hopping, steady
from raftlog.chaos.workloads.workload import Answer, Workload, placed, read_to_the_end

PREFIX: Final = "s/"
SET_ELEMENTS: Final = 150
"""Elements until another set is used: a read returns all of them."""

READ_SHARE: Final = 0.25


@dataclass(slots=True)
class Watch(Follower):
    """A watch of everything, from the first index on, and the changes that it received."""

    watched: list[tuple[int, str, str | None]] = field(default_factory=list)

    async def run(self) -> None:
        """Until the task is cancelled."""
        await self.route.forever(self._follow)

    async def _follow(self, client: Client) -> None:
        try:
            async for each in client.watch(prefix=PREFIX.encode(), from_index=self.position + 1):
                if isinstance(each, WatchEvent):
                    self.watched += [
                        (each.index, change.key.decode(), None if change.value is None else change.value.decode())
                        for change in each.changes
                    ]
                    self.position = each.index
        except Compacted as error:
            self.skip(error)
            raise

    def compared(self, log: LogTruth) -> list[str]:
        """The difference between its changes and the log, except for changes trimmed before they arrived."""
        if problem := self.unfounded(log):
            return [problem]
        changed = [each for each in log.values(PREFIX) if not self.is_trimmed(each[0])]
        if self.watched == changed:
            return []
        number = next(
            (at for at, (one, other) in enumerate(zip(self.watched, changed, strict=False)) if one != other),
            min(len(self.watched), len(changed)),
        )
        was = self.watched[number] if number < len(self.watched) else "nothing"
        should = changed[number] if number < len(changed) else "nothing"
        return [f"event {number + 1} of {self.name} was {was}, and the log's change is {should}"]


@dataclass(slots=True)
class Sets(Workload):
    """The workload, and the changes that its watches received."""

    name: str = "set"
    model: str = "set"
    added: int = 0
    watches: list[Watch] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def prepare(self) -> None:
        """The watches begin before the first element."""
        for name, route in (("the steady watch", steady), ("the hopping watch", hopping)):
            self.watches.append(Watch(name, route(self.arena, name)))
        self._tasks = [asyncio.create_task(each.run()) for each in self.watches]

    async def ask(self, client: Client, node: int | None, process: str, chance: random.Random) -> None:
        """Reads a set, or adds an element."""
        name = f"{PREFIX}{self.added // SET_ELEMENTS}/"
        if chance.random() < READ_SHARE:
            await self.recorder.run(process, "read", lambda: _read(client, name), key=name, node=node, writes=False)
        else:
            self.added += 1
            element = f"{self.added:06d}"
            call = partial(_add, client, name, element)
            await self.recorder.run(process, "add", call, key=name, value=element, node=node)

    def marks(self, operation: Operation) -> Sequence[str]:
        """The element's key."""
        return (f"{operation.key}{operation.value}",) if operation.f == "add" else ()

    def places(self, log: LogTruth) -> Mapping[str, Sequence[int]]:
        """Every key that was put."""
        return placed((key, index) for index, key, _ in log.values(PREFIX))

    async def finish(self, last_index: int) -> None:
        """Waits until the watches have seen an element that is put for them now, after everything else."""
        client, _ = self.arena.client(0)
        written = await self.recorder.run(
            "set-last", "add", lambda: _add(client, f"{PREFIX}last/", "last"), key=f"{PREFIX}last/", value="last"
        )
        last = 0 if written is None else written.index or 0
        await read_to_the_end(self._tasks, lambda: all(each.position >= last for each in self.watches))

    def judge(self, log: LogTruth) -> list[str]:
        """The watches saw every change once, in order."""
        return [problem for each in self.watches for problem in each.compared(log)]


async def _read(client: Client, name: str) -> Answer:
    page = await client.range_page(name.encode(), prefix_end(name.encode()), limit=10 * SET_ELEMENTS)
    assert page.continuation is None
    return Answer([item.key.decode().removeprefix(name) for item in page.items], index=page.index)


async def _add(client: Client, name: str, element: str) -> Answer:
    done = await client.put(f"{name}{element}".encode(), b"1")
    return Answer(element, index=done.index, term=done.term, repeated=done.result == "repeated")
