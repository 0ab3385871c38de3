"""Gives every workload its clients, its recorded history, and marks that find unknown writes in the log.

A workload writes nothing twice: each of its writes leaves a mark in the log that no other write leaves. So after the
run the log settles every write of unknown outcome. Half of the clients are bound to one node and fail with it; the
others fail over.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from raftlog import Client, NotApplied, OutcomeUnknown, Policy
from raftlog.chaos.judge.checks import Changes
from raftlog.chaos.judge.history import History, Operation
from raftlog.chaos.judge.log_truth import LogTruth

BOUND_DEADLINE_S: Final = 2.0
"""A client of one node gives up soon: its node may be cut off for long."""

DEADLINE_S: Final = 4.0
"""Several elections: a client that fails over should be answered within it."""

DIRECT: Final = "direct-"
"""How the records begin that the workload of direct requests appends: each workload judges its own."""

FINISH_S: Final = 30.0
"""Longest wait for the readers of the log after a run."""

AFTER_FAILURE_S: Final = 0.02
"""Before the next operation of a process that was refused at once."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to an operation.

    `repeated`: the node returned the result of an earlier attempt. Then the term is that of the repetition, not that of
    the entry at `index`.
    """

    value: Any = None
    result: Any = None
    index: int | None = None
    term: int | None = None
    repeated: bool = False


class OperationGivenUp(Exception):
    """The workload gave an operation up before anything of it was sent: it did not happen."""


@dataclass(slots=True)
class Arena:
    """What the workloads of one run share. `stopping` is set when the load is to end."""

    seed: int
    urls: Mapping[int, str] = field(default_factory=dict)  # node -> URL of its proxy
    pace: float = 1.0  # think times are multiplied by it
    policy: Policy | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    began_ns: int = field(default_factory=time.monotonic_ns)
    progress: list[tuple[int, int]] = field(default_factory=list)  # when writes were acknowledged (ns), in which term
    all_bound: bool = False  # every client to one node, not every second
    clients: list[Client] = field(default_factory=list)

    def now_ns(self) -> int:
        """Time since the load began."""
        return time.monotonic_ns() - self.began_ns

    def chance(self, process: str) -> random.Random:
        """A source of chance of that process alone."""
        return random.Random(f"{self.seed}/{process}")

    def node_of(self, number: int) -> int | None:
        """The node that the client of that number is bound to (None: it fails over). Every second one is bound."""
        nodes = sorted(self.urls)
        if self.all_bound:
            return nodes[number % len(nodes)]
        return nodes[number // 2 % len(nodes)] if number % 2 else None

    def client(self, number: int) -> tuple[Client, int | None]:
        """A new client, and the node it is bound to."""
        node = self.node_of(number)
        if node is not None:
            client = Client(self.urls[node], bound=True, deadline_s=BOUND_DEADLINE_S, policy=self.policy)
        else:
            client = Client(list(self.urls.values()), dial=self.urls, deadline_s=DEADLINE_S, policy=self.policy)
        self.clients.append(client)
        return client, node

    async def think(self, chance: random.Random, seconds: float) -> None:
        """A pause between two operations."""
        await asyncio.sleep(chance.uniform(0, 2 * seconds) * self.pace)

    async def close(self) -> None:
        """Ends all clients."""
        await asyncio.gather(*(client.close() for client in self.clients))


@dataclass(slots=True)
class Recorder:
    """Records the operations of one workload in the order in which things happened."""

    arena: Arena
    history: History = field(default_factory=History)

    async def run(
        self,
        process: str,
        f: str,
        call: Callable[[], Awaitable[Answer]],
        *,
        key: Any = None,
        value: Any = None,
        node: int | None = None,
        writes: bool = True,
    ) -> Answer | None:
        """Runs one operation and returns its answer, or None when it failed or its outcome is unknown."""
        arena = self.arena
        self.history.invoke(process, f, key, value, time_ns=arena.now_ns())
        try:
            answer = await call()
        except OutcomeUnknown:
            self.history.complete(process, "info", time_ns=arena.now_ns(), node=node)
        except (NotApplied, OperationGivenUp):
            self.history.complete(process, "fail", time_ns=arena.now_ns(), node=node)
        else:
            now_ns = arena.now_ns()
            self.history.complete(
                process,
                "ok",
                answer.value,
                result=answer.result,
                time_ns=now_ns,
                index=answer.index,
                term=None if answer.repeated else answer.term,
                node=node,
            )
            if writes:
                arena.progress.append((now_ns, answer.term or 0))
            return answer
        await asyncio.sleep(AFTER_FAILURE_S)
        return None


@dataclass(slots=True)
class Workload:
    """One workload: the operations that run, and how their answers are judged."""

    arena: Arena
    recorder: Recorder
    name: str = ""
    model: str = ""
    init: Any = None  # the start value of the model
    processes: int = 4
    think_s: float = 0.06

    async def prepare(self) -> None:
        """Before any fault: readers of the log begin."""

    async def run(self) -> None:
        """Until the arena is stopping: each process asks for one thing after the other."""
        await asyncio.gather(*(self._process(number) for number in range(self.processes)))

    async def _process(self, number: int) -> None:
        client, node = self.client(number)
        process = f"{self.name}-{number}"
        chance = self.arena.chance(process)
        while not self.arena.stopping.is_set():
            await self.ask(client, node, process, chance)
            await self.arena.think(chance, self.think_s)

    def client(self, number: int) -> tuple[Any, int | None]:
        """What the process of that number asks, and the node to which that is bound."""
        return self.arena.client(number)

    async def ask(self, client: Any, node: int | None, process: str, chance: random.Random) -> None:
        """Draws one operation of a process and carries it out."""
        raise NotImplementedError

    def marks(self, operation: Operation) -> Sequence[str]:
        """The marks that this write leaves in the log, in order; none for an operation that writes nothing."""
        raise NotImplementedError

    def places(self, log: LogTruth) -> Mapping[str, Sequence[int]]:
        """The marks of this workload in the log, and at which indexes they were carried out."""
        raise NotImplementedError

    def changes(self, log: LogTruth) -> Changes | None:
        """The changes by which every answer can be replayed; None where answers are judged otherwise."""
        return None

    async def finish(self, last_index: int) -> None:
        """After the run, before the clients end: waits until the readers of the log have read up to here."""

    def judge(self, log: LogTruth) -> list[str]:
        """What else is wrong, as whole sentences."""
        return []


def placed(found: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Each mark with all indexes at which it was found."""
    places: dict[str, list[int]] = {}
    for mark, index in found:
        places.setdefault(mark, []).append(index)
    return places


async def read_to_the_end(tasks: Sequence[asyncio.Task[None]], are_there: Callable[[], bool]) -> None:
    """Waits until the readers are there, then ends their tasks. A slow one is judged by what it has."""
    end = asyncio.get_running_loop().time() + FINISH_S
    while not are_there() and asyncio.get_running_loop().time() < end and not all(task.done() for task in tasks):
        await asyncio.sleep(0.02)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
